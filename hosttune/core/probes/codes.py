# SPDX-License-Identifier: Apache-2.0
"""What a code means once every layer below is right: limits, kernel features, services, compute mode, one sick GPU.

One function a cause, in the order in which they are looked for; each needs the code and something that was seen besides.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from ..doctor.survey import Machine
from ..model import Finding, Probe
from . import code_cards, code_limits, code_services
from .code import Cause
from .scene import Machines, below, whole


def run(machines: Machines) -> List[Finding]:
    """HT310 to HT328, HT355 to HT368: at most one for each machine and call."""
    machines = whole(machines)
    return [f for machine in machines.values() if machine.calls for f in _judge(machines, machine)]


def _judge(machines: Machines, machine: Machine) -> List[Finding]:
    codes = {name: code for name, code in machine.calls.items() if isinstance(code, int) and code}
    found = []
    for call in ("nvmlInit", "nvmlMemory", "cuInit", "cuCtxCreate"):
        name = next(
            (n for n in sorted(codes) if n == call or n.startswith(call + "@") and n != call + "@clean-env"), ""
        )
        causes = CAUSES.get((call, codes.get(name, 0)), ())
        meanings = (cause(machine, name, codes[name], below(machines, machine)) for cause in causes)
        found += [meaning for meaning in meanings if meaning][:1]
    return found


_POWER = code_cards.nvml_code(
    "HT311",
    "GPU",
    "a GPU's power cable is not attached",
    "systemctl poweroff   # then attach it",
    "the machine has to be off",
)
_LOST = code_cards.nvml_code("HT305", "GPU", "a GPU is lost", "systemctl reboot", "everything on the machine ends")
_RESET = code_cards.nvml_code(
    "HT310", "GPU", "a GPU needs a reset", "nvidia-smi --gpu-reset -i INDEX", "programs on that GPU end"
)
_IRQ = code_cards.nvml_code("HT312", "GPU", "a GPU's interrupts do not arrive", "grep nvidia /proc/interrupts", "")

CAUSES: Dict[Tuple[str, int], Tuple[Cause, ...]] = {
    ("cuInit", 2): (code_limits.limits,),
    ("cuInit", 3): (code_limits.hmm, code_limits.sva),
    ("cuInit", 100): (code_cards.mig,),
    ("cuInit", 304): (code_limits.seccomp,),
    ("cuInit", 802): (code_services.fabric,),
    ("cuInit", 804): (code_services.compat,),
    ("cuInit", 805): (code_services.mps,),
    ("cuInit", 999): (code_cards.one_sick, code_services.preload, code_services.suspend),
    ("cuCtxCreate", 2): (code_limits.limits,),
    ("cuCtxCreate", 46): (code_cards.mode, code_cards.licence),
    ("cuCtxCreate", 102): (code_cards.licence,),
    ("nvmlMemory", 4): (code_cards.capability,),
    ("nvmlInit", 8): (_POWER,),
    ("nvmlInit", 10): (_IRQ,),
    ("nvmlInit", 11): (_IRQ,),
    ("nvmlInit", 15): (_LOST,),
    ("nvmlInit", 16): (_RESET,),
}
"""(call, code) -> what it may mean, the surest first."""

IDS = (
    "HT313",
    "HT322",
    "HT323",
    "HT324",
    "HT326",
    "HT327",
    "HT328",
    "HT355",
    "HT358",
    "HT363",
    "HT364",
    "HT365",
    "HT367",
    "HT368",
)
OF_NVML = ("HT305", "HT310", "HT311", "HT312")

PROBE = Probe(
    "codes", ("gpu", "build", "module", "nodes", "mode", "permission", "log", "driver", "libraries", "environment"), run
)
