# SPDX-License-Identifier: Apache-2.0
"""Huge pages that are set aside for hugetlbfs and that nobody uses: memory that tmpfs and page cache cannot have.

Source: Documentation/admin-guide/mm/hugetlbpage.rst. Proxmox VE sets pages aside for a VM with `hugepages:` while it runs;
those are in use, and no finding.
"""

from __future__ import annotations

import shlex
from typing import Dict, Tuple

from ..configured import cmdline, sysctl
from ..door.host import Host, list_or_empty
from ..model import Reading
from .shape_kept import whole_number
from .shape_report import report_knob

FOLDER = "/sys/kernel/mm/hugepages"


def read(host: Host) -> Dict[str, Reading]:
    """{"hugepages-2048kB": pages set aside}; a skip while all of them are in use."""
    found = {}
    for name in list_or_empty(host, FOLDER):
        total, free = (int(host.read("%s/%s/%s" % (FOLDER, name, file))) for file in ("nr_hugepages", "free_hugepages"))
        who = _who(host, name)
        if total and not free:
            found[name] = Reading(str(total), skip="%d pages are set aside, and all are in use" % total, where=who)
        else:
            found[name] = Reading(str(total), where=who if total else "")
    return found


def _who(host: Host, name: str) -> str:
    """What sets them aside, as far as that can be told."""
    if cmdline.value(host, "hugepages") is not None:
        return "%s: hugepages=%s" % (cmdline.NOW, cmdline.value(host, "hugepages"))
    lines = sysctl.assignments(host, "vm.nr_hugepages")
    return "%s:%d" % (lines[-1].path, lines[-1].line) if lines else "%s/%s/nr_hugepages" % (FOLDER, name)


def by_hand(host: Host, subject: str, want: str) -> Tuple[str, str]:
    """The edit for the next boot when something sets them aside there, else the write."""
    now = "echo %s > %s/%s/nr_hugepages" % (want, FOLDER, subject)
    if cmdline.value(host, "hugepages") is not None:
        where, line = cmdline.edit(host, drop="hugepages")
        return where, "%s && %s" % (now, line)
    lines = sysctl.assignments(host, "vm.nr_hugepages")
    if lines:
        where = "%s:%d" % (lines[-1].path, lines[-1].line)
        return where, "%s && sed -i '%ds/=.*/= %s/' %s" % (now, lines[-1].line, want, shlex.quote(lines[-1].path))
    return "%s/%s/nr_hugepages" % (FOLDER, subject), now


RESERVED_HUGEPAGES = report_knob(
    id="HT110",
    name="reserved-hugepages",
    title="number of huge pages set aside",
    want="0",
    check=whole_number(0, 1 << 40),
    read=read,
    by_hand=by_hand,
    absent=lambda host: "" if list_or_empty(host, FOLDER) else "this kernel has no hugetlbfs",
    persists="/etc/sysctl.d or kernel command line",
    why="memory set aside for hugetlbfs is lost to models in tmpfs and to the page cache",
    cost="staged models find less memory than the machine has",
    evidence="kernel documentation",
)
