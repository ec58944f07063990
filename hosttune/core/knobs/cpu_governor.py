# SPDX-License-Identifier: Apache-2.0
"""The frequency governor of every CPU.

Source: Documentation/admin-guide/pm/cpufreq.rst. One policy is one CPU or a group of CPUs; a virtual machine has none.
"""

from __future__ import annotations

from ..configured import cmdline
from ..door.host import Host
from .shape_kept import one_of
from .shape_sysfs import kept, sysfs_knob

POLICIES = "/sys/devices/system/cpu/cpufreq/policy*"
BY_CPU = "/sys/devices/system/cpu/cpu*/cpufreq"


def at_boot(host: Host) -> str:
    """The kernel command line, else performance if the kernel was built with it (Proxmox VE's are); else unknown, since
    drivers replace the other defaults."""
    built = cmdline.built_with(host, "CONFIG_CPU_FREQ_DEFAULT_GOV_PERFORMANCE")
    return cmdline.value(host, "cpufreq.default_governor") or ("performance" if built else "")


CPU_GOVERNOR = sysfs_knob(
    id="HT113",
    name="cpu-governor",
    title="the CPUs' frequency governor",
    want="performance",
    check=one_of("performance", "powersave", "schedutil", "ondemand", "conservative", "userspace"),
    layouts=(
        kept(
            "cpu-governor",
            POLICIES + "/scaling_governor",
            at_boot,
            offered=POLICIES + "/scaling_available_governors",
            spellings=(BY_CPU + "/scaling_governor",),
            tuned=(("cpu", "governor"),),
            tlp={"CPU_SCALING_GOVERNOR_ON_AC": {}},
            daemons=("power-profiles-daemon.service",),
            commands=(
                r"cpupower\b.*\bfrequency-set\b.*(?:-g|--governor)[\s=]*(\w+)",
                r"cpufreq-set\b.*(?:-g|--governor)[\s=]*(\w+)",
            ),
        ),
    ),
    absent="this machine shows no CPU frequencies (a virtual machine, or the firmware keeps them to itself)",
    if_ignored="the frequency driver or the firmware keeps its own: look at the power profile in the firmware's setup",
    why="between two tokens the CPU waits for the GPUs, and a governor that saves power takes that for idleness",
    cost="each token waits for cores at half their frequency",
    evidence="one community host: cores from 1.5-1.8 to 3.3 GHz with boost, and faster decoding; tuned's throughput profile",
)
