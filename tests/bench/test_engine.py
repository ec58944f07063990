# SPDX-License-Identifier: Apache-2.0
"""End to end against a real engine: measured, continued, killed, restarted."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hosttune.bench import plan as plans
from hosttune.bench import run, snapshot
from hosttune.bench.client import Answer
from hosttune.bench.plan import Configuration
from hosttune.bench.results import opened
from hosttune.bench.target import Attached, Target
from hosttune.cli import main
from hosttune.core.door.live import LiveHost
from tests.bench.conftest import Llama, Written, serve

MODULE = [sys.executable, "-m", "hosttune"]


class Watching:
    """Notes what it is told; a test replaces what it needs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def begins(self, k: int, n: int, configuration: Configuration, requests: int) -> None:
        self.lines.append("%d of %d" % (k, n))

    def answered(self, answer: Answer) -> None:
        pass

    def ended(self, configuration: Configuration, result: Mapping[str, Any]) -> None:
        self.lines.append(str(result["status"]))


def carry_out(plan_path: Path, url: str, folder: Path, watch: Watching, wait: float = 0.3) -> bool:
    plan, host = plans.load(str(plan_path)), LiveHost()
    arms = [Attached("attached", Target(url))]
    with opened(folder, plan, "tiny") as results:
        return run.run(plan, arms, results, host, lambda: snapshot.take(host), watch, wait=wait)


def results_in(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("attached_*.json")}


def test_the_shipped_plan_is_valid_and_a_second_run_measures_nothing(
    llama: Llama, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "run", "smoke", "--url", llama.url, "--results", str(tmp_path / "r")]
    assert main(argv) == 0
    told = capsys.readouterr()
    assert "1 of 4  attached: fib, 128 tokens, 1 request at once (4 requests)" in told.err
    assert told.err.count("valid: ") == 4 and "left" in told.err
    assert told.out.count("✓ HT800") == 4
    before = {key: result["finished"] for key, result in results_in(tmp_path / "r").items()}
    assert main(argv) == 0
    assert "nothing is left to measure" in capsys.readouterr().err
    assert {key: result["finished"] for key, result in results_in(tmp_path / "r").items()} == before


def test_a_result_holds_all_that_its_figures_come_from(llama: Llama, plan_file: Written, tmp_path: Path) -> None:
    plan = plan_file(prompts='{fib: {text: "def fib", tokens: 300}}', concurrency="[2]", rounds="2", warm_up="0")
    assert carry_out(plan, llama.url, tmp_path / "r", Watching())
    (result,) = results_in(tmp_path / "r").values()
    assert result["figures"]["output"]["n"] == 2 and result["figures"]["output"]["stdev"] > 0
    rates = []
    for trial in result["trials"]:
        answers = trial["answers"]
        assert len(answers) == 4 and {(a["stream"], a["round"]) for a in answers} == {
            (s, r) for s in range(2) for r in (0, 1)
        }
        for a in answers:
            assert a["sent"] < a["head"] <= a["first"] < a["last"] <= a["end"] and a["done"] and a["model"] == "tiny"
            assert (
                a["usage"]["completion"] == 48
                and abs(a["usage"]["prompt"] - 300) < 64
                and a["finish_reason"] == "length"
            )
        rates.append(4 * 48 / (max(a["last"] for a in answers) - min(a["sent"] for a in answers)))
    assert result["figures"]["output"]["mean"] == pytest.approx(sum(rates) / 2, rel=1e-3)
    assert result["server"]["before"] == result["server"]["after"]
    assert result["server"]["before"]["process"].startswith("%d@" % llama.process.pid)
    assert result["host"]["stable"]["kernel"] == os.uname().release
    assert result["target"]["engine"]["context"] == "4096"


