# SPDX-License-Identifier: Apache-2.0
"""How much memory a service may lock: systemd's DefaultLimitMEMLOCK, for units that say nothing of their own.

Units that hosttune renders have LimitMEMLOCK already. This one is for all others: the units that start containers hand it
down, and root of an unprivileged container cannot raise it. In force for what is started after
`systemctl daemon-reexec`. Source: systemd-system.conf(5); limits of PAM do not reach services.
"""

from __future__ import annotations

import re

from ..model import OPT_IN
from .shape_systemd import systemd_knob

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> float:
    """Bytes of "8M" (of "8M:infinity" the first: what a process starts with). -1 for what is no size."""
    first = text.partition(":")[0]
    if first == "infinity":
        return float("inf")
    found = re.fullmatch(r"([0-9]{1,20})([KMGT]?)", first)
    return int(found.group(1)) * _UNITS[found.group(2)] if found else -1


def possible(want: str) -> bool:
    """Whether systemd takes it: a size below 2^64 - 1, or two of them of which the second, the most that may be asked for, is
    not the smaller one. Anything else it ignores with a warning."""
    sizes = [size(part) for part in want.split(":")]
    known = all(part == "infinity" or 0 <= each < (1 << 64) - 1 for part, each in zip(want.split(":"), sizes))
    return known and len(sizes) <= 2 and sizes == sorted(sizes)


MEMLOCK = systemd_knob(
    id="HT109",
    name="memlock",
    file="system.conf",
    section="Manager",
    key="DefaultLimitMEMLOCK",
    want="infinity",
    default="8M",
    check=lambda want: (
        "" if possible(want) else "%s is neither infinity nor a size such as 8G" % (want or "an empty text")
    ),
    meets=lambda have, want: size(have) >= size(want),
    recommend=OPT_IN,
    why="RDMA and programs that lock their buffers need it in services that were not rendered by hosttune, and in containers",
    cost="too low: registering memory fails with ENOMEM; the NVIDIA driver itself pins memory without asking for it",
    evidence="NCCL's documentation asks for it with InfiniBand; read in the open driver: not needed for CUDA alone",
)
