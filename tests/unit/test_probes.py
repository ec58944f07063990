# SPDX-License-Identifier: Apache-2.0
"""Recordings of tests/cases/doctor: each fault must be named, with its proof, from inside, from the host, and from both.

A case holds a host and its container; `expect` says per form what the report must say. In form `inside` only the container
is there, and calls itself "host", as a doctor does that runs in it. In form `host` only the host is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hosttune.core.doctor.diagnose import diagnose
from hosttune.core.doctor.survey import Declared, survey
from hosttune.core.model import FAIL, Finding, as_dict, first_cause
from hosttune.core.probes import PROBES
from hosttune.core.recording.replay import load
from hosttune.data import machine

CASES = Path(__file__).resolve().parents[1] / "cases" / "doctor"
FORMS = {"inside": ("ct:200",), "host": ("host",), "joined": ("host", "ct:200")}
PARAMETERS = [(path.stem, form) for path in sorted(CASES.glob("*.json")) for form in FORMS
              if form in json.loads(path.read_text())["expect"]]  # fmt: skip


def report(case: Mapping[str, Any], form: str) -> tuple[Finding, ...]:
    hosts = load(case, machine)
    declared = dict(case.get("declared", {}))
    machines = {}
    for key in FORMS[form]:
        name = "host" if form == "inside" else key
        container_ids = ("200",) if name == "host" and form != "inside" else ()
        machines[name] = survey(hosts[key], Declared(container_ids=container_ids, **declared), name)
    return tuple(diagnose(machines, PROBES))


def said(finding: Finding) -> str:
    return " ".join([finding.summary, finding.have, finding.want, finding.decide, *finding.evidence, finding.hint.command,
                     finding.hint.where, finding.hint.costs])  # fmt: skip


@pytest.mark.parametrize(("name", "form"), PARAMETERS)
def test_the_first_cause_is_named_and_proved(name: str, form: str) -> None:
    case = json.loads((CASES / f"{name}.json").read_text())
    expect = case["expect"][form]
    found = report(case, form)
    told = "\n".join(f"{f.status} {f.machine} {f.id} [{f.proof}] {said(f)} because={f.because}" for f in found)
    by_status: dict[str, set[str]] = {}
    for f in found:
        by_status.setdefault(f.status, set()).add(f.id)
    if expect.get("clean"):
        assert not by_status.keys() & {"fail", "error"}, told
    cause = first_cause(found)
    if "first" in expect:
        assert cause is not None and cause.id == expect["first"], told
        assert cause.proof == expect["proof"], told
        assert cause.machine == expect.get("machine", cause.machine), told
        assert 0 < len(cause.evidence) <= 3, told
        assert bool(cause.decide) == (cause.proof == "fits"), (
            "only what is not proved names a command that decides\n" + told
        )
    words = said(cause) if cause and "first" in expect and not expect.get("error") else told
    assert [word for word in expect.get("words", ()) if word not in words] == [], told
    assert [word for word in expect.get("absent_words", ()) if word in words] == [], told
    for status in ("skip", "warn", "error"):
        assert set(expect.get(status, ())) <= by_status.get(status, set()), told
    assert set(expect.get("also", ())) <= by_status.get(FAIL, set()), told
    assert not set(expect.get("absent", ())) & {f.id for f in found if f.status in ("fail", "warn")}, told
    for f in found:
        assert not f.because or set(f.because) <= by_status.get(FAIL, set()), (
            "a symptom names a cause that stands\n" + told
        )


def test_the_layers_of_a_healthy_machine_each_say_so_once() -> None:
    found = report(json.loads((CASES / "healthy.json").read_text()), "inside")
    layers = "HT301 HT303 HT403 HT407 HT401 HT409 HT350 HT352 HT361 HT360 HT362"
    assert [f.id for f in found] == layers.split()
    assert {f.status for f in found} == {"ok"}


def test_a_survey_is_plain_data() -> None:
    hosts = load(json.loads((CASES / "founding.json").read_text()), machine)
    host = survey(hosts["host"], Declared(container_ids=("200",)))
    again = json.loads(json.dumps(as_dict(host)))
    assert again["containers"]["200"]["rules"][1]["rule"]["major"] == 509
    assert host.unknowns == ()


@pytest.mark.parametrize("name", ["healthy-host", "healthy-lxc", "healthy-lxc-unprivileged", "healthy-docker"])
def test_a_shipped_machine_is_healthy_and_answers_all_that_a_doctor_asks(name: str) -> None:
    key = "host" if name == "healthy-host" else "ct:200"
    hosts = load({"schema": "hosttune.recording/1", "machines": {key: {"base": name}}}, machine)
    seen = survey(hosts[key], Declared(contexts=False), "host")
    assert seen.unknowns == () and hosts[key].unrecorded == []
    assert {f.status for f in diagnose({"host": seen}, PROBES)} == {"ok"}
