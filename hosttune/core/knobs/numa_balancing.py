# SPDX-License-Identifier: Apache-2.0
"""kernel.numa_balancing: whether the kernel samples memory by page faults and moves pages to the node that uses them.

Source: Documentation/admin-guide/sysctl/kernel.rst. 0 off, 1 normal, 2 memory tiering, 3 both. A kernel with several
nodes boots with 1; a kernel without NUMA has no such file.
"""

from __future__ import annotations

from ..configured import cmdline
from ..door.host import Host, read_or_none
from .shape_kept import one_of
from .shape_sysctl import sysctl_knob

NOW, NODES = "/proc/sys/kernel/numa_balancing", "/sys/devices/system/node/online"


def at_boot(host: Host) -> str:
    """The command line's word. Without one a kernel with a single node leaves it off, and with several it is not told:
    mm/mempolicy.c, check_numabalancing_enable."""
    said = {"disable": "0", "enable": "1"}.get(cmdline.value(host, "numa_balancing") or "", "")
    off_by_itself = not said and host.read(NOW).strip() == "0" and (read_or_none(host, NODES) or "").strip() == "0"
    return "0" if off_by_itself else said


NUMA_BALANCING = sysctl_knob(
    id="HT101",
    name="numa-balancing",
    key="kernel.numa_balancing",
    want="0",
    default=at_boot,
    check=one_of("0", "1", "2", "3"),
    absent="this kernel has no automatic NUMA balancing",
    why="page-fault sampling moves pages of pinned workers between the nodes and adds jitter to host-to-device copies",
    cost="jitter in every step; off, it is large workloads that are not pinned to a node that run slower",
    evidence="kernel documentation: off where memory is already placed; NVIDIA's Grace guide; part of the founding bundle,"
    " not measured alone",
)
