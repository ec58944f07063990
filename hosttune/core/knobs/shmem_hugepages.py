# SPDX-License-Identifier: Apache-2.0
"""Huge pages for memory that the kernel shares by itself (shmem, memfd). Mounted tmpfs goes by its own option, huge=,
but the words deny and force override every mount.

Source: Documentation/admin-guide/mm/transhuge.rst.
"""

from __future__ import annotations

from ..configured import cmdline
from ..door.host import Host
from ..model import REPORT
from .shape_kept import one_of
from .shape_sysfs import kept, sysfs_knob


def at_boot(host: Host) -> str:
    """never, unless the command line says otherwise (since Linux 6.13)."""
    return cmdline.value(host, "transparent_hugepage_shmem") or "never"


SHMEM_HUGEPAGES = sysfs_knob(
    id="HT105",
    name="shmem-hugepages",
    title="huge pages of shared memory",
    want="never|advise|within_size|always",
    check=one_of("never", "advise", "within_size", "always", "deny", "force"),
    layouts=(kept("shmem-hugepages", "/sys/kernel/mm/transparent_hugepage/shmem_enabled", at_boot),),
    absent="this kernel has no huge pages for shared memory",
    recommend=REPORT,
    why="deny takes huge pages away from every tmpfs, hosttune's mount for models too; force gives them to every small file",
    cost="deny: copying models into memory takes about three times as long for each thread; force: 2 MiB a file",
    evidence="kernel documentation; kernel commit e1e4cfd01a6e: 1.56 GB/s with small pages, 4.72 GB/s with huge ones",
)
