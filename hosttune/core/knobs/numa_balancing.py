# SPDX-License-Identifier: Apache-2.0
"""kernel.numa_balancing, now and after the next boot.

Source: Documentation/admin-guide/sysctl/kernel.rst. 0 off, 1 normal, 2 memory tiering, 3 both. A kernel with several
nodes boots with 1; a kernel without NUMA has no such file.
"""

from __future__ import annotations

from typing import Dict

from .. import container
from ..host import Host, read_or_none
from ..model import Knob, Reading, Refused, Step
from ..sysctl import assignments

KEY = "kernel.numa_balancing"
NOW = "/proc/sys/kernel/numa_balancing"
BOOT = "/etc/sysctl.d/90-hosttune-numa-balancing.conf"
TEXT = "# hosttune: kept at this value over reboots. `hosttune revert` takes the file away.\n%s = %s\n"


def read(host: Host) -> Dict[str, Reading]:
    """{"now": the kernel's value, "boot": what sysctl.d will set, "unset" if nothing does}."""
    return {"now": Reading(host.read(NOW).strip()), "boot": Reading(_at_boot(host))}


def _at_boot(host: Host) -> str:
    found = assignments(host, KEY)
    if found:
        return found[-1].value or ""
    cmdline = (read_or_none(host, "/proc/cmdline") or "").split()
    return "0" if "numa_balancing=disable" in cmdline else "unset"


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Now: a write to /proc/sys. Boot: a file of our own; refused while another file would override it."""
    if subject == "now":
        return Step(ID, subject, "poke", NOW, have, want)
    found = assignments(host, KEY)
    last = found[-1] if found else None
    if last and last.path.rpartition("/")[2] > BOOT.rpartition("/")[2] or last and last.path == "/etc/sysctl.conf":
        raise Refused(
            "another file sets it later",
            "%s:%d" % (last.path, last.line),
            "take the line `%s = %s` out of %s (or change it there)" % (KEY, last.value, last.path),
        )
    return Step(ID, subject, "replace", BOOT, read_or_none(host, BOOT), TEXT % (KEY, want))


def skip(host: Host) -> str:
    """Not in a container, and not on a kernel without NUMA balancing."""
    inside = container.inside(host)
    if inside:
        return "set on the host, not inside a container (%s)" % inside
    return "" if read_or_none(host, NOW) is not None else "this kernel has no automatic NUMA balancing"


def check(want: str) -> str:
    """The kernel takes 0 to 3."""
    return "" if want in ("0", "1", "2", "3") else "%s is none of 0, 1, 2, 3" % want


ID = "HT101"
NUMA_BALANCING = Knob(
    id=ID,
    name="numa-balancing",
    title=KEY,
    want="0",
    read=read,
    step=step,
    check=check,
    skip=skip,
    why="page-fault sampling moves pages of pinned workers between the nodes and adds jitter to host-to-device copies",
)
