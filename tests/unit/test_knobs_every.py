# SPDX-License-Identifier: Apache-2.0
"""What holds of every setting, whichever it is: asked of all of them, and of all cases that there are of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import engine
from hosttune.core.knobs import KNOBS
from hosttune.core.model import Finding
from hosttune.core.recording.replay import ReplayHost
from tests.unit import gpu_host, test_knobs_host
from tests.unit.test_hints_are_commands import LOOKS, PROGRAMS, first_words, simple

FOLDER = Path(__file__).parents[1] / "cases" / "knobs"
ON_A_BUS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
CASES = {name: (case["knob"], case) for name, case in ON_A_BUS.items()} | test_knobs_host.CASES
INSIDE = {"files": {"/run/systemd/container": "lxc\n"}, "links": {"/proc/self/ns/pid": "pid:[4026532999]"}}
OUTSIDE = {"links": {"/proc/self/ns/pid": "pid:[4026531836]"}}
NO_VALUE = ["", " ", "-1", "no such value", "on\n", "4096 ", "\u00b2", "\u0663", "a|b", "|", "%s", "9" * 5000, "\x00"]


def machine(name: str) -> ReplayHost:
    """The machine of a case."""
    if name not in ON_A_BUS:
        return test_knobs_host.machine(CASES[name][1])
    case = ON_A_BUS[name]
    return ReplayHost(gpu_host.machine(case["pci"], case.get("machine", {})) if "pci" in case else case["machine"])


@pytest.mark.parametrize("name", KNOBS)
def test_what_is_no_value_of_any_setting_is_refused_in_one_line(name: str) -> None:
    for want in NO_VALUE:
        told = KNOBS[name].check(want)
        assert told and "\n" not in told.replace(want, ""), want
    assert KNOBS[name].want == "" or KNOBS[name].check(KNOBS[name].want) == ""


@pytest.mark.parametrize("name", KNOBS)
def test_inside_a_container_it_belongs_to_the_host_and_nothing_else_is_asked(name: str) -> None:
    host = ReplayHost(INSIDE)
    (found,) = engine.check(KNOBS[name], host, KNOBS[name].want)
    assert found.status == "skip" and "on the host, not inside a container (lxc)" in found.summary
    assert host.unrecorded == []


@pytest.mark.parametrize("name", KNOBS)
def test_what_was_not_recorded_is_could_not_tell_and_never_ok(name: str) -> None:
    assert {f.status for f in engine.check(KNOBS[name], ReplayHost(OUTSIDE))} == {"error"}


@pytest.mark.parametrize("name", CASES)
def test_once_somebody_asks_for_it_what_differs_is_a_failure(name: str) -> None:
    """Nobody asked: an opt-in is shown, a report is a warning."""
    knob = KNOBS[CASES[name][0]]
    if not knob.want:
        return  # what nobody can want by default
    unasked, asked = (engine.check(knob, machine(name), want) for want in ("", knob.want))
    assert [f.subject for f in unasked] == [f.subject for f in asked]
    for before, after in zip(unasked, asked, strict=True):
        shown = before.status == "warn" or before.status == "skip" and before.summary.endswith("is opt-in")
        assert after.status == ("fail" if shown else before.status), (before, after)


def findings() -> list[Finding]:
    """Of all cases, as they are wanted there and as hosttune recommends it."""
    wants = {name: (case["want"], KNOBS[knob].want) for name, (knob, case) in CASES.items()}
    return [f for name, both in wants.items() for w in both for f in engine.check(KNOBS[CASES[name][0]], machine(name), w)]


def test_what_is_wrong_says_what_to_do() -> None:
    assert [f for f in findings() if f.status in ("fail", "warn") and not f.hint.command] == []


def test_what_it_says_to_do_can_be_pasted() -> None:
    """Prose stands behind a `#`: `reboot; or keep it: ...` reboots, and `install x, or the driver's own` waits for a quote."""
    told = {f.hint.command: f.id for f in findings()}
    known = PROGRAMS | {"cp", "mkdir", "printf", "sed", "tlp", "tuned-adm"}
    assert {text: id for text, id in told.items() if not set(first_words(text)) <= known} == {}
    whole = "\n".join("(\n%s\n)" % text for text in told if text.partition("#")[0].strip())
    assert subprocess.run(["bash", "-n"], input=whole, text=True, capture_output=True).stderr == ""
    assert len(told) > 80


def test_what_only_looks_is_called_a_look() -> None:
    told = {f.hint.command: f.hint.word for f in findings() if f.hint.command}
    looks = {text for text in told if simple(text) and all(LOOKS.match(part) for part in simple(text))}
    assert {text for text, word in told.items() if word == "look"} == looks
    assert 8 < len(looks) < len(told) - 40
