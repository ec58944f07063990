# SPDX-License-Identifier: Apache-2.0
"""Does the CUDA runtime of an engine's environment fit the driver? Asked by --engine-python."""

from __future__ import annotations

from typing import List

from ..catalogue import finding
from ..model import FAIL, FITS, OK, PROVED, WARN, Finding, Hint, Probe
from ..survey import Machine
from .scene import Machines


def run(machines: Machines) -> List[Finding]:
    """HT359."""
    return [_judge(machine) for machine in machines.values() if machine.torch]


def _judge(machine: Machine) -> Finding:
    seen = machine.torch
    assert seen is not None
    test = "%s -c 'import torch; torch.zeros(1).cuda()'" % seen.path
    if not seen.torch:
        return finding(
            "HT359",
            WARN,
            seen.path,
            "this Python has no PyTorch: %s" % seen.error,
            have="none",
            machine=machine.key,
            proof=PROVED,
            evidence=(seen.error,),
            hint=Hint("%s -m pip list" % seen.path, "the engine's environment"),
        )
    what = "PyTorch %s (CUDA %s)" % (seen.torch, seen.runtime or "none: built for the CPU")
    if not seen.error:
        return finding(
            "HT359", OK, seen.path, "%s puts a tensor on a GPU and counts %d" % (what, seen.gpus), machine=machine.key
        )
    newer = bool(seen.runtime and seen.driver) and _number(seen.runtime) > _number(seen.driver)
    evidence = ("%s, driver for CUDA %s" % (what, seen.driver or "not told"), "it says: %s" % seen.error[:200])
    if newer or not seen.runtime:
        told = "%s needs a newer driver: this one is for CUDA %s" % (what, seen.driver) if newer else what
        return finding(
            "HT359",
            FAIL,
            seen.path,
            told,
            have=seen.driver,
            want=seen.runtime or "a build for CUDA",
            proof=PROVED,
            evidence=evidence,
            machine=machine.key,
            hint=Hint(
                "pip install torch   # a build for CUDA %s; or a newer driver on the host"
                % (seen.driver or "of the driver"),
                "the engine's environment",
                "the engine has to start anew",
                "reconfigure",
            ),
        )
    return finding(
        "HT359",
        FAIL,
        seen.path,
        "%s does not get onto a GPU" % what,
        have=seen.error,
        want="a tensor on a GPU",
        proof=FITS,
        decide=test,
        evidence=evidence,
        machine=machine.key,
        hint=Hint(test, "the engine's environment"),
    )


def _number(version: str) -> List[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


PROBE = Probe("runtime", ("cuda",), run)
