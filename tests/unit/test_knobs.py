# SPDX-License-Identifier: Apache-2.0
"""Each file in tests/cases/knobs is a machine on paper, a want, and what the knob must find and plan.

With "pci" in it the machine is the host of tests/unit/gpu_host.py with these functions, and "machine" lies over it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import engine
from hosttune.core.knobs import BY_ID, KNOBS
from hosttune.core.model import Step
from hosttune.core.recording.replay import ReplayHost
from tests.unit import gpu_host

CASES = sorted((Path(__file__).parents[1] / "cases" / "knobs").glob("*.json"))


def _plain(step: Step) -> list[str]:
    if step.effect == "run":
        return [" ".join(step.argv), " ".join(step.undo)]
    return [step.target, ("%s -> %s" % (step.before, step.after))]


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path: Path) -> None:
    case: dict[str, Any] = json.loads(path.read_text())
    host = ReplayHost(gpu_host.machine(case["pci"], case.get("machine", {})) if "pci" in case else case["machine"])
    findings, steps = engine.plan(KNOBS[case["knob"]], host, case["want"])
    assert [(f.subject, f.status) for f in findings] == [(s, status) for s, status, _ in case["findings"]]
    for f, (_, _, words) in zip(findings, case["findings"], strict=True):
        assert words in f.summary + " ".join(f.evidence)
    assert len(steps) == len(case["steps"])
    for got, want in zip(map(_plain, steps), case["steps"], strict=True):
        assert got[0] == want[0]
        assert got[1].startswith(want[1]) if want[1] else got[1] == ""
    assert host.effects == [], "a plan writes nothing"
    assert host.unrecorded == []


def test_an_unanswered_question_is_an_error_not_ok() -> None:
    case = json.loads((CASES[0].parent / "mrrs-512-to-4096.json").read_text())
    del case["machine"]["files"]["/sys/bus/pci/devices/0000:11:00.0/config"]
    (found,) = engine.check(KNOBS["pcie-max-read-request"], ReplayHost(case["machine"]), "4096")
    assert found.status == "error" and "config" in found.summary


def test_the_mask_leaves_the_reset_bit_alone() -> None:
    case = json.loads((CASES[0].parent / "mrrs-512-to-4096.json").read_text())
    _, (step,) = engine.plan(KNOBS["pcie-max-read-request"], ReplayHost(case["machine"]), "4096")
    assert step.argv[-1].endswith(":7000")


def test_a_write_that_does_not_stick_is_a_failure() -> None:
    case = json.loads((CASES[0].parent / "mrrs-512-to-4096.json").read_text())
    case["machine"]["commands"] = {
        "setpci -s 0000:11:00.0 CAP_EXP+8.w=5000:7000": {"rc": 0}
    }  # exit 0, register as before
    host = ReplayHost(case["machine"])
    done = engine.tune(host, {"pcie-max-read-request": "4096"}, KNOBS, BY_ID, dry_run=False)
    assert [f.status for f in done.findings] == ["fail"]
    assert "did not stick: wrote 4096, read back 512" in done.findings[0].summary
    assert not done.changed
