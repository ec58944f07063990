# SPDX-License-Identifier: Apache-2.0
"""NVreg_EnablePCIERelaxedOrderingMode: the GPU marks all its writes to PCIe as relaxed. Default off."""

from __future__ import annotations

from ..gpu import driver
from .shape_module import module_knob

NVIDIA_RELAXED_ORDERING = module_knob(
    id="HT334",
    name="nvidia-relaxed-ordering",
    title="forced relaxed ordering",
    module="nvidia",
    parameter="NVreg_EnablePCIERelaxedOrderingMode",
    now=lambda host: (driver.params(host) or {}).get("EnablePCIERelaxedOrderingMode", "unknown"),
    words={"on": "1", "off": "0"},
    default="off",
    want="on",
    skip=driver.skip,
    why="writes across sockets need not wait for each other",
    cost="code that relies on the order of its writes over PCIe may read old data: test results, not only speed",
    evidence="open-gpu-kernel-modules nv-reg.h; a gain for peer-to-peer on AMD is unproven",
)
