# SPDX-License-Identifier: Apache-2.0
"""The three ways in which a container config names a device, as LXC and Proxmox VE take them.

Device rules: liblxc cgroups/cgfsng.c, tried on 5.0.2 and 6.0.5. A rule that liblxc cannot read is skipped with a log
line, the container starts, and the device stays denied: so the reason matters. `devN`: pve-container. Mount entries:
fstab(5) fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Optional, Tuple

_DIGITS = r"\*|[0-9]{1,10}"
_NUMBER = re.compile(r"([abc])[ \t](%s):(%s)[ \t](.*)\Z" % (_DIGITS, _DIGITS), re.DOTALL)
_DEV_PATH = re.compile(r"/dev/")
_DOT_PART = re.compile(r"/\.\.?(?:/|\Z)")


@dataclass(frozen=True)
class Rule:
    """A value of lxc.cgroup2.devices.allow or .deny. `major` and `minor` are None for `*`. `bad` says why liblxc skips
    the rule. `everything` opens every device: `a`, or an empty value, which wipes the list so that no program is
    attached. `fatal`: the container does not start. `note` is ignored text after the access letters."""

    type: str = ""
    major: Optional[int] = None
    minor: Optional[int] = None
    access: str = ""
    path: str = ""
    note: str = ""
    bad: str = ""
    everything: bool = False
    fatal: bool = False

    @property
    def wipes(self) -> bool:
        """An empty value: it wipes the list, and what follows starts a new one."""
        return self.everything and not self.type

    @property
    def fields(self) -> Tuple[object, ...]:
        """What two rules must have in common to be one: liblxc compares the fields, not what they cover."""
        return self.type, self.major, self.minor, self.access, self.path

    def same(self, other: "Rule") -> bool:
        """Whether a deny rule is exactly this allow rule."""
        return self.fields == other.fields

    def touches(self, major: int, minor: Optional[int]) -> bool:
        """Whether this rule decides, where it stands, over opening that character device for reading and writing: one that
        says less than both does not."""
        return (self.type == "c" and self.major in (None, major) and (self.minor in (None, minor) or minor is None)
                and {"r", "w"} <= set(self.access))

    def opens(self, major: int, minor: Optional[int]) -> bool:
        """Whether this allow rule lets a process open that character device for reading and writing. A minor that is
        not known is only covered by a rule for all of them."""
        return (self.type == "c" and not self.bad and self.major in (None, major) and self.minor in (None, minor)
                and (minor is not None or self.minor is None) and {"r", "w"} <= set(self.access))


def parse_rule(value: str) -> Rule:
    """A rule's value as LXC takes it: quotes around it go; TYPE MAJ:MIN ACCESS with exactly one blank or tab between;
    up to three of rwm, and only what follows three of them is ignored; or /dev/PATH ACCESS."""
    value = _unquote(value)
    if value == "":
        return Rule(everything=True)
    if value == "a":
        return Rule(type="a", access="rwm", everything=True)
    if value.startswith("/"):
        return _path_rule(value)
    match = _NUMBER.match(value)
    if not match:
        return Rule(bad=_why_bad(value))
    kind, major, minor, rest = match.groups()
    access, wrong = _access(rest)
    if wrong:
        return Rule(bad=wrong)
    if not (_is_number(major) and _is_number(minor)):
        return Rule(bad="a number with a leading zero is octal to LXC, and this is none")
    rule = Rule(kind, _number(major), _number(minor), access, note=rest[3:].strip())
    if kind == "a":
        return Rule(kind, rule.major, rule.minor, access, note=rule.note, everything=True, fatal=True)
    if kind == "c" and rule.major is None and rule.minor is None and {"r", "w"} <= set(access):
        return Rule(kind, None, None, access, note=rule.note, everything=True)
    return rule


def _path_rule(value: str) -> Rule:
    # Here liblxc splits at blanks (not tabs), allows several, and cuts at the second gap.
    path, _, rest = value.partition(" ")
    rest = rest.lstrip(" ")
    letters, _, note = rest.partition(" ")
    if not letters:
        return Rule(path=path, bad="the access letters (rwm) are missing")
    access, wrong = _access(letters)
    return Rule(path=path, bad=wrong) if wrong else Rule(path=path, access=access, note=(letters[3:] + " " + note).strip())


def _access(text: str) -> Tuple[str, str]:
    letters = text[:3]
    strange = [letter for letter in letters if letter not in "rwm"]
    if letters[:1] in (" ", "\t"):
        return "", "two blanks in a row: exactly one separates the fields"
    if strange and strange[0] in " \t":
        return "", "text follows fewer than three access letters, and only text after three is ignored"
    if strange:
        return "", "%r is no access letter (r, w, m)" % strange[0]
    return letters, "" if letters else "the access letters (rwm) are missing"


def _is_number(text: str) -> bool:
    return not (text[0] == "0" and set(text) & set("89"))


def _number(text: str) -> Optional[int]:
    return None if text == "*" else int(text, 8 if text[0] == "0" else 10)


def _why_bad(value: str) -> str:
    if value[0] not in "abc":
        return "it starts with %r instead of c, b or a (lower case) or a path" % value[0]
    if not re.match(r".[ \t]", value):
        return "no blank follows the type"
    if re.match(r".[ \t]{2}", value) or re.match(r".[ \t]\S+[ \t]{2}", value):
        return "two blanks in a row: exactly one separates the fields"
    if not re.match(r".[ \t](%s):(%s)(?![0-9])" % (_DIGITS, _DIGITS), value):
        return "the device is not MAJOR:MINOR in decimal digits or *"
    return "the access letters (rwm) are missing"


def _unquote(value: str) -> str:
    value = value.strip(" \t\r\f\v")
    if len(value) >= 2 and value[0] in "'\"" and value[-1] == value[0]:
        return value[1:-1]
    return value


@dataclass(frozen=True)
class DevEntry:
    """A Proxmox `devN` value: the device's path, its options in order, and why it is bad ("" if it is not)."""

    path: str = ""
    options: Tuple[Tuple[str, str], ...] = ()
    bad: str = ""

    def option(self, name: str) -> str:
        """An option's value, "" if it is not given."""
        return dict(self.options).get(name, "")


