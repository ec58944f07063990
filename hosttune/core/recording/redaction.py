# SPDX-License-Identifier: Apache-2.0
"""A recording without what names a person or a place, so that it can be shown in public and still be replayed.

Paths and commands are keys of a recording, and are cleaned the same way as the text; what hosttune itself asks for
(/etc/pve, pve-container, a kernel release that ends in -pve) stays, even on a host that is called "pve".
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Mapping, Pattern, Tuple

_COMMON_NAMES = {"host", "pve", "proxmox", "localhost", "debian", "ubuntu", "lxc", "docker", "podman", "nvidia"}
"""Names that installers give. They name nobody, and replacing them would change what a replay understands."""

_UUID = re.compile(r"(?i)\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")

_OF_EVERYBODY = {"8be4df61-93ca-11d2-aa0d-00e098032b8c", "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"}
"""Vendors of the firmware's variables: UEFI itself and systemd-boot. They are part of names of files that hosttune asks for."""

_EVERYWHERE: Tuple[Tuple[Pattern[str], str], ...] = (
    (re.compile(r"\b([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}\b"), "00:00:00:00:00:00"),
    (re.compile(r"(?<![\w.-])(?!127\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)"), "192.0.2.1"),
    (re.compile(r"(?<![\w:])(?=[0-9A-Fa-f:]*::|(?:[0-9A-Fa-f]{1,4}:){7})[0-9A-Fa-f:]{4,39}(?![\w:])"), "2001:db8::1"),
    (re.compile(r"/home/[^/\s:]+"), "/home/user"),
    (re.compile(r"(?i)(serial[^:\n]*:\s*)\S+"), r"\1redacted"),
)
_IN_CONFIGS: Tuple[Tuple[Pattern[str], str], ...] = (
    (re.compile(r"(?m)^(hostname|searchdomain|nameserver|tags):.*$"), r"\1: redacted"),
    (re.compile(r"(?m)^(lxc\.uts\.name\s*[:=]).*$"), r"\1 redacted"),
    (re.compile(r"(?m)^(lxc\.environment[\w.]*\s*[:=]\s*(?!\s|CUDA_|NVIDIA_|NCCL_|LD_)[^=\n]*=).*$"), r"\1redacted"),
    (re.compile(r"(?m)^#.*$"), "#redacted"),
)
"""Notes, names and variables of a container's config: people write tokens there. The number of lines stays."""
_IN_INCLUDED = (re.compile(r"(?m)^(?!\s*lxc\.)[^\n]+$"), "#redacted")
"""LXC passes over what does not begin with its name: anything may stand there, in a file that lies anywhere."""
_INCLUDES = re.compile(r"(?m)^\s*lxc\.include\s*[:=]\s*[\"']?(/[^\s\"']*)")


def redact(recording: Mapping[str, Any]) -> Dict[str, Any]:
    """A copy without host names, UUIDs, MAC and IP addresses, home directories, serial numbers, notes of containers.

    UUIDs are numbered in the order in which they come, so that eight GPUs stay eight.
    """
    names = _names(recording)
    uuids: Dict[str, str] = {}
    included = tuple(_included(recording))

    def number(match: "re.Match[str]") -> str:
        if match.group(0).lower() in _OF_EVERYBODY:
            return match.group(0)
        return uuids.setdefault(match.group(0).lower(), "00000000-0000-0000-0000-%012d" % len(uuids))

    def text(value: str, patterns: Tuple[Tuple[Pattern[str], str], ...]) -> str:
        for name, into in names:
            value = name.sub(into, value)
        value = _UUID.sub(number, value)
        for pattern, into in patterns:
            value = pattern.sub(into, value)
        return value

    def more(path: str) -> Tuple[Tuple[Pattern[str], str], ...]:
        if any(path == one or path.startswith(one.rstrip("/") + "/") for one in included):
            return (_IN_INCLUDED, *_IN_CONFIGS)
        return _IN_CONFIGS if _is_config(path) else ()

    def clean(value: Any, patterns: Tuple[Tuple[Pattern[str], str], ...]) -> Any:
        if isinstance(value, str):
            return text(value, patterns)
        if isinstance(value, Mapping):
            return {text(str(k), _EVERYWHERE): clean(v, more(str(k)) + patterns) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(v, patterns) for v in value]
        return value

    out: Dict[str, Any] = clean(recording, _EVERYWHERE)
    return out


def _is_config(path: str) -> bool:
    return path.startswith(("/etc/pve/", "/var/lib/lxc/"))


def _included(value: Any) -> Iterator[str]:
    """Paths that a config of the recording includes, or an included file does."""
    if isinstance(value, str):
        yield from _INCLUDES.findall(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _included(inner)


def _names(recording: Mapping[str, Any]) -> List[Tuple[Pattern[str], str]]:
    """Each machine's own name, as a word or as a folder of Proxmox VE or LXC; a domain behind it goes with it."""
    machines = recording.get("machines", {}).values()
    found = [str(m.get("uname", "")).split(" ")[0] for m in machines if isinstance(m, Mapping)]
    short = [name.split(".")[0] for name in found if not name.endswith(".example")]
    names = [name for name in dict.fromkeys(short) if name and name.lower() not in _COMMON_NAMES]
    whole = r"(?:(?<![\w./-])|(?<=/nodes/)|(?<=/lxc/))%s(?:\.[A-Za-z][\w-]*)*(?![\w-])"
    return [
        (re.compile(whole % re.escape(name)), "host%s.example" % (n if n > 1 else ""))
        for n, name in enumerate(names, 1)
    ]
