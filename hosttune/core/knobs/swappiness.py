# SPDX-License-Identifier: Apache-2.0
"""vm.swappiness: how readily memory goes to swap rather than page cache being dropped. 0 to 200, 60 at the start.

Source: Documentation/admin-guide/sysctl/vm.rst.
"""

from __future__ import annotations

from ..model import OPT_IN
from .shape_kept import always, whole_number
from .shape_sysctl import sysctl_knob

SWAPPINESS = sysctl_knob(
    id="HT106",
    name="swappiness",
    key="vm.swappiness",
    want="10",
    default=always("60"),
    check=whole_number(0, 200),
    recommend=OPT_IN,
    why="reading a large model fills the page cache; a low value keeps that from pushing programs out to swap",
    cost="too high: engines and guests wait for swap after a model was read; 0: out of memory comes sooner",
    evidence="tuned's throughput and latency profiles use 10; no measurement on GPU servers was found",
)
