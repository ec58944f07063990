# SPDX-License-Identifier: Apache-2.0
"""What would be measured, as a report, and into which folder: an engine that is declared anew is measured anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosttune.cli import main

ENGINE = {"engine": "xllamacpp", "venv": "/opt/e", "model": "/srv/m.gguf", "port": 30000, "gpus": "none"}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Two configurations of an engine that runs."""
    path = tmp_path / "quick.yml"
    path.write_text("prompts: {fib: def fib}\nmax_tokens: 8\nconcurrency: [1, 2]\ntrials: 2\nwarm_up: 1\n")
    return path


def dry(plan: Path, capsys: pytest.CaptureFixture[str], *flags: str, **profile: Any) -> dict[str, Any]:
    """The one document that a dry run prints."""
    path = plan.with_name("profile.json")
    path.write_text(json.dumps(profile))
    main(["bench", "run", str(plan), "--dry-run", "-o", "json", "--profile", str(path), *flags])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def folder(told: dict[str, Any]) -> str:
    return Path(told["hosts"][0]["facts"]["results"]).name


def test_a_dry_run_is_one_report_that_measures_nothing(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = dry(plan, capsys, engines={"a": ENGINE})
    (host,) = told["hosts"]
    said = [(f["id"], f["status"], f["subject"], f["summary"]) for f in host["findings"]]
    assert said == [
        ("HT800", "skip", "attached_fib_t8_c1", "to be measured, by 3 requests"),
        ("HT800", "skip", "attached_fib_t8_c2", "to be measured, by 6 requests"),
    ]
    assert (told["mode"], told["changed"], told["ok"], host["effects"]) == ("plan", False, True, [])
    (action,) = host["actions"]
    assert action["name"] == "measure" and action["costs"] == "9 requests to the engine"


def test_the_folder_is_that_of_the_engine_as_it_is_declared(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = folder(dry(plan, capsys, engines={"a": ENGINE}))
    assert one.startswith("quick-a-") and folder(dry(plan, capsys, engines={"a": ENGINE})) == one
    assert folder(dry(plan, capsys, engines={"a": {**ENGINE, "args": {"n_ctx": "4096"}}})) != one
    assert folder(dry(plan, capsys, "--url", "http://127.0.0.1:1", engines={"a": ENGINE})) == "quick"


def test_of_several_engines_one_must_be_named(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = {"a": ENGINE, "b": {**ENGINE, "port": 30001}}
    refused = dry(plan, capsys, engines=several)["error"]
    assert "several engines are declared: a, b" in refused["what"]
    assert folder(dry(plan, capsys, engines=several, bench={"engine": "b"})).startswith("quick-b-")
    assert folder(dry(plan, capsys, "--engine", "a", engines=several, bench={"engine": "b"})).startswith("quick-a-")
