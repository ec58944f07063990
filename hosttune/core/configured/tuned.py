# SPDX-License-Identifier: Apache-2.0
"""What the tuned daemon sets: the options of its active profile, with the file and line of each.

Source: tuned 2.20, profiles/merger.py and locator.py: `include` first, later options over earlier ones section by section,
/etc/tuned over /usr/lib/tuned; a section whose uname_regex or cpuinfo_regex does not match this machine is left out. Compared
once with tuned's own loader over its 37 profiles: the same options, save where a profile is included by a function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Tuple

from ..door.host import Host, list_or_empty, read_or_none
from . import dropins

ACTIVE = "/etc/tuned/active_profile"
MAIN = "/etc/tuned/tuned-main.conf"
FOLDERS = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
WANTS = "/etc/systemd/system/multi-user.target.wants"
_CONDITIONS = ("uname_regex", "cpuinfo_regex")


@dataclass(frozen=True)
class Option:
    """`plugin` is the section's type: sysctl, sysfs, cpu, vm ... A value with a variable that is not plain stays as it is."""

    plugin: str
    name: str
    value: str
    path: str
    line: int


_NONE = Option("", "", "", "", 0)


def active(host: Host) -> str:
    """The profile's name, or "" when tuned neither runs now nor will at the next boot."""
    runs = "tuned.pid" in list_or_empty(host, "/run/tuned")
    if not runs and "tuned.service" not in list_or_empty(host, WANTS):
        return ""
    return (read_or_none(host, ACTIVE) or "").strip()


def reapplies_sysctl(host: Host) -> bool:
    """Whether tuned, having set its own sysctls, sets those of sysctl.d again, which then win. On unless it is turned off."""
    said = [
        line.partition("=")[2]
        for _, line in dropins.lines(host, MAIN)
        if line.partition("=")[0].strip() == "reapply_sysctl"
    ]
    return not said or said[-1].strip().lower() in ("1", "true", "yes", "on")


def options(host: Host) -> List[Option]:
    """Every option of the active profile that holds on this machine."""
    sections: Dict[str, Dict[str, Option]] = {}
    for name in active(host).split():
        _merge(host, name, sections, ())
    variables = {option.name: option.value for option in sections.pop("variables", {}).values()}
    found = []
    for section, entries in sections.items():
        if section == "main" or not _holds(host, entries, variables):
            continue
        plugin = entries["type"].value if "type" in entries else section
        found += [
            Option(plugin, o.name, _expand(o.value, variables), o.path, o.line)
            for o in entries.values() if o.name not in ("type", "replace", *_CONDITIONS)
        ]  # fmt: skip
    return found


def _merge(host: Host, name: str, into: Dict[str, Dict[str, Option]], above: Tuple[str, ...]) -> None:
    """Lay a profile, and first those that it includes, over what is there. A profile that includes itself is cut short."""
    name = name.lstrip("-")
    if name in above:
        return
    for folder in FOLDERS:
        path = "%s/%s/tuned.conf" % (folder, name)
        if read_or_none(host, path) is not None:
            break
    else:
        return
    own = _parse(host, path)
    for included in re.split(r"[,;]", own.get("main", {}).get("include", _NONE).value):
        if included.strip():
            _merge(host, included.strip(), into, (*above, name))
    for section, entries in own.items():
        if entries.get("replace", _NONE).value.lower() in ("1", "true"):
            into[section] = {}
        into.setdefault(section, {}).update(entries)


def _parse(host: Host, path: str) -> Dict[str, Dict[str, Option]]:
    section, found = "", {}  # type: str, Dict[str, Dict[str, Option]]
    for number, line in dropins.lines(host, path):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        name, equals, value = line.partition("=")
        if equals:
            value = re.split(r"\s#", value)[0].strip().strip("\"'")
            found.setdefault(section, {})[name.strip()] = Option("", name.strip(), value, path, number)
    return found


def _expand(value: str, variables: Dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda m: variables.get(m.group(1), m.group(0)), value)


def _holds(host: Host, entries: Dict[str, Option], variables: Dict[str, str]) -> bool:
    for name in _CONDITIONS:
        wanted = _expand(entries.get(name, _NONE).value, variables)
        if wanted:
            text = " ".join(host.uname()) if name == "uname_regex" else read_or_none(host, "/proc/cpuinfo") or ""
            try:
                if not re.search(wanted, text, re.MULTILINE):
                    return False
            except re.error:
                return False
    return True
