# SPDX-License-Identifier: Apache-2.0
"""A fact of each GPU that is read and judged and never written: hardware, or what the kernel and the driver decide."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

from ..door.host import Host
from ..gpu import own
from ..model import REPORT, Knob, Reading, Step


def gpu_report(
    *, want: str, one: Callable[[Host, str], Reading], step: Callable[[Host, str, str, str], Step], **more: Any
) -> Knob:
    """A knob over every GPU of this host. want: the one thing that can be wanted. one(host, bdf) reads one GPU and may raise
    Unreadable and OSError; step raises Refused with the way out."""
    return Knob(
        want=want,
        read=partial(own.each, one=one),
        read_one=own.reader(one),
        step=step,
        check=lambda wanted: "" if wanted == want else "%s cannot be wanted: %s" % (wanted, want),
        skip=own.skip,
        recommend=REPORT,
        **more,
    )
