# SPDX-License-Identifier: Apache-2.0
"""vm.overcommit_memory: 0 by estimate, 1 always, 2 never more than a fixed limit.

Source: Documentation/mm/overcommit-accounting.rst.
"""

from __future__ import annotations

from ..model import REPORT
from .shape_kept import always, one_of
from .shape_sysctl import sysctl_knob

OVERCOMMIT_MEMORY = sysctl_knob(
    id="HT108",
    name="overcommit-memory",
    key="vm.overcommit_memory",
    want="0|1",
    default=always("0"),
    check=one_of("0", "1", "2"),
    recommend=REPORT,
    why="CUDA reserves address space of the size of all memory and GPUs together, most of which it never touches",
    cost="2: CUDA cannot start, or the engine dies when it allocates, while memory is free",
    evidence="kernel documentation; that CUDA then fails is inferred from the size of its reservations",
)
