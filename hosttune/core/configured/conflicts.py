# SPDX-License-Identifier: Apache-2.0
"""Who else sets a value: at boot, on a device's event, or as a manager that sets it whenever it likes.

hosttune does not fight over a setting. What would undo its value is named with path and line, and the way out is an edit
there. Asked are sysctl.d, tmpfiles.d, sysfsutils, udev rules, root's crontab and rc.local, units of this machine's owner,
cpufrequtils, an active tuned profile, TLP and power-profiles-daemon.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import Dict, Iterator, List, Mapping, Tuple

from ..door.host import Host, list_or_empty
from . import cmdline, dropins, sysctl, tmpfiles, tuned

UNITS = "/etc/systemd/system"
UDEV = dropins.folders("udev/rules.d")
CRON = ("/etc/crontab", "/etc/rc.local")
ROOTS_CRONTAB = "/var/spool/cron/crontabs/root"
SYSFSUTILS, CPUFREQUTILS = "/etc/sysfs.conf", "/etc/default/cpufrequtils"
TLP_DEFAULTS, TLP_FOLDER, TLP = "/usr/share/tlp/defaults.conf", "/etc/tlp.d", "/etc/tlp.conf"
UNKNOWN = "unknown"
"""A value that a command sets in a way that cannot be read from its text."""


@dataclass(frozen=True)
class Setting:
    """One setting under every name that others have for it.

    target     the file that holds it, or a pattern: "/proc/sys/vm/swappiness", "/sys/.../policy*/scaling_governor"
    file       what hosttune writes for the next boot
    sysctl     its key, "" for one in /sys
    spellings  other paths to the same file
    tuned      (plugin, option) pairs; daemons: units that set it on their own
    commands   regular expressions of programs that set it without naming the file; the value is the first group
    udev       what a rule must match to be about it, where devices of other kinds have a file of that name; "" for any
    tlp        {variable of TLP: {its value: the value in `target`}}, an empty map when they are the same
    """

    target: str
    file: str
    sysctl: str = ""
    spellings: Tuple[str, ...] = ()
    tuned: Tuple[Tuple[str, str], ...] = ()
    tlp: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    daemons: Tuple[str, ...] = ()
    commands: Tuple[str, ...] = ()
    udev: str = ""


@dataclass(frozen=True)
class Claim:
    """Something that sets the value.

    where    "path:line". who: in words. way_out: a line to paste; "{want}" in it stands for the value that is wanted
    after    it comes after what hosttune writes for the boot, and so would undo it
    manager  it may set the value at any time, so that writing the value now would be behind its back
    """

    value: str
    where: str
    who: str
    way_out: str = ""
    after: bool = True
    manager: bool = False


def claims(host: Host, setting: Setting) -> List[Claim]:
    """Everything that sets it, the one that decides last. hosttune's own file is among them. Raises OSError."""
    found = _files(host, setting)
    profile = list(_tuned(host, setting))
    if setting.sysctl and tuned.reapplies_sysctl(host):
        # it sets what sysctl.d says once more, after its own: a file there wins
        found = [replace(claim, after=False, manager=False) for claim in profile] + found
        profile = []
    return [*found, *_text(host, setting), *profile, *_others(host, setting)]


def _files(host: Host, setting: Setting) -> List[Claim]:
    """What the native place says: the kernel command line, then sysctl.d or tmpfiles.d and sysfsutils."""
    if not setting.sysctl:
        return [*_tmpfiles(host, setting), *_sysfsutils(host, setting)]
    found = []
    said = cmdline.value(host, "sysctl." + setting.sysctl)
    if said is not None:
        found.append(Claim(said, cmdline.NOW, "the kernel command line", after=False))
    for each in sysctl.assignments(host, setting.sysctl):
        later = each.path == sysctl.LAST or dropins.basename(each.path) > dropins.basename(setting.file)
        way_out = _edit(each.path, each.line, "echo '%s = {want}' >> /etc/sysctl.d/99-zz-local.conf" % setting.sysctl)
        found.append(Claim(each.value or "", "%s:%d" % (each.path, each.line), "another file", way_out, later))
    return found


