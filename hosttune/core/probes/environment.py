# SPDX-License-Identifier: Apache-2.0
"""Does the environment hide the GPUs? The same call in a clean environment tells."""

from __future__ import annotations

from typing import List

from ..catalogue import finding
from ..doctor.survey import Machine
from ..model import FAIL, OK, PROVED, Finding, Hint, Probe
from .scene import Machines, whole

VARIABLE = "CUDA_VISIBLE_DEVICES"


def run(machines: Machines) -> List[Finding]:
    """HT352."""
    machines = whole(machines)
    return [f for machine in machines.values() for f in _judge(machine)]


def hides_all(machine: Machine) -> bool:
    """cuInit finds no device with the variable, and finds one without it."""
    return (
        VARIABLE in machine.env
        and machine.calls.get("cuInit") in (100, 101)
        and machine.calls.get("cuInit@clean-env") == 0
    )


def _judge(machine: Machine) -> List[Finding]:
    value = machine.env.get(VARIABLE)
    if hides_all(machine):
        return [
            finding(
                "HT352",
                FAIL,
                VARIABLE,
                "%s=%r leaves no GPU visible" % (VARIABLE, value),
                have=repr(value),
                want="unset, or numbers or UUIDs that nvidia-smi -L shows",
                proof=PROVED,
                machine=machine.key,
                evidence=(
                    "%s=%r" % (VARIABLE, value),
                    "cuInit returned %s with it, 0 without it" % machine.calls.get("cuInit"),
                ),
                hint=Hint(
                    "unset " + VARIABLE,
                    "the shell or unit that starts the program",
                    "the program has to start anew",
                    "reconfigure",
                ),
            )
        ]
    if machine.calls.get("cuInit") == 0:
        told = "is not set" if value is None else "is %r" % value
        return [finding("HT352", OK, VARIABLE, "%s %s" % (VARIABLE, told), machine=machine.key)]
    return []


PROBE = Probe("environment", ("gpu", "module"), run)
