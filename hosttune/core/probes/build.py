# SPDX-License-Identifier: Apache-2.0
"""Why is the nvidia module not loaded: has this kernel none, was its build cut short, was its signature refused?"""

from __future__ import annotations

import re
from typing import List

from ..catalogue import finding
from ..doctor.survey import Machine
from ..model import FAIL, FITS, PROVED, Finding, Hint, Probe, natural
from ..nextboot.kernel import headers
from .scene import Machines, below, kernels

_REFUSED = re.compile(
    r"(?:(?P<module>[\w-]+): )?(?:loading of (?:unsigned )?module.* rejected|unsigned module loading is restricted)",
    re.IGNORECASE,
)
"""Since 5.4 the kernel names the module that it refuses; before, and under lockdown, it does not."""


def run(machines: Machines) -> List[Finding]:
    """HT315, HT316."""
    return [
        f
        for machine in kernels(machines)
        if machine.majors is not None and not machine.has_nvidia
        for f in _judge(machines, machine)
    ]


def _judge(machines: Machines, machine: Machine) -> List[Finding]:
    around, where = machine.around, below(machines, machine)
    refused = [(line, match.group("module")) for line in around.log or () for match in [_REFUSED.search(line)] if match]
    ours = [line for line, module in refused if (module or "").lower().startswith("nvidia")]
    nameless = [
        line for line, module in refused if (module or "lockdown").lower() in ("lockdown", "modprobe", "insmod")
    ]
    have = sorted((release for release, built in around.built.items() if built), key=natural)
    if machine.kind == "host" and around.built.get(around.release) is False:
        states = [line for line in around.commands.get("dkms", "").splitlines() if line.startswith("nvidia")]
        added = [
            line for line in states if ": added" in line and around.release in line or line.rstrip().endswith(": added")
        ]
        why = (
            "its build was not finished" if added else "it was built for %s" % have[-1] if have else "none is installed"
        )
        evidence = ["modinfo -k %s nvidia: not found" % around.release]
        evidence += ["/lib/modules: %s has one" % ", ".join(have[-3:])] if have else []
        evidence += ["dkms status: %s" % line for line in added[:1]]
        return [
            finding(
                "HT315",
                FAIL,
                "nvidia",
                "the running kernel %s has no nvidia module: %s" % (around.release, why),
                have="absent",
                want="built for %s" % around.release,
                proof=PROVED,
                evidence=tuple(evidence),
                machine=machine.key,
                hint=Hint(
                    "apt install %s && dkms autoinstall -k %s && modprobe nvidia"
                    % (headers(around.release), around.release),
                    where,
                    "nothing is restarted; or boot a kernel that has it" + (": " + have[-1] if have else ""),
                    "apply",
                ),
            )
        ]
    if ours or nameless:
        return [
            finding(
                "HT316",
                FAIL,
                "nvidia",
                "the kernel refused the module's signature",
                have="refused",
                want="signed by an enrolled key",
                proof=PROVED if ours else FITS,
                decide="" if ours else "modprobe nvidia   # Key was rejected by service: that is it",
                evidence=(
                    "kernel log: %s" % (ours or nameless)[-1].strip()[:200],
                    "/proc/devices: no driver has major 195",
                ),
                machine=machine.key,
                hint=Hint(
                    "mokutil --import /var/lib/dkms/mok.pub",
                    where,
                    "a reboot, and a confirmation at the console; or turn Secure Boot off",
                    "reboot",
                ),
            )
        ]
    return []


PROBE = Probe("build", ("gpu",), run)
