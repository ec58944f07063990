# SPDX-License-Identifier: Apache-2.0
"""vm.zone_reclaim_mode: whether a full NUMA node throws its page cache away before it takes memory of the other node.

Source: Documentation/admin-guide/sysctl/vm.rst. Bits 1 reclaim, 2 write dirty pages out, 4 swap; 0 since Linux 3.16.
"""

from __future__ import annotations

from .shape_kept import always, whole_number
from .shape_sysctl import sysctl_knob

ZONE_RECLAIM_MODE = sysctl_knob(
    id="HT103",
    name="zone-reclaim-mode",
    key="vm.zone_reclaim_mode",
    want="0",
    default=always("0"),
    check=whole_number(0, 7),
    absent="this kernel has no NUMA",
    why="a full node takes memory of the other node at once, in place of throwing away its own page cache first",
    cost="staging of models crawls while one node is full, and what was cached of them is read from disk again",
    evidence="kernel documentation: off where the page cache matters; tuned's profile hpc-compute turns it on",
)
