# SPDX-License-Identifier: Apache-2.0
"""A container's config as PVE 8 reads and writes it: line by line, not losslessly.

This is the lab's own reading of pve-container's behaviour and shares no code with hosttune, which it is there to test. It is
held to the outputs of the real parser and writer in tests/cases/lxc, byte for byte.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field

Warn = Callable[[str], None]

_PENDING = re.compile(r"\[pve:pending\]\s*$", re.ASCII | re.IGNORECASE)
_SNAPSHOT = re.compile(r"\[([a-z][a-z0-9_-]+)\]\s*$", re.ASCII | re.IGNORECASE)
_RAW = re.compile(r"(lxc\.[a-z0-9_\-.]+)(?::|\s*=)\s*(.*?)\s*$", re.ASCII)
_DESCRIPTION = re.compile(r"description:\s*(.*\S)\s*$", re.ASCII)
_SNAPSTATE = re.compile(r"snapstate:\s*(prepare|delete)\s*$", re.ASCII)
_DELETE = re.compile(r"delete:\s*(.*\S)\s*$", re.ASCII)
_ORDINARY = re.compile(r"([a-z][a-z_]*\d*):\s*(.+?)\s*$", re.ASCII)

BOOLEANS = frozenset(("console", "debug", "onboot", "protection", "template", "unprivileged"))
_TRUE, _FALSE = frozenset(("1", "on", "yes", "true")), frozenset(("0", "off", "no", "false"))
NUMBERS = frozenset(("cores", "cpulimit", "cpuunits", "memory", "snaptime", "swap", "tty"))
_KNOWN = BOOLEANS | NUMBERS | frozenset(
    ("arch", "cmode", "features", "hookscript", "hostname", "lock", "nameserver", "ostype", "parent", "rootfs",
     "searchdomain", "snapstate", "startup", "tags", "timezone")
)  # fmt: skip
_INDEXED = {"mp": 256, "net": 32, "dev": 256, "unused": 256}

RAW_KEYS = frozenset(
    "lxc." + name
    for name in (
        "apparmor.profile apparmor.allow_incomplete apparmor.allow_nesting apparmor.raw selinux.context include arch uts.name "
        "signal.halt signal.reboot signal.stop init.cmd init.uid init.gid init.cwd pty.max console.logfile console.path "
        "tty.max devtty.dir hook.autodev autodev kmsg mount.fstab mount.entry mount.auto rootfs.mount cap.drop cap.keep "
        "seccomp.profile seccomp.notify.proxy seccomp.notify.cookie idmap hook.pre-start hook.pre-mount hook.mount "
        "hook.start hook.stop hook.post-stop hook.clone hook.destroy hook.version log.level log.file start.auto start.delay "
        "start.order group environment sysctl.fs.mqueue sysctl.kernel.msgmax sysctl.kernel.msgmnb sysctl.kernel.msgmni "
        "sysctl.kernel.sem sysctl.kernel.shmall sysctl.kernel.shmmax sysctl.kernel.shmmni sysctl.kernel.shm_rmid_forced"
    ).split()
)
_RAW_PREFIXES = ("lxc.cgroup2.", "lxc.prlimit.", "lxc.net.", "lxc.cgroup.", "lxc.limit.")


@dataclass
class Section:
    """`values`: ordinary keys; `raw`: (key, value) in their order; `description`: decoded, each line ended by a newline."""

    values: dict[str, str] = field(default_factory=dict)
    raw: list[tuple[str, str]] = field(default_factory=list)
    description: str = ""

    @property
    def empty(self) -> bool:
        return not (self.values or self.raw or self.description)


@dataclass
class Config:
    """One guest's file; text in it is latin-1 for bytes, descriptions are Unicode."""

    main: Section = field(default_factory=Section)
    pending: Section = field(default_factory=Section)
    snapshots: dict[str, Section] = field(default_factory=dict)

    def get(self, key: str, default: str = "") -> str:
        return self.main.values.get(key, default)

    @property
    def custom_idmap(self) -> bool:
        return any(key == "lxc.idmap" for key, _ in self.main.raw)

    @property
    def unprivileged(self) -> bool:
        """Runs in a user namespace: the flag, or an id map of its own."""
        return self.get("unprivileged") == "1" or self.custom_idmap

    @property
    def shift(self) -> int:
        """The host's id for the container's root; 0 when privileged."""
        for key, value in self.main.raw:
            words = value.split()
            if key == "lxc.idmap" and len(words) == 4 and words[:2] == ["u", "0"]:
                return int(words[2])
        return 100000 if self.unprivileged else 0


