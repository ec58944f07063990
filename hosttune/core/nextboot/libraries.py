# SPDX-License-Identifier: Apache-2.0
"""The driver's libraries, on the host and inside containers, beside the module that the next boot loads (HT708).

One version of both or CUDA does not start (803, NVML 18). A package update changes the host's half at once and the loaded
module at the next boot; a container's half stays where it was.
"""

from __future__ import annotations

import re
import shlex
from typing import List, Optional, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host, errname, list_or_empty, read_or_none
from ..lxc import store
from ..lxc.see import running_pid
from ..model import ERROR, FAIL, OK, PROVED, SKIP, Finding, Hint
from .guests import Guest
from .module import Module

FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
)
CDI = "/etc/cdi"
_NAMED = re.compile(r"libcuda\.so\.(\d{3,}\.\d+(?:\.\d+)?)\b")
_LIBCUDA = re.compile(r"libcuda\.so\.(\d{3,}\.\d+(?:\.\d+)?)\Z")


def judge(host: Host, module: Module, guests: Sequence[Guest]) -> List[Finding]:
    """HT708 for the host, and for each container that uses GPUs."""
    if not module.version:
        return [
            finding(
                "HT903", ERROR, "libraries", "modinfo tells no version of %s: nothing to compare with" % module.path
            )
        ]
    found = [_compare(host, "", "host", "host", module)] if any(_versions(host, "")) else []
    for guest in guests:
        if guest.uses_nvidia:
            found.append(_guest(host, guest, module))
    return found + _specs(host, module)


def _specs(host: Host, module: Module) -> List[Finding]:
    """CDI specs of /etc/cdi: each names the driver's libraries by their version, and a container that uses it binds them."""
    for name in list_or_empty(host, CDI):
        path = "%s/%s" % (CDI, name)
        if not name.endswith((".yaml", ".json")):
            continue  # nobody reads it
        for number, line in enumerate((read_or_none(host, path) or "").splitlines(), 1):
            found = _NAMED.search(line)
            if found and found.group(1) != module.version:
                return [
                    finding(
                        "HT708",
                        FAIL,
                        path,
                        "it names libraries %s, and the next boot loads nvidia %s" % (found.group(1), module.version),
                        have=found.group(1),
                        want=module.version,
                        proof=PROVED,
                        evidence=("%s:%d %s" % (path, number, line.strip()[:100]), module.path),
                        hint=Hint(
                            "nvidia-ctk cdi generate --output=%s" % shlex.quote(path),
                            "host",
                            "after the reboot; containers must be made anew",
                        ),
                    )
                ]
    return []


def _guest(host: Host, guest: Guest, module: Module) -> Finding:
    key = "ct:" + guest.id
    pid = running_pid(host, store.find(host, guest.id))
    if not pid:
        return finding(
            "HT708",
            SKIP,
            key,
            "it does not run: its libraries cannot be seen from here",
            machine=key,
            decide="hosttune doctor --next-boot   # while it runs",
        )
    try:
        return _compare(host, "/proc/%d/root" % pid, key, key, module)
    except OSError as e:
        return finding(
            "HT903",
            ERROR,
            key,
            "its libraries could not be looked at: %s" % errname(e),
            machine=key,
            hint=Hint("sudo hosttune doctor --next-boot", "host", "", "look"),
        )


def _versions(host: Host, root: str) -> Tuple[Tuple[str, str], ...]:
    """(path, version) of every libcuda below a root, the newest last."""
    found = []
    for folder in FOLDERS:
        try:
            names = host.list(root + folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found += [
            ("%s/%s" % (folder, name), match.group(1)) for name in names for match in [_LIBCUDA.match(name)] if match
        ]
    return tuple(sorted(set(found), key=lambda row: [int(n) for n in row[1].split(".")]))


def _compare(host: Host, root: str, subject: str, machine: str, module: Module) -> Finding:
    found = _versions(host, root)
    if not found:
        return finding("HT708", SKIP, subject, "no libcuda is there: nothing to compare", machine=machine)
    fitting: Optional[Tuple[str, str]] = next((row for row in found if row[1] == module.version), None)
    if fitting:
        return finding(
            "HT708",
            OK,
            subject,
            "its libraries are %s, as the module that will load" % fitting[1],
            have=fitting[1],
            want=module.version,
            evidence=(fitting[0],),
            machine=machine,
        )
    path, version = found[-1]
    inside = machine != "host"
    return finding(
        "HT708",
        FAIL,
        subject,
        "its libraries are %s, and the next boot loads nvidia %s" % (version, module.version),
        have=version,
        want=module.version,
        proof=PROVED,
        machine=machine,
        evidence=(root + path, "%s: version %s" % (module.path, module.version)),
        hint=Hint(
            "ls -l %s   # install the driver's user-space part, version %s%s"
            % (shlex.quote(path), module.version, " (without kernel modules)" if inside else ""),
            machine,
            "running programs keep the old library until they are started again",
            "look",
        ),
    )
