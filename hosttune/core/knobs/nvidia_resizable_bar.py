# SPDX-License-Identifier: Apache-2.0
"""NVreg_EnableResizableBar: the NVIDIA driver makes BAR1 as large as it can when it is loaded. Default off."""

from __future__ import annotations

from ..gpu import driver
from .shape_module import module_knob

NVIDIA_RESIZABLE_BAR = module_knob(
    id="HT333",
    name="nvidia-resizable-bar",
    title="the driver's resizing of BAR1",
    module="nvidia",
    parameter="NVreg_EnableResizableBar",
    now=lambda host: (driver.params(host) or {}).get("EnableResizableBar", "unknown"),
    words={"on": "1", "off": "0"},
    default="off",
    want="on",
    skip=driver.skip,
    why="a BAR1 that covers the GPU's memory where the firmware left it small (pcie-bar1)",
    cost="where the resize fails the driver does not start on that GPU at all: have a console at hand at the next boot",
    evidence="open-gpu-kernel-modules nv-reg.h, and its pull request 1109 for the failure",
)
