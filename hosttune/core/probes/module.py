# SPDX-License-Identifier: Apache-2.0
"""Are nvidia and nvidia-uvm loaded? /proc/devices is the authority: a module that is loaded has its numbers there."""

from __future__ import annotations

from typing import List

from ..catalogue import finding
from ..doctor.survey import Machine
from ..machine.devices import NVIDIA_STATIC_MAJOR, UVM
from ..model import ERROR, FAIL, FITS, OK, PROVED, Finding, Hint, Probe
from .scene import Machines, below, kernels


def run(machines: Machines) -> List[Finding]:
    """HT302, HT303."""
    return [_judge(machines, machine) for machine in kernels(machines)]


def _judge(machines: Machines, machine: Machine) -> Finding:
    if machine.majors is None:
        why = machine.unknown("character majors")
        return finding("HT903", ERROR, "/proc/devices", "/proc/devices could not be read: " + why, machine=machine.key)
    where = below(machines, machine)
    if not machine.has_nvidia:
        gone = machine.module == ""
        evidence = (
            "/proc/devices: no driver has major %d" % NVIDIA_STATIC_MAJOR,
            "/sys/module/nvidia/version: %s" % ("ENOENT" if gone else machine.module or "not known"),
        )
        return finding(
            "HT302",
            FAIL,
            "nvidia",
            "the nvidia kernel module is not loaded",
            have="not loaded",
            want="loaded",
            proof=PROVED if gone else FITS,
            decide="" if gone else "lsmod | grep nvidia",
            evidence=evidence,
            hint=Hint(
                "modprobe nvidia", where, "nothing is restarted; if it fails, its message names the cause", "apply"
            ),
            machine=machine.key,
        )
    if UVM not in machine.majors:
        evidence = (
            "/proc/devices: %d is %s" % (NVIDIA_STATIC_MAJOR, machine.owner(NVIDIA_STATIC_MAJOR)),
            "/proc/devices: no nvidia-uvm",
        )
        return finding(
            "HT303",
            FAIL,
            "nvidia-uvm",
            "the nvidia-uvm kernel module is not loaded; CUDA needs it, nvidia-smi does not",
            have="not loaded",
            want="loaded",
            proof=PROVED,
            evidence=evidence,
            machine=machine.key,
            hint=Hint(
                "modprobe nvidia-uvm && nvidia-modprobe -u -c=0",
                where,
                "nothing is restarted; a container that was started without the node sees it after its next start",
                "apply",
            ),
        )
    return finding(
        "HT303",
        OK,
        "nvidia-uvm",
        "nvidia %s and nvidia-uvm are loaded (nvidia-uvm has major %d)" % (machine.module or "", machine.majors[UVM]),
        have=str(machine.majors[UVM]),
        machine=machine.key,
    )


PROBE = Probe("module", ("gpu", "build"), run)
