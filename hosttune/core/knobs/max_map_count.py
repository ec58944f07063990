# SPDX-License-Identifier: Apache-2.0
"""vm.max_map_count: how many memory mappings one process may have. 65530 at the start.

Source: Documentation/admin-guide/sysctl/vm.rst.
"""

from __future__ import annotations

from ..model import OPT_IN
from .shape_kept import always, whole_number
from .shape_sysctl import sysctl_knob


def at_least(have: str, want: str) -> bool:
    """A larger limit will do."""
    return have.isdecimal() and int(have) >= int(want)


MAX_MAP_COUNT = sysctl_knob(
    id="HT107",
    name="max-map-count",
    key="vm.max_map_count",
    want="1048576",
    default=always("65530"),
    check=whole_number(65530, 2147483647),
    meets=at_least,
    recommend=OPT_IN,
    why="models in many files and many compiled kernels are mapped one by one",
    cost="too low: mmap fails with ENOMEM while memory is free, and the engine dies during its start",
    evidence="kernel documentation; no measurement on GPU servers was found",
)
