# SPDX-License-Identifier: Apache-2.0
"""The energy-performance preference (EPP) of every CPU: a hint to the hardware, which chooses the frequency itself.

Source: Documentation/admin-guide/pm/amd-pstate.rst, intel_pstate.rst. Only drivers in active mode have it; under the
governor performance it is performance, and writing it is refused (EBUSY).
"""

from __future__ import annotations

from ..model import OPT_IN
from .cpu_governor import BY_CPU, POLICIES
from .shape_kept import one_of
from .shape_sysfs import kept, sysfs_knob

CPU_ENERGY_PREFERENCE = sysfs_knob(
    id="HT114",
    name="cpu-energy-preference",
    title="the CPUs' energy-performance preference",
    want="performance",
    check=one_of("performance", "balance_performance", "balance_power", "power", "default"),
    layouts=(
        kept(
            "cpu-energy-preference",
            POLICIES + "/energy_performance_preference",
            offered=POLICIES + "/energy_performance_available_preferences",
            spellings=(BY_CPU + "/energy_performance_preference",),
            tuned=(("cpu", "energy_performance_preference"),),
            tlp={"CPU_ENERGY_PERF_POLICY_ON_AC": {}},
            daemons=("power-profiles-daemon.service",),
        ),
    ),
    absent="the frequency driver has no such preference",
    recommend=OPT_IN,
    if_ignored="under the governor performance the driver keeps its own and refuses others",
    why="for those who keep the governor powersave: the hardware then still prefers speed. cpu-governor makes it needless",
    cost="as cpu-governor's, where the governor is powersave",
    evidence="kernel documentation; no measurement on GPU servers was found",
)
