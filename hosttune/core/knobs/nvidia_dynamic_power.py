# SPDX-License-Identifier: Apache-2.0
"""NVreg_DynamicPowerManagement: whether the NVIDIA driver may put an idle GPU to sleep (runtime D3). 3, the driver's default,
lets it decide by the kind of machine; 0 never."""

from __future__ import annotations

from ..gpu import driver
from .shape_module import module_knob

NVIDIA_DYNAMIC_POWER = module_knob(
    id="HT335",
    name="nvidia-dynamic-power",
    title="dynamic power management",
    module="nvidia",
    parameter="NVreg_DynamicPowerManagement",
    now=lambda host: (driver.params(host) or {}).get("DynamicPowerManagement", "unknown"),
    words={"never": "0", "coarse": "1", "fine": "2", "driver": "3"},
    default="driver",
    want="never",
    skip=driver.skip,
    why="a GPU that slept trains its link anew; on some switch boards the link drops then",
    cost="GPUs off the bus after an idle night; never costs watts at idle",
    evidence="open-gpu-kernel-modules nv-reg.h; community reports of links that flap",
)
