# SPDX-License-Identifier: Apache-2.0
"""What the loaded NVIDIA driver says of itself in /proc: /proc/driver/nvidia/params, and what of it is not loaded.

A parameter is called NVreg_EnableMSI where it is set and EnableMSI where it is told; one has another name there
(kernel-open/nvidia/nv-reg.h, nv-procfs.c).
"""

from __future__ import annotations

import re
from typing import Dict, Optional

from ..door.host import Host, read_or_none
from ..machine import container

PARAMS = "/proc/driver/nvidia/params"
PREFIX = "NVreg_"
OTHER_NAME = {"RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}


def params(host: Host) -> Optional[Dict[str, str]]:
    """{"EnableMSI": "1", "RegistryDwords": "..."} as the loaded driver has them; None when it is not loaded."""
    text = read_or_none(host, PARAMS)
    if text is None:
        return None
    rows = (re.match(r"(\w+):\s*(.*?)\s*\Z", line) for line in text.splitlines())
    return {row.group(1): row.group(2).strip('"') for row in rows if row}


def told_as(parameter: str) -> str:
    """The name in /proc of a parameter as modprobe.d names it; "" for what is none of this driver's."""
    name = parameter[len(PREFIX) :] if parameter.startswith(PREFIX) else ""
    return OTHER_NAME.get(name, name)


def skip(host: Host) -> str:
    """Not in a container, and not without the driver."""
    inside = container.inside(host)
    if inside:
        return "set on the host, not inside a container (%s)" % inside
    return "" if read_or_none(host, PARAMS) is not None else "the nvidia module is not loaded"
