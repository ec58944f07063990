# SPDX-License-Identifier: Apache-2.0
"""Whether the loaded NVIDIA driver has the parameters that this machine sets for it: modprobe.d and the kernel command line
against /proc/driver/nvidia/params, which is the truth.

They differ when the module was loaded before the file was written, or from an initramfs with an older copy; and a name that
the driver does not know is ignored with one line in the kernel log.
"""

from __future__ import annotations

import shlex
from typing import Dict

from ..configured import module_options
from ..configured.module_options import Option
from ..door.host import Host
from ..gpu import driver
from ..model import REPORT, Knob, Reading, Refused, Step

WANT = "as configured"


def read(host: Host) -> Dict[str, Reading]:
    """{parameter: "as configured", or what the driver has and the file says}; "nvidia" alone when nothing is configured."""
    loaded = driver.params(host) or {}
    last = {option.parameter: option for option in module_options.options(host, "nvidia")}
    if not last:
        return {"nvidia": Reading(WANT, where="nothing sets a parameter of it")}
    return {name: Reading(_have(option, loaded), where=option.where) for name, option in last.items()}


def _have(option: Option, loaded: Dict[str, str]) -> str:
    has = loaded.get(driver.told_as(option.parameter))
    if has is None:
        return "not told by the loaded driver"
    return WANT if module_options.same(has, option.value) else "%s, configured is %s" % (has, option.value)


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Never written: what is configured is the owner's."""
    if have.startswith("not told"):
        raise Refused("the driver may not know it", subject, "modinfo -p nvidia | grep %s" % shlex.quote(subject))
    raise Refused("a module takes it when it is loaded", subject, "update-initramfs -u  # then reboot")


NVIDIA_MODULE_PARAMETERS = Knob(
    id="HT331",
    name="nvidia-module-parameters",
    title="parameter of the nvidia module",
    want=WANT,
    read=read,
    step=step,
    check=lambda want: "" if want == WANT else "%s cannot be wanted: %s" % (want, WANT),
    skip=driver.skip,
    recommend=REPORT,
    why="a parameter that never reached the driver does nothing, and nothing says so",
    cost="whatever the parameter was set for",
    evidence="open-gpu-kernel-modules nv-procfs.c: the file shows what the driver goes by",
    persists="/etc/modprobe.d",
)
