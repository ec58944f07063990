# SPDX-License-Identifier: Apache-2.0
"""Is there a GPU on the PCI bus, and is it the nvidia driver that has it?"""

from __future__ import annotations

import shlex
from typing import List

from ..catalogue import finding
from ..doctor.survey import Machine
from ..model import ERROR, FAIL, FITS, OK, PROVED, SKIP, WARN, Finding, Hint, Probe
from ..pci.bus import DEVICES, Gpu, device_of
from . import log
from .scene import Machines, kernels


def run(machines: Machines) -> List[Finding]:
    """HT301, HT304."""
    return [f for machine in kernels(machines) for f in _judge(machines, machine)]


def _judge(machines: Machines, machine: Machine) -> List[Finding]:
    if machine.gpus is None:
        why = machine.unknown("gpus on pci")
        return [finding("HT903", ERROR, "gpus", "GPUs on the PCI bus could not be listed: " + why, machine=machine.key)]
    if not machine.gpus and machine.minors:
        # A container whose /sys hides PCI; the driver itself names its GPUs.
        return [finding("HT301", OK, "gpus", "the driver names %d GPUs" % len(machine.minors), machine=machine.key)]
    if not machine.gpus:
        return [
            finding(
                "HT301",
                FAIL,
                "gpus",
                "no NVIDIA GPU is on the PCI bus",
                have="0",
                want="at least 1",
                proof=PROVED,
                evidence=("%s: no function of vendor 10de with class 0300 or 0302" % DEVICES,),
                hint=Hint(
                    "dmesg | grep -i -e nvrm -e d3cold",
                    "host",
                    "a full power cycle, not a reboot, brings "
                    "a GPU back that is stuck in D3cold; else look at seat, riser and power",
                    "look",
                ),
                machine=machine.key,
            )
        ]
    ours = [gpu for gpu in machine.gpus if gpu.driver == "nvidia"]
    found = [
        f
        for gpu in machine.gpus
        if gpu.driver != "nvidia"
        for f in _bound_elsewhere(machines, machine, gpu, bool(ours))
    ]
    if ours:
        found.append(
            finding(
                "HT301",
                OK,
                "gpus",
                "%d of %d GPUs on the PCI bus are bound to nvidia" % (len(ours), len(machine.gpus)),
                have=str(len(ours)),
                machine=machine.key,
            )
        )
    return found


def _bound_elsewhere(machines: Machines, machine: Machine, gpu: Gpu, others: bool) -> List[Finding]:
    link = "%s/%s/driver" % (DEVICES, gpu.bdf)
    if gpu.driver == "vfio-pci":
        place = machine.vm_gpus.get(device_of(gpu.bdf), "")
        evidence = (link + " -> vfio-pci",) + ((place + " gives it to a virtual machine",) if place else ())
        why = "%s belongs to a virtual machine (vfio-pci)" % gpu.bdf
        if others:
            status = SKIP if place else WARN
            return [
                finding(
                    "HT304", status, gpu.bdf, why, have="vfio-pci", proof=PROVED, evidence=evidence, machine=machine.key
                )
            ]
        return [
            finding(
                "HT304",
                FAIL,
                gpu.bdf,
                why + ", and no GPU is left for this host",
                have="vfio-pci",
                want="nvidia",
                proof=PROVED,
                evidence=evidence,
                machine=machine.key,
                hint=Hint(
                    "cat /etc/modprobe.d/*vfio*",
                    "host",
                    "giving it back takes it away from the virtual machine and needs a reboot",
                    "look",
                ),
            )
        ]
    if gpu.driver:
        return [
            finding(
                "HT304",
                FAIL,
                gpu.bdf,
                "%s is bound to %s" % (gpu.bdf, gpu.driver),
                have=gpu.driver,
                want="nvidia",
                proof=PROVED,
                evidence=("%s -> %s" % (link, gpu.driver),),
                machine=machine.key,
                hint=Hint(
                    "echo %s > /etc/modprobe.d/hosttune-blacklist.conf && update-initramfs -u"
                    % shlex.quote("blacklist " + gpu.driver),
                    "host",
                    "a reboot",
                    "reboot",
                ),
            )
        ]
    if machine.module == "" or not machine.has_nvidia:
        return []  # the module probe names the cause
    because = log.causes(machines, gpu.bdf)
    if because:
        told = "%s has no driver although nvidia is loaded" % gpu.bdf
        return [finding("HT304", SKIP, gpu.bdf, told, have="none", want="nvidia", because=because, machine=machine.key)]
    return [
        finding(
            "HT304",
            FAIL,
            gpu.bdf,
            "%s has no driver although nvidia is loaded: the driver gave it up" % gpu.bdf,
            have="none",
            want="nvidia",
            proof=FITS,
            decide="dmesg | grep NVRM",
            evidence=("%s is absent" % link, "/sys/module/nvidia/version is %s" % machine.module),
            hint=Hint("dmesg | grep NVRM", "host", "", "look"),
            machine=machine.key,
        )
    ]


PROBE = Probe("gpu", (), run)
