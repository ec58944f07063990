# SPDX-License-Identifier: Apache-2.0
"""Lines that give a container GPUs which it is not declared to have.

Only where GPUs are declared one by one, and all of those are there: numbers of /dev/nvidiaN are given anew at each load of
the driver, so while a declared GPU is missing nobody can say that another number is not it.
"""

from __future__ import annotations

import re
from typing import Dict, List, Tuple

from ..machine.devices import DeviceTable
from .document import Line
from .entries import ALLOW, Entries
from .needs import Wanted, absent_gpus
from .rules import Rule

_GPU = re.compile(r"/dev/nvidia(\d+)\Z")


def undeclared(have: Entries, wanted: Wanted, devices: DeviceTable) -> Dict[int, str]:
    """{line number: why it must go}: entries and rules of other GPUs, and a rule for all of them where some are declared."""
    if not wanted.gpus or absent_gpus(have, wanted, devices):
        return {}
    out: Dict[int, str] = {}
    for line, path in named(have):
        match = _GPU.match(path)
        if match and int(match.group(1)) not in wanted.gpus:
            out[line.number] = "GPU %s is not declared" % match.group(1)
    if have.free or have.everything:
        return out
    for line, rule in numeric(have, devices):
        if rule.minor is None and opens_more(wanted, devices):
            count = len(wanted.gpus)
            out[line.number] = "it opens all %d GPUs, and %d %s declared" % (
                len(devices.gpus()), count, "is" if count == 1 else "are")
        elif rule.minor is not None and rule.minor < 254 and rule.minor not in wanted.gpus:
            out[line.number] = "GPU %d is not declared" % rule.minor
    return out


def opens_more(wanted: Wanted, devices: DeviceTable) -> bool:
    """Whether a rule for every GPU opens one that is not declared."""
    return bool(wanted.gpus) and bool(set(devices.gpus()) - set(wanted.gpus or ()))


def named(have: Entries) -> List[Tuple[Line, str]]:
    """Every entry and path rule, with the node that it is about. A GPU shown at the place of another is somebody's intent."""
    out = [(line, entry.path) for line, entry in have.devs]
    out += [(line, mount.source) for line, mount in have.mounts if mount.is_bind and mount.target == mount.source]
    return out + [(line, rule.path) for line, rule in have.rules if line.key == ALLOW and rule.path]


def numeric(have: Entries, devices: DeviceTable) -> List[Tuple[Line, Rule]]:
    """Numeric allow rules for the GPUs' own major."""
    return [(line, rule) for line, rule in have.nvidia_rules(devices) if rule.major == devices.major("nvidia")]