def parse(data: bytes, warn: Warn = lambda text: None, vmid: str = "100") -> Config:
    """Read a file. Nothing raises: what PVE cannot parse is told to `warn` in PVE's words and forgotten."""
    config = Config()
    section, pending = config.main, False
    for line in data.decode("latin-1").split("\n"):
        if not line.strip(" \t\n\r\f\v"):
            continue
        if _PENDING.match(line):
            section, pending = config.pending, True
            config.pending = section = Section()
            continue
        if header := _SNAPSHOT.match(line):
            section, pending = Section(), False
            config.snapshots.pop(header[1], None)
            config.snapshots[header[1]] = section
            continue
        _line(section, pending, line, lambda text: warn(f"vm {vmid} - {text}"))
    return config


def _line(section: Section, pending: bool, line: str, warn: Warn) -> None:
    if line.startswith("#"):
        section.description += _decode(line[1:]) + "\n"
    elif found := _RAW.match(line):
        if refusal := _refuse_raw(found[1], line):
            warn(refusal)
        else:
            section.raw.append((found[1], found[2]))
    elif found := _DESCRIPTION.match(line):
        section.description += _decode(found[1])
    elif found := _SNAPSTATE.search(line):
        section.values["snapstate"] = found[1]
    elif line.startswith("delete:"):
        if not pending:
            warn("property 'delete' is only allowed in [pve:pending]")
        elif found := _DELETE.match(line):
            section.values["delete"] = found[1]
        else:
            warn(f"unable to parse config: {line}")
    elif found := _ORDINARY.match(line):
        key, value = found[1], found[2]
        if complaint := complaint_about(key, value):
            warn(f"unable to parse value of '{key}' - {complaint}")
        section.values[key] = normal(key, value)
    else:
        warn(f"unable to parse config: {line}")


def _refuse_raw(key: str, line: str) -> str | None:
    if key == "lxc.rootfs.path":
        return f"{key}: {key} is auto generated from rootfs"
    if key == "lxc.rootfs.options":
        return f'{key}: {key} is not supported, please use mount point options in the "rootfs" key'
    if key in RAW_KEYS or key.startswith(_RAW_PREFIXES):
        return None
    return f"unable to parse config: {line}"


def known(key: str) -> bool:
    """Whether PVE 8 has a setting of that name."""
    if key in _KNOWN:
        return True
    split = re.fullmatch(r"([a-z]+)(0|[1-9]\d*)", key)
    return split is not None and int(split[2]) < _INDEXED.get(split[1], 0)


def complaint_about(key: str, value: str) -> str | None:
    """What PVE says of a value that it does not like (the lab checks the few that matter for devices and restarts)."""
    if not known(key):
        return f"unknown setting '{key}'"
    if key in BOOLEANS and value.lower() not in _TRUE | _FALSE:
        return f"type check ('boolean') failed - got '{value}'"
    if key in NUMBERS and not re.fullmatch(r"\d+(\.\d+)?", value):
        return f"type check ('integer') failed - got '{value}'"
    if re.fullmatch(r"dev\d+", key):
        try:
            device(value)
        except ValueError as refusal:
            return str(refusal)
    if key == "tags" and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_+.-]*(?:[;, ]+[A-Za-z0-9_][A-Za-z0-9_+.-]*)*", value):
        return "invalid characters in tag"
    if key == "hostname" and not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)*", value):
        return "value does not look like a valid DNS name"
    return None


