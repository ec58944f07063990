# SPDX-License-Identifier: Apache-2.0
"""Huge pages for ordinary memory. Not for tmpfs: that has an option of its own, huge=, and hosttune's mount has it set.

Source: Documentation/admin-guide/mm/transhuge.rst; the kernel starts with what it was built with.
"""

from __future__ import annotations

from ..configured import cmdline
from ..door.host import Host
from ..machine import sysfs
from ..model import REPORT
from .shape_kept import one_of
from .shape_sysfs import kept, sysfs_knob

FILE = "/sys/kernel/mm/transparent_hugepage/enabled"


def at_boot(host: Host) -> str:
    """The kernel command line, else the kernel's build, else what is there now: nothing was found that would change it."""
    said = cmdline.value(host, "transparent_hugepage")
    built = [
        w
        for w in ("always", "madvise", "never")
        if cmdline.built_with(host, "CONFIG_TRANSPARENT_HUGEPAGE_" + w.upper())
    ]
    return said or (built or [sysfs.value(host, FILE)])[0]


TRANSPARENT_HUGEPAGES = sysfs_knob(
    id="HT104",
    name="transparent-hugepages",
    title="transparent huge pages",
    want="madvise|always",
    check=one_of("always", "madvise", "never"),
    layouts=(
        kept(
            "transparent-hugepages",
            FILE,
            at_boot,
            tuned=(("vm", "transparent_hugepages"), ("vm", "transparent_hugepage")),
        ),
    ),
    absent="this kernel has no transparent huge pages",
    recommend=REPORT,
    why="engines ask for huge pages where they help (madvise); never takes them away from all",
    cost="more page faults and TLB misses while weights are loaded and moved to the GPUs",
    evidence="kernel documentation; no measurement on GPU servers was found",
)