def parse_dev(value: str) -> DevEntry:
    """`[path=]/dev/..[,mode=0ooo][,uid=N][,gid=N][,deny-write=0|1]`; a trailing comma is fine, blanks are not."""
    options: Dict[str, str] = {}
    for part in [part for part in value.split(",") if part]:
        key, equals, text = part.partition("=")
        key, text = ("path", part) if not equals or "/" in key else (key, text)
        if key in options:
            return DevEntry(options.get("path", ""), bad="%s is given twice" % key)
        options[key] = text
    path = options.pop("path", "")
    bad = _bad_dev(path, options)
    return DevEntry(_squeeze(path), tuple(options.items()), bad)


def _bad_dev(path: str, options: Dict[str, str]) -> str:
    if not _DEV_PATH.match(path) or _DOT_PART.search(path):
        return "%r is no device path: it must start with /dev/ and hold no . or .. parts" % path
    patterns = {"mode": r"0[0-7]{3}", "uid": r"[0-9]+", "gid": r"[0-9]+", "deny-write": r"[01]|on|off|yes|no|true|false"}
    for key, text in options.items():
        if key not in patterns:
            return "%r is no option of a device entry (path, mode, uid, gid, deny-write)" % key
        if not re.match("(?:%s)\\Z" % patterns[key], text):
            return "%s=%s is not valid" % (key, text) + (" (0 and three octal digits)" if key == "mode" else "")
    return ""


@dataclass(frozen=True)
class Mount:
    """A value of lxc.mount.entry: `target` as an absolute path inside the container, and why the entry is bad.
    `ignored`: LXC skips it silently. `fatal`: the container does not start. `misplaced`: its target is not there."""

    source: str = ""
    target: str = ""
    type: str = ""
    options: Tuple[str, ...] = ()
    bad: str = ""
    fatal: bool = False
    ignored: bool = False
    misplaced: bool = False

    @property
    def is_bind(self) -> bool:
        """Whether it makes a file or folder of the host visible inside."""
        return not self.bad and ("bind" in self.options or "rbind" in self.options)


def parse_mount(value: str) -> Mount:
    """fstab fields: source, target (relative to the container's root), type, options, and two numbers at will."""
    # Blanks and tabs only, as getmntent(3) does: a no-break space, pasted from a web page, is part of a name.
    parts = [part for part in re.split(r"[ \t]+", _unquote(value)) if part]
    fields = [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), part) for part in parts]
    if not fields or fields[0].startswith("#"):
        return Mount(bad="it is empty or a comment to LXC", ignored=True)
    if len(fields) < 4:
        return Mount(bad="it has %d of the 4 fields source, target, type, options" % len(fields), fatal=True)
    source, target, kind, options = fields[0], fields[1], fields[2], tuple(fields[3].split(","))
    if target.startswith("/"):
        return Mount(_squeeze(source), target, kind, options, "the target starts with /, and LXC skips it silently", False, True)
    return Mount(_squeeze(source), _squeeze("/" + target.rstrip("/")), kind, options)


def _squeeze(path: str) -> str:
    return re.sub(r"/{2,}", "/", path)