def normal(key: str, value: str) -> str:
    """The value as PVE keeps it: words for yes and no become digits."""
    if key in BOOLEANS and value.lower() in _TRUE | _FALSE:
        return "1" if value.lower() in _TRUE else "0"
    return value


@dataclass(frozen=True)
class Device:
    """One dev[n] entry: mode as octal text, ids as the container counts them."""

    path: str
    mode: int = 0o660
    uid: int = 0
    gid: int = 0
    deny_write: bool = False


def device(value: str) -> Device:
    """Parse a dev[n] value. Raises ValueError in PVE's words."""
    given: dict[str, str] = {}
    for part in value.removesuffix(",").split(","):
        key, equals, text = part.partition("=")
        key, text = (key, text) if equals else ("path", part)
        if key in given:
            raise ValueError(f"duplicate key in comma-separated list property: {key}")
        given[key] = text
    unknown = sorted(set(given) - {"path", "mode", "uid", "gid", "deny-write"})
    if unknown:
        raise ValueError(f"format error\n{unknown[0]}: property is not defined in schema and the schema does not allow "
                         "additional properties")  # fmt: skip
    path = given.get("path", "")
    if not path.startswith("/dev/") or re.search(r"/\.\.?/|/\.\.?$", path):
        raise ValueError(f"format error\npath: invalid format - {path} is not a valid device path")
    if not re.fullmatch(r"0[0-7]{3}", given.get("mode", "0660")):
        raise ValueError(f"format error\nmode: value does not match the regex pattern - {given['mode']}")
    for key in ("uid", "gid"):
        if not re.fullmatch(r"\d+", given.get(key, "0")):
            raise ValueError(f"format error\n{key}: type check ('integer') failed - got '{given[key]}'")
    return Device(path, int(given.get("mode", "0660"), 8), int(given.get("uid", "0")), int(given.get("gid", "0")),
                  given.get("deny-write", "0") in _TRUE)  # fmt: skip


def properties(value: str, default: str = "") -> dict[str, str]:
    """Split `a=1,b=2`; a part without `=` is the value of `default` (`rootfs: local:200/x,size=8G` has volume there)."""
    return {key if equals else default: text if equals else key
            for key, equals, text in (part.partition("=") for part in value.split(","))}  # fmt: skip


def write(config: Config) -> bytes:
    """The file as PVE writes it: notes first, keys sorted, raw lines in their order, snapshots sorted by name."""
    config.main.values.pop("snapstate", None)  # belongs to snapshots
    used = {properties(value, "volume").get("volume") for key, value in config.main.values.items()
            if key == "rootfs" or re.fullmatch(r"mp\d+", key)}  # fmt: skip
    for key in [key for key in config.main.values if re.fullmatch(r"unused\d+", key)]:
        if config.main.values[key] in used:
            del config.main.values[key]
    text = _section(config.main)
    if not config.pending.empty:
        text += "\n[pve:pending]\n" + _section(config.pending)
    for name in sorted(config.snapshots):
        text += f"\n[{name}]\n" + _section(config.snapshots[name])
    return text.encode("latin-1")


def _section(section: Section) -> str:
    notes = section.description.rstrip("\n").split("\n") if section.description.strip("\n") else []
    return (
        "".join(f"#{encode(line)}\n" for line in notes)
        + "".join(f"{key}: {value}\n" for key, value in sorted(section.values.items()))
        + "".join(f"{key}: {value}\n" for key, value in section.raw)
    )


def _decode(text: str) -> str:
    """Undo the writer's URL encoding; `text` is latin-1 for bytes."""
    return urllib.parse.unquote_to_bytes(text.encode("latin-1")).decode("utf-8", "replace")


def encode(text: str) -> str:
    """URL-encode what PVE encodes in notes: control bytes, non-ASCII bytes, `:` and (since PVE 8) `%`."""
    return "".join(
        f"%{byte:02X}" if byte < 0x20 or byte >= 0x7F or byte in b":%" else chr(byte) for byte in text.encode("utf-8")
    )
