# SPDX-License-Identifier: Apache-2.0
"""Codes that a GPU itself gives: one that is sick, MIG, compute mode, licence, power, reset."""

from __future__ import annotations

import re
from typing import Callable, Optional

from .. import surroundings as near
from ..model import Finding, Hint
from ..survey import Machine
from .code import ANEW, OWN, cause, said

_VIRTUAL = re.compile(r"\bGRID\b|\bvGPU\b|-\d+[QCAB]\b")
"""How a virtual GPU's name ends: its profile (A40-8C)."""


def one_sick(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    well = [uuid for uuid, got in machine.around.alone.items() if got == 0]
    ill = [uuid for uuid, got in machine.around.alone.items() if got != 0]
    if not well or not ill:
        return None
    return cause(
        "HT313",
        machine,
        ill[0],
        "%s makes CUDA fail for all: with each of the others alone it starts" % ill[0],
        str(machine.around.alone[ill[0]]),
        "0",
        (
            said(name, code),
            "with %s alone: %s" % (ill[0], machine.around.alone[ill[0]]),
            "with %s alone: 0%s" % (well[0], " (and %d more)" % (len(well) - 1) if len(well) > 1 else ""),
        ),
        Hint(
            "export CUDA_VISIBLE_DEVICES=%s" % ",".join(well),
            OWN,
            ANEW + "; then find out what ails the other: dmesg | grep Xid",
            "reconfigure",
        ),
    )


def mig(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    rows = [row.split(", ") for row in machine.around.commands.get(near.MODES, "").splitlines()]
    on = [row for row in rows if len(row) == 4 and row[3] == "Enabled"]
    if not on or len(on) < len(rows) or " MIG " in machine.around.commands.get(near.LIST, ""):
        return None
    return cause(
        "HT328",
        machine,
        "GPU %s" % on[0][0],
        "MIG is on and no instance is made: there is nothing to compute on",
        "no instance",
        "an instance, or MIG off",
        (said(name, code), "nvidia-smi: mig.mode.current Enabled", "nvidia-smi -L: no MIG line"),
        Hint(
            "nvidia-smi mig -i %s -lgip   # then: nvidia-smi mig -i %s -cgi PROFILE -C; or: nvidia-smi -i %s -mig 0"
            % ((on[0][0],) * 3),
            where,
            "MIG off needs the GPU to be idle",
            "reconfigure",
        ),
        "nvidia-smi -L",
    )


def mode(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    rows = [row.split(", ") for row in machine.around.commands.get(near.MODES, "").splitlines()]
    bad = [row for row in rows if len(row) == 4 and row[2] in ("Exclusive_Process", "Prohibited")]
    if not bad:
        return None
    holders = machine.around.commands.get(near.COMPUTING, "").strip().splitlines()
    who = ["computes on it: %s" % holders[0]] if holders else []
    return cause(
        "HT363",
        machine,
        "GPU %s" % bad[0][0],
        "its compute mode is %s" % bad[0][2],
        bad[0][2],
        "Default",
        (said(name, code), "nvidia-smi: GPU %s %s" % (bad[0][0], bad[0][2]), *who),
        Hint(
            "nvidia-smi -i %s -c DEFAULT" % bad[0][0],
            where,
            "until the next boot; who set it had a reason, such as MPS",
            "apply",
        ),
        "" if bad[0][2] == "Prohibited" or holders else "nvidia-smi   # is there another process on it?",
    )


def licence(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    rows = [row.split(", ") for row in machine.around.commands.get(near.MODES, "").splitlines()]
    virtual = [row for row in rows if len(row) == 4 and _VIRTUAL.search(row[1])]
    if not virtual:
        return None
    return cause(
        "HT364",
        machine,
        virtual[0][1],
        "%s is a virtual GPU: without a licence it makes no contexts" % virtual[0][1],
        "no licence seen",
        "licensed",
        (said(name, code), "nvidia-smi: GPU %s is %s, %s" % tuple(virtual[0][:3])),
        Hint(
            "nvidia-smi -q | grep -i license   # then: journalctl -u nvidia-gridd",
            "this virtual machine",
            "",
            "reconfigure",
        ),
        "nvidia-smi -q | grep -i license",
    )


def capability(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    return cause(
        "HT329",
        machine,
        "/dev/nvidia-caps",
        "NVML may not read a device: a capability node of MIG is refused",
        "4",
        "0",
        (said("nvmlDeviceGetMemoryInfo", code), "nvmlInit returned 0"),
        Hint(
            "NVIDIA_MIG_MONITOR_DEVICES=all   # in the container's environment; on LXC: hosttune lxc sync CTID --caps",
            where,
            "the container is made anew",
            "reconfigure",
        ),
        "ls -l /dev/nvidia-caps; cat /dev/nvidia-caps/nvidia-cap1",
    )


def nvml_code(
    id: str, subject: str, summary: str, command: str, costs: str
) -> Callable[[Machine, str, int, str], Optional[Finding]]:
    def told(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
        return cause(
            id,
            machine,
            subject,
            summary,
            str(code),
            "0",
            (said(name, code),),
            Hint(command, where, costs, "hardware"),
            "dmesg | grep -e NVRM -e Xid | tail",
        )

    return told