def _tmpfiles(host: Host, setting: Setting) -> Iterator[Claim]:
    spellings = (setting.target, *setting.spellings)
    lines = tmpfiles.writes(host, spellings)
    own = [n for n, line in enumerate(lines) if line.file == setting.file]
    for n, line in enumerate(lines):
        first = line.path == setting.target and dropins.basename(line.file) < dropins.basename(setting.file)
        named_later = dropins.basename(line.file) > dropins.basename(setting.file)
        later = line.path != setting.target and (n > own[0] if own else named_later)
        way_out = _edit(line.file, line.number)
        after = (first or later) and line.file != setting.file
        yield Claim(line.value, "%s:%d" % (line.file, line.number), "another file", way_out, after)


def _sysfsutils(host: Host, setting: Setting) -> Iterator[Claim]:
    for path in (SYSFSUTILS, *dropins.files(host, ("/etc/sysfs.d",))):
        for number, line in dropins.lines(host, path, "#"):
            name, equals, value = line.partition("=")
            if equals and tmpfiles.meets("/sys/" + name.strip(), (setting.target, *setting.spellings)):
                yield Claim(value.strip(), "%s:%d" % (path, number), "sysfsutils", _edit(path, number))


def _text(host: Host, setting: Setting) -> Iterator[Claim]:
    """Rules and commands that write the file. A line that only reads it is not one."""
    name = r"(?<![\w.])(?:%s)(?![\w.])" % "|".join(re.escape(each) for each in _names(setting))
    about = "|".join((name, *setting.commands))
    for path in dropins.files(host, UDEV, ".rules"):
        for number, line in dropins.lines(host, path, "#", about):
            if not re.search(setting.udev, line):
                continue
            if re.search(name + r"\}\s*\+?=(?!=)", line) or ("RUN" in line and _writes(line, name, setting)):
                yield Claim(_value(line, name, setting), "%s:%d" % (path, number), "a udev rule", _edit(path, number))
    for path in (*CRON, ROOTS_CRONTAB, *dropins.files(host, ("/etc/cron.d",), "")):
        for number, line in _crontab(host, path, about):
            if _writes(line, name, setting):
                value = _value(line, name, setting)
                yield Claim(value, "%s:%d" % (path, number), "a command at boot", _edit(path, number))
    for unit, path in _own_units(host).items():
        for number, line in dropins.lines(host, path, about=about):
            if line.startswith("Exec") and _writes(line, name, setting):
                value, way_out = _value(line, name, setting), "systemctl disable --now " + shlex.quote(unit)
                yield Claim(value, "%s:%d" % (path, number), "the unit " + unit, way_out)


def _crontab(host: Host, path: str, about: str) -> List[Tuple[int, str]]:
    """Lines of a crontab. Root's own is for root alone: a user is told what all others say, and root what it says too."""
    try:
        return dropins.lines(host, path, "#", about)
    except PermissionError:
        if path != ROOTS_CRONTAB:
            raise
        return []


def _names(setting: Setting) -> List[str]:
    """What a line calls the file: the part of the path that no pattern cuts, at least two names of it; or the sysctl key."""
    if setting.sysctl:
        return [setting.sysctl, setting.sysctl.replace(".", "/")]
    found = []
    for path in (setting.target, *setting.spellings):
        tail = path.rpartition("*/")[2]
        found.append(tail if "*" in path else "/".join(path.split("/")[-2:]))
    return sorted(set(found))


_WRITES = (
    r">\s*[\"']?[^\s|;&]*%s", r"\btee\b[^|;&]*%s", r"\bsysctl\b[^|;&]*%s\s*=", r"\bfor\b.*%s",  # a loop over all CPUs
)  # fmt: skip
"""Forms of a command that writes a file, which `%s` names."""
_VALUES = (
    r"%s\}?\s*\+?=\s*[\"']?([\w.-]+)",
    r"\becho\s+(?:-n\s+)?[\"']?([\w.-]+)[\"']?.*%s",
    r"\bprintf\s+[\"']?([\w.-]+?)(?:\\n)?[\"']?\s.*%s",
    r"%s.*\becho\s+(?:-n\s+)?[\"']?([\w.-]+)",
)
"""Where in such a line, or in a udev rule, the value stands."""


def _writes(line: str, name: str, setting: Setting) -> bool:
    forms = [form % name for form in _WRITES] + list(setting.commands)
    return any(re.search(form, line) for form in forms)


def _value(line: str, name: str, setting: Setting) -> str:
    forms = [form % name for form in _VALUES] + list(setting.commands)
    found = next(filter(None, (re.search(form, line) for form in forms)), None)
    return found.group(1) if found else UNKNOWN


