# SPDX-License-Identifier: Apache-2.0
"""Results on disk: whole or not there, whoever kills the writer and wherever; never mixed with those of another plan."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosttune.bench import plan as plans
from hosttune.bench.results import opened
from hosttune.cli import main
from hosttune.core.model import Refused
from tests.bench.conftest import Written
from tests.bench.lying_server import Server

KILLED = """\
import os, signal, sys
function, nth, after = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "after"
real, calls = getattr(os, function), 0
def dying(*args, **kwargs):
    global calls
    calls += 1
    if calls == nth and function == "write":
        real(args[0], args[1][: len(args[1]) // 2])
    if calls == nth and after:
        real(*args, **kwargs)
    if calls == nth:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(os, function, dying)
from hosttune.cli import main
sys.exit(main(sys.argv[4:]))
"""
"""hosttune in a process that kills itself, as kill -9 does, around the nth call of a function of os: write, in its middle."""

STAGES = [
    ("write", 1, "before", 0),  # half of plan.json
    ("fsync", 1, "before", 0),
    ("replace", 1, "before", 0),
    ("replace", 1, "after", 0),  # plan.json is there, no result
    ("write", 2, "before", 0),  # half of the first result
    ("fsync", 3, "before", 0),
    ("replace", 2, "before", 0),
    ("replace", 2, "after", 1),
    ("write", 3, "before", 1),  # half of the second result
    ("replace", 3, "after", 2),
]
"""(function, call, before or after it, how many results there are then). fsync is called twice a file: file, directory."""


@pytest.fixture
def honest() -> Iterator[Server]:
    """A server without a lie: the disk is what these tests are about."""
    with Server() as server:
        yield server


def whole(folder: Path) -> dict[str, Any]:
    """Every file with a final name, parsed: half a file would raise."""
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json") if not path.name.startswith(".")}


@pytest.mark.parametrize(("function", "nth", "when", "there"), STAGES)
def test_kill_9_leaves_whole_files_only_and_the_next_run_goes_on(
    function: str, nth: int, when: str, there: int, honest: Server, plan_file: Written, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    plan = plan_file(concurrency="[1, 2]", trials="1", warm_up="0")
    argv = ["bench", "run", str(plan), "--url", honest.url, "--results", str(folder)]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, function, str(nth), when, *argv], capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = {name: data for name, data in whole(folder).items() if name != "plan.json"}
    assert len(before) == there
    assert main(argv) == 0
    after = whole(folder)
    assert len(after) == 3 and all(after[name] == data for name, data in before.items()), (
        "measured once, kept as it was"
    )
    assert {path.name for path in folder.iterdir()} == {*after, ".lock"}, "nothing half-written is left"


def test_kill_9_while_an_earlier_result_is_set_aside_loses_neither(
    honest: Server, plan_file: Written, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    argv = ["bench", "run", str(plan_file(trials="1")), "--url", honest.url, "--results", str(folder)]
    assert main(argv) == 0
    (path,) = folder.glob("attached_*.json")
    invalid = {key: value for key, value in json.loads(path.read_text()).items() if key != "figures"}
    invalid.update(status="invalid", reasons=[{"code": "reset", "finding": "HT801", "text": "lost"}])
    path.write_text(json.dumps(invalid))
    again = [*argv, "--retry"]
    killed = subprocess.run([sys.executable, "-c", KILLED, "link", "1", "after", *again], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert json.loads(path.read_text())["status"] == "invalid"
    assert main(again) == 0
    assert json.loads(path.read_text())["status"] == "valid"
    kept = sorted(folder.glob("*.earlier-*"))
    assert [json.loads(k.read_text())["status"] for k in kept] == ["invalid"]


LIMITED = """\
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from hosttune.cli import main
sys.exit(main(sys.argv[2:]))
"""


def test_a_full_disk_is_one_clear_error_and_nothing_is_half_written(
    honest: Server, plan_file: Written, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    argv = [
        "bench",
        "run",
        str(plan_file(concurrency="[1, 8]", trials="3")),
        "--url",
        honest.url,
        "--results",
        str(folder),
    ]
    full = subprocess.run([sys.executable, "-c", LIMITED, "12000", *argv], capture_output=True, text=True)
    assert full.returncode == 2, full.stderr
    assert "the file system is full (File too large)" in full.stderr and "df -h" in full.stderr
    assert "Traceback" not in full.stderr and len(whole(folder)) == 2, "the plan, and the smaller result"
    assert not list(folder.glob(".writing-*"))
    assert main(argv) == 0


def test_a_directory_of_another_plan_or_model_is_refused(
    honest: Server, plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--url", honest.url, "--results", str(tmp_path / "r")]
    assert main(["bench", "run", str(plan_file()), *where]) == 0
    for extra in ([], ["--dry-run"]):
        assert main(["bench", "run", str(plan_file(trials="3")), *where, *extra]) == 2
        told = capsys.readouterr().err
        assert "results of another plan, which differs in: trials" in told and "--results DIR" in told
    plan = plans.load(str(plan_file()))
    with (
        pytest.raises(Refused, match="results of the model honest, this is huge"),
        opened(tmp_path / "r", plan, "huge"),
    ):
        pass


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, quick.yml, and its results, r."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "quick.yml").write_text("prompts: {fib: def fib}\nmax_tokens: 48\ntrials: 1\nwarm_up: 0\n")
    with Server() as server:
        argv = ["bench", "run", str(folder / "quick.yml"), "--url", server.url, "--results", str(folder / "r")]
        assert main(argv) == 0
    return folder


def _not_json(path: Path) -> None:
    path.write_text(path.read_text()[:-40])


def _valid_without_figures(path: Path) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps(dict(found, figures={})))


def _invalid_with_figures(path: Path) -> None:
    path.write_text(json.dumps(dict(json.loads(path.read_text()), status="invalid", reasons=[{"code": "reset"}])))


def _of_another(path: Path) -> None:
    path.write_text(json.dumps(dict(json.loads(path.read_text()), key="attached_fib_t1_c1")))


def _of_another_plan(path: Path) -> None:
    path.write_text(json.dumps(dict(json.loads(path.read_text()), plan_digest="0")))


def _plan_not_json(path: Path) -> None:
    (path.parent / "plan.json").write_text("{")


def _plan_foreign(path: Path) -> None:
    (path.parent / "plan.json").write_text("{}")


def _no_plan(path: Path) -> None:
    (path.parent / "plan.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_not_json, "not JSON"),
        (_valid_without_figures, "valid without figures"),
        (_invalid_with_figures, "with figures"),
        (_of_another, "of configuration"),
        (_of_another_plan, "another plan"),
        (_plan_not_json, "not JSON"),
        (_plan_foreign, "not of schema"),
        (_no_plan, "no plan.json"),
    ],
)
def test_a_file_that_is_no_result_is_refused_not_counted_as_done(
    spoil: Any, said: str, measured: Path, honest: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(measured / "r", tmp_path / "r")
    argv = ["bench", "run", str(measured / "quick.yml"), "--url", honest.url, "--results", str(tmp_path / "r")]
    (path,) = (tmp_path / "r").glob("attached_*.json")
    spoil(path)
    assert main(argv) == 2
    assert said in capsys.readouterr().err
    assert main(["bench", "report", str(tmp_path / "r")]) == 2


def test_two_runs_do_not_write_into_one_directory(plan_file: Written, tmp_path: Path) -> None:
    plan = plans.load(str(plan_file()))
    with opened(tmp_path / "r", plan, "honest"):
        with pytest.raises(Refused, match="another run is writing here"), opened(tmp_path / "r", plan, "honest"):
            pass
    with opened(tmp_path / "r", plan, "honest"):
        pass


def test_a_place_that_cannot_be_written_is_said(
    honest: Server, plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    argv = ["bench", "run", str(plan_file()), "--url", honest.url, "--results", str(tmp_path / "file" / "r")]
    assert main(argv) == 2
    assert "Not a directory" in capsys.readouterr().err
