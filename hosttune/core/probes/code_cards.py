# SPDX-License-Identifier: Apache-2.0
"""Codes that a GPU itself gives: one that is sick, MIG, compute mode, licence, power, reset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, List, Optional

from ..doctor import surroundings as near
from ..doctor.survey import Machine
from ..model import Finding, Hint
from .code import ANEW, OWN, cause, said

_VIRTUAL = re.compile(r"\bGRID\b|\bvGPU\b|-\d+[QCAB]\b")
"""How a virtual GPU's name ends: its profile (A40-8C)."""


def one_sick(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    alone = machine.around.alone
    well = [uuid for uuid, got in alone.items() if got == 0]
    ill = [uuid for uuid, got in alone.items() if got != 0]
    if not well or not ill:
        return None
    return cause(
        "HT313",
        machine,
        ill[0],
        "%s makes CUDA fail for all: with each of the others alone it starts" % " and ".join(ill),
        _told(alone[ill[0]]),
        "0",
        (
            said(name, code),
            "with %s alone: %s" % (ill[0], _told(alone[ill[0]])),
            "with %s alone: 0%s" % (well[0], " (and %d more)" % (len(well) - 1) if len(well) > 1 else ""),
        ),
        Hint(
            "export CUDA_VISIBLE_DEVICES=%s" % ",".join(well),
            OWN,
            ANEW + "; then find out what ails the other: dmesg | grep Xid",
            "reconfigure",
        ),
    )


def _told(answer: Any) -> str:
    if isinstance(answer, dict):
        return (
            "no answer within %s s" % answer["timeout"]
            if "timeout" in answer
            else str(answer.get("error", "no answer"))
        )
    return str(answer)


@dataclass(frozen=True)
class _Card:
    """A row of nvidia-smi --query-gpu, as surroundings.MODES asks it."""

    index: str
    model: str
    mode: str
    mig: str
    uuid: str


def _cards(machine: Machine) -> List[_Card]:
    rows = [row.split(", ") for row in machine.around.commands.get(near.MODES, "").splitlines()]
    return [_Card(*row) for row in rows if len(row) == 5 and row[0].isdigit()]


def mig(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    cards, listed = _cards(machine), machine.around.commands.get(near.LIST, "")
    if not cards or any(card.mig != "Enabled" for card in cards) or not listed or " MIG " in listed:
        return None
    index = cards[0].index
    return cause(
        "HT328",
        machine,
        "GPU %s" % index,
        "MIG is on and no instance is made: there is nothing to compute on",
        "no instance",
        "an instance, or MIG off",
        (said(name, code), "nvidia-smi: mig.mode.current Enabled", "nvidia-smi -L: no MIG line"),
        Hint(
            "nvidia-smi mig -i %s -lgip   # then: nvidia-smi mig -i %s -cgi PROFILE -C; or: nvidia-smi -i %s -mig 0"
            % ((index,) * 3),
            where,
            "MIG off needs the GPU to be idle",
            "look",
        ),
        "nvidia-smi -L",
    )


def mode(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    """Proved where that GPU is closed to everybody, or where another process has it."""
    bad = [card for card in _cards(machine) if card.mode in ("Exclusive_Process", "Prohibited")]
    if not bad:
        return None
    holders = dict(
        row.split(", ")[:2] for row in machine.around.commands.get(near.COMPUTING, "").splitlines() if ", " in row
    )
    card = next((card for card in bad if card.mode == "Prohibited" or card.uuid in holders), bad[0])
    held = card.uuid in holders
    return cause(
        "HT363",
        machine,
        "GPU %s" % card.index,
        "its compute mode is %s%s"
        % (card.mode, ", and process %s computes on it" % holders[card.uuid] if held else ""),
        card.mode,
        "Default",
        (said(name, code), "nvidia-smi: GPU %s %s" % (card.index, card.mode))
        + (("nvidia-smi: %s has %s" % (holders[card.uuid], card.uuid),) if held else ()),
        Hint(
            "nvidia-smi -i %s -c DEFAULT" % card.index,
            where,
            "until the next boot; who set it had a reason, such as MPS",
            "apply",
        ),
        "" if card.mode == "Prohibited" or held else "nvidia-smi   # is there another process on it?",
    )


def licence(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    card = next((card for card in _cards(machine) if _VIRTUAL.search(card.model)), None)
    if card is None:
        return None
    return cause(
        "HT364",
        machine,
        card.model,
        "%s is a virtual GPU: without a licence it makes no contexts" % card.model,
        "no licence seen",
        "licensed",
        (said(name, code), "nvidia-smi: GPU %s is %s, %s" % (card.index, card.model, card.mode)),
        Hint(
            "nvidia-smi -q | grep -i license   # then: journalctl -u nvidia-gridd",
            "this virtual machine",
            "",
            "look",
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
        Hint("hosttune lxc sync CTID --caps", where, "the container is made anew", "reconfigure")
        if machine.kind == "lxc"
        else Hint(
            "ls -l /dev/nvidia-caps   # the container's environment needs NVIDIA_MIG_MONITOR_DEVICES=all",
            where,
            "the container is made anew",
            "look",
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