def _own_units(host: Host) -> Dict[str, str]:
    """{unit: path} of the owner's units that are enabled, hosttune's left out."""
    wanted = {
        unit
        for folder in list_or_empty(host, UNITS) if folder.endswith(".wants")
        for unit in list_or_empty(host, "%s/%s" % (UNITS, folder))
    }  # fmt: skip
    there = set(list_or_empty(host, UNITS))
    return {
        u: "%s/%s" % (UNITS, u)
        for u in sorted(wanted & there)
        if u.endswith(".service") and not u.startswith("hosttune-")
    }


def _tuned(host: Host, setting: Setting) -> Iterator[Claim]:
    names = set(setting.tuned)
    profile = tuned.active(host)
    if not profile:
        return
    for option in tuned.options(host):
        by_path = option.plugin == "sysfs" and tmpfiles.meets(option.name, (setting.target, *setting.spellings))
        if (
            by_path
            or (option.plugin, option.name) in names
            or option.plugin == "sysctl"
            and option.name == setting.sysctl
        ):
            value = option.value.lstrip("<>=").split("|")[0].strip()
            where, way_out = "%s:%d" % (option.path, option.line), _in_tuned(profile, option)
            yield Claim(value, where, "the active tuned profile %s" % profile, way_out, manager=True)


def _in_tuned(profile: str, option: tuned.Option) -> str:
    """An edit of the owner's own profile; where the line is the package's, a profile of his that lies over it."""
    if option.path.startswith("/etc/"):
        return "sed -i '%ds/=.*/={want}/' %s && tuned-adm profile %s" % (option.line, shlex.quote(option.path), profile)
    file = "/etc/tuned/local/tuned.conf"
    inherit = "mkdir -p /etc/tuned/local && printf '[main]\\ninclude=%s\\n' > %s && " % (profile.replace(" ", ","), file)
    over = "printf '[%s]\\n%s={want}\\n' >> %s && tuned-adm profile local" % (option.plugin, option.name, file)
    return over if profile == "local" else inherit + over


def _others(host: Host, setting: Setting) -> Iterator[Claim]:
    """Frequency managers that are enabled: TLP by its variables, cpufrequtils, daemons that set it by their own judgement."""
    enabled = {
        unit: "%s/%s/%s" % (UNITS, folder, unit)
        for folder in ("multi-user.target.wants", "graphical.target.wants")
        for unit in list_or_empty(host, "%s/%s" % (UNITS, folder))
    }
    if "tlp.service" in enabled:
        yield from _tlp(host, setting)
    if setting.target.endswith("/scaling_governor") and "cpufrequtils" in list_or_empty(host, "/etc/init.d"):
        for number, line in dropins.lines(host, CPUFREQUTILS, "#", r"^\s*GOVERNOR="):
            value = line.partition("=")[2].strip("\"' ")
            way_out = "sed -i 's/^GOVERNOR=.*/GOVERNOR={want}/' " + CPUFREQUTILS
            yield Claim(value, "%s:%d" % (CPUFREQUTILS, number), "cpufrequtils", way_out)
    for unit in setting.daemons:
        if unit in enabled:
            yield Claim(UNKNOWN, enabled[unit], "the daemon " + unit, "systemctl disable --now " + unit, manager=True)


def _tlp(host: Host, setting: Setting) -> Iterator[Claim]:
    """The last value of each variable counts; an empty one leaves the setting alone."""
    last: Dict[str, Tuple[str, str]] = {}
    for path in (TLP_DEFAULTS, *dropins.files(host, (TLP_FOLDER,)), TLP) if setting.tlp else ():
        for number, line in dropins.lines(host, path, "#"):
            name, _, value = (part.strip("\"' ") for part in line.partition("="))
            if name in setting.tlp:
                last[name] = (value, "%s:%d" % (path, number))
    for name, (value, where) in last.items():
        if value:
            way_out = "echo '%s=\"\"' >> %s && tlp start" % (name, TLP)
            yield Claim(setting.tlp[name].get(value, value), where, "TLP", way_out, manager=True)


def _edit(path: str, line: int, packaged: str = "") -> str:
    """A line to paste that takes that line out; `packaged` is for a file that the next package update would bring back."""
    if path.startswith(("/usr/", "/lib/", "/run/")):
        own = "/etc" + re.sub(r"^(/usr(/local)?)?/(lib|run)|^/run", "", path)
        return packaged or "cp %s %s && %s" % (shlex.quote(path), shlex.quote(own), _edit(own, line))
    return "sed -i '%ds/^/# /' %s" % (line, shlex.quote(path))