def test_a_prompt_that_cannot_fit_is_refused_before_anything_is_measured(
    llama: Llama, plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_file(prompts='{long: {text: "def fib", tokens: 4000}}', max_tokens="[256]")
    assert main(["bench", "run", str(plan), "--url", llama.url, "--results", str(tmp_path / "r")]) == 2
    assert "context is 4096 tokens; prompt and answer do not fit: long: 4000 + 256 = 4256" in capsys.readouterr().err
    assert results_in(tmp_path / "r") == {}


def test_another_model_is_refused_with_those_that_are_served(
    llama: Llama, plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "run", str(plan_file()), "--url", llama.url, "--results", str(tmp_path / "r"), "--model", "huge"]
    assert main(argv) == 2
    assert "--model with one of: tiny" in capsys.readouterr().err


class KillsInMidAnswer(Watching):
    """Kills the server as soon as it has sent some tokens of the first configuration."""

    def __init__(self, llama: Llama) -> None:
        super().__init__()
        self.llama, self.killed = llama, False

    def begins(self, k: int, n: int, configuration: Configuration, requests: int) -> None:
        super().begins(k, n, configuration, requests)
        threading.Thread(target=self._kill).start()

    def _kill(self) -> None:
        for _ in range(2000):
            with urllib.request.urlopen(self.llama.url + "/slots", timeout=10) as told:
                slots = json.load(told)
            if any(slot["is_processing"] and slot["next_token"][0]["n_decoded"] > 20 for slot in slots):
                break
            time.sleep(0.002)
        self.llama.kill()
        self.killed = True


def test_a_server_killed_in_mid_answer_is_no_result_and_the_rest_waits_for_it(
    own_llama: Llama, model: Path, plan_file: Written, tmp_path: Path
) -> None:
    plan = plan_file(max_tokens="[3000, 8]", warm_up="0", concurrency="[2]", timeout="60")
    watch = KillsInMidAnswer(own_llama)
    assert not carry_out(plan, own_llama.url, tmp_path / "r", watch)
    assert watch.killed and watch.lines[:2] == ["1 of 2", "invalid"]
    assert (
        "has not been healthy" in watch.lines[-1]
        and watch.lines[-1].endswith("still to measure: 1")
        and "healthy" in watch.lines[-1]
    )
    (result,) = results_in(tmp_path / "r").values()
    codes = {reason["code"] for reason in result["reasons"]}
    assert codes & {"reset", "torn"} and "unhealthy" in codes and "restarted" in codes
    assert "figures" not in result and any(a["pieces"] for a in result["trials"][0]["answers"])
    own_llama.process = serve(model, own_llama.port).process
    assert carry_out(plan, own_llama.url, tmp_path / "r", Watching())
    states = {key: result["status"] for key, result in results_in(tmp_path / "r").items()}
    assert states == {"attached_fib_t3000_c2": "invalid", "attached_fib_t8_c2": "valid"}


class RestartsBetweenTrials(Watching):
    """Plays systemd's Restart=on-failure: after the first trial, the server is killed and started again at once."""

    def __init__(self, llama: Llama, model: Path) -> None:
        super().__init__()
        self.llama, self.model, self.answers = llama, model, 0

    def answered(self, answer: Answer) -> None:
        self.answers += 1
        if self.answers == 1:
            self.llama.kill()
            self.llama.process = serve(self.model, self.llama.port).process


def test_a_server_that_was_restarted_between_two_requests_is_seen(
    own_llama: Llama, model: Path, plan_file: Written, tmp_path: Path
) -> None:
    plan = plan_file(warm_up="0", concurrency="[1]", rounds="2", trials="1")
    assert carry_out(plan, own_llama.url, tmp_path / "r", RestartsBetweenTrials(own_llama, model))
    (result,) = results_in(tmp_path / "r").values()
    answers = result["trials"][0]["answers"]
    assert [a["error"] for a in answers] == [None, None], "each answer alone looks perfect"
    assert [reason["code"] for reason in result["reasons"]][-1:] == ["restarted"]
    assert "process was" in result["reasons"][-1]["detail"]


def test_an_invalid_configuration_is_measured_again_on_request_and_kept_beside(
    llama: Llama, plan_file: Written, tmp_path: Path
) -> None:
    plan, folder = plan_file(timeout="20"), tmp_path / "r"
    argv = ["bench", "run", str(plan), "--url", llama.url, "--results", str(folder)]
    assert main(argv) == 0
    (path,) = folder.glob("attached_*.json")
    result = json.loads(path.read_text())
    del result["figures"]
    result.update(
        status="invalid", reasons=[{"code": "reset", "finding": "HT801", "text": "lost", "detail": "", "count": 1}]
    )
    path.write_text(json.dumps(result))
    assert main(argv) == 1
    assert main([*argv, "--retry"]) == 0
    kept = json.loads(path.with_name(path.stem + ".earlier-1").read_text())
    assert kept["status"] == "invalid" and json.loads(path.read_text())["status"] == "valid"


def test_dry_run_shows_what_is_left_and_asks_nothing(
    llama: Llama, plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "run", str(plan_file(concurrency="[1, 2]")), "--results", str(tmp_path / "r")]
    assert main([*argv, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 of 2 configurations, 9 requests, into ")
    assert not (tmp_path / "r").exists()
    assert main([*argv, "--url", llama.url]) == 0
    assert main([*argv, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 of 2 configurations, 0 requests")


def test_on_a_terminal_there_are_bars(llama: Llama, plan_file: Written, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    argv = [*MODULE, "bench", "run", str(plan_file()), "--url", llama.url, "--results", str(tmp_path / "r")]
    process = subprocess.Popen(argv, stderr=theirs, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # EIO: the other side was closed
    os.close(ours)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, shown
    assert b"configurations" in shown and "✓ HT800" in out.decode()


def test_ctrl_c_and_sigterm_end_it_with_130_and_the_next_run_goes_on(
    llama: Llama, plan_file: Written, tmp_path: Path
) -> None:
    plan = plan_file(max_tokens="[8, 3000]", concurrency="[1]", trials="50")
    argv = [*MODULE, "bench", "run", str(plan), "--url", llama.url, "--results", str(tmp_path / "r")]
    for end in ("INT", "TERM"):
        # What a shell starts in the background ignores SIGINT, and so would its children.
        heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=heard)
        assert process.stderr is not None
        for line in process.stderr:
            if "3000 tokens" in line:
                break
        subprocess.run(["kill", "-" + end, str(process.pid)], check=True)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130 and "interrupted" in err
        assert list(results_in(tmp_path / "r")) == ["attached_fib_t8_c1"]
