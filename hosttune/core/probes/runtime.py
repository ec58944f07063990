# SPDX-License-Identifier: Apache-2.0
"""Does the CUDA runtime of an engine's environment fit the driver? Asked by --engine-python."""

from __future__ import annotations

import shlex
from typing import List

from ..catalogue import finding
from ..doctor.survey import PYTHON, Machine
from ..model import ERROR, FAIL, FITS, OK, PROVED, WARN, Finding, Hint, Probe
from .scene import Machines


def run(machines: Machines) -> List[Finding]:
    """HT359; HT903 for an interpreter that did not answer."""
    found = [_judge(machine) for machine in machines.values() if machine.torch]
    return found + [
        finding("HT903", ERROR, PYTHON, machine.unknown(PYTHON), machine=machine.key)
        for machine in machines.values()
        if machine.unknown(PYTHON)
    ]


def _judge(machine: Machine) -> Finding:
    seen = machine.torch
    assert seen is not None
    python = shlex.quote(seen.path)
    test = "%s -c 'import torch; torch.zeros(1).cuda()'" % python
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
            hint=Hint("%s -m pip list" % python, "the engine's environment", "", "look"),
        )
    what = "PyTorch %s (CUDA %s)" % (seen.torch, seen.runtime or "none: built for the CPU")
    if not seen.error:
        return finding(
            "HT359", OK, seen.path, "%s puts a tensor on a GPU and counts %d" % (what, seen.gpus), machine=machine.key
        )
    # A runtime of the driver's own major works with it (CUDA's minor version compatibility): only its words blame that.
    said = "too old" in seen.error or "insufficient for CUDA runtime" in seen.error
    newer = bool(seen.runtime and seen.driver) and _number(seen.runtime)[:1] > _number(seen.driver)[:1] or said
    evidence = ("%s, driver for CUDA %s" % (what, seen.driver or "not told"), "it says: %s" % seen.error[:200])
    if newer or not seen.runtime:
        told = "%s needs a newer driver: this one is for CUDA %s" % (what, seen.driver or "?") if newer else what
        proved = said or not seen.runtime
        return finding(
            "HT359",
            FAIL,
            seen.path,
            told,
            have=seen.driver,
            want=seen.runtime or "a build for CUDA",
            proof=PROVED if proved else FITS,
            decide="" if proved else test,
            evidence=evidence,
            machine=machine.key,
            hint=Hint(
                "%s -m pip install --upgrade torch   # a build for CUDA %s; or a newer driver on the host"
                % (python, seen.driver or "of the driver"),
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
        hint=Hint(test, "the engine's environment", "", "look"),
    )


def _number(version: str) -> List[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


PROBE = Probe("runtime", ("cuda",), run)
