# SPDX-License-Identifier: Apache-2.0
"""Every way in which a server's answer is no measurement, told by a server that does exactly that: invalid, and no figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hosttune.bench.validity import REASONS
from hosttune.cli import main
from tests.bench.conftest import Written
from tests.bench.lying_server import Server

LIES = [
    ("error event", "event"),
    ("error at the end", "event"),
    ("dies on the first token", "event"),
    ("no json", "json"),
    ("broken off", "torn"),
    ("no http", "torn"),
    ("no done", "not-done"),
    ("reset", "reset"),
    ("context", "http"),
    ("server error", "http"),
    ("overloaded", "http"),
    ("hang", "timeout"),
    ("hangs in the middle", "timeout"),
    ("no usage", "no-usage"),
    ("counts too little", "usage-disagrees"),
    ("other client", "counter-disagrees"),
    ("zero tokens", "no-tokens"),
    ("clamped", "short"),
    ("stops early", "short"),
    ("too long", "long"),
    ("filtered", "finish-reason"),
    ("no text", "empty-text"),
    ("restarted", "restarted"),
    ("counter reset", "restarted"),
    ("renamed", "restarted"),
    ("unhealthy", "unhealthy"),
    ("other model", "model-changed"),
    ("held back", "not-streamed"),
    ("burst", "too-fast"),
    ("longer prompt", "prompt-length"),
    ("cached", "prompt-cached"),
    ("preempted", "preempted"),
]
UNSEEN_BY_A_LIE = {
    "refused": "tests/bench/test_killed.py kills a server",
    "unreachable": "a name that does not resolve, below",
    "clock": "no server can do it: test_validity.py",
}


def test_every_reason_has_a_lie() -> None:
    assert {code for _, code in LIES} | set(UNSEEN_BY_A_LIE) == set(REASONS)


IN_SECOND_TRIAL, IN_WARM_UP = 1 + 2 + 2, 1
"""How many completions are honest first: a first question, the warm-up's two, a trial's two."""


@pytest.mark.parametrize(
    ("lie", "code", "honest"),
    [(lie, code, IN_SECOND_TRIAL) for lie, code in LIES]
    + [(lie, code, IN_WARM_UP) for lie, code in LIES if lie in ("error event", "no usage", "zero tokens", "restarted")],
)
def test_a_lie_is_caught_and_never_becomes_a_number(
    lie: str, code: str, honest: int, plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = lie.startswith("hang")
    plan = plan_file(
        prompts='{long: {text: "def fib of n", tokens: 300}}',
        max_tokens="[300]" if lie == "burst" else "[48]",
        timeout="1" if slow else "20",
    )
    with Server(lie=lie, after=honest) as server:
        argv = ["bench", "run", str(plan), "--url", server.url, "--results", str(tmp_path / "results"), "-o", "json"]
        assert main(argv) == 1
        assert server.lied > 0
    (found,) = json.loads(capsys.readouterr().out)["hosts"][0]["findings"]
    assert (found["status"], found["id"]) == ("fail", REASONS[code][0]), found
    (file,) = (tmp_path / "results").glob("attached_*.json")
    result = json.loads(file.read_text())
    assert result["status"] == "invalid" and code in [reason["code"] for reason in result["reasons"]], result["reasons"]
    assert "figures" not in result
    assert len(result["trials"]) == (2 if honest == IN_SECOND_TRIAL else 0), "the records of what happened are kept"
    assert main(["bench", "report", str(tmp_path / "results")]) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| attached"))
    assert "–" in row and "±" not in row and "invalid" in row


def test_the_same_server_is_valid_without_a_lie(plan_file: Written, tmp_path: Path) -> None:
    """Guards all tests above: were the honest answers invalid too, they would prove nothing."""
    with Server() as server:
        for prompt, tokens in (("{long: {text: def fib of n, tokens: 300}}", "[48]"), ("{fib: def}", "[300]")):
            results = tmp_path / tokens
            plan = plan_file(prompts=prompt, max_tokens=tokens, trials="1")
            assert main(["bench", "run", str(plan), "--url", server.url, "--results", str(results)]) == 0


def test_speculation_is_counted_in_tokens_not_in_pieces(plan_file: Written, tmp_path: Path) -> None:
    with Server(tokens_a_piece=4) as server:
        argv = [
            "bench",
            "run",
            str(plan_file(max_tokens="[64]")),
            "--url",
            server.url,
            "--results",
            str(tmp_path / "r"),
        ]
        assert main(argv) == 0
    result = json.loads(next((tmp_path / "r").glob("attached_*.json")).read_text())
    rates = []
    for trial in result["trials"]:
        answers = trial["answers"]
        assert [len(answer["pieces"]) for answer in answers] == [16, 16]
        rates.append(128 / (max(a["last"] for a in answers) - min(a["sent"] for a in answers)))
    assert result["figures"]["output"]["mean"] == pytest.approx(sum(rates) / len(rates), rel=1e-3)


def test_a_field_that_the_server_does_not_know_is_left_out_and_said(plan_file: Written, tmp_path: Path) -> None:
    with Server(lie="unknown field") as server:
        assert main(["bench", "run", str(plan_file()), "--url", server.url, "--results", str(tmp_path / "r")]) == 0
        assert "ignore_eos" in server.asked[0] and all("ignore_eos" not in body for body in server.asked[1:])
    result = json.loads(next((tmp_path / "r").glob("attached_*.json")).read_text())
    assert result["target"]["left_out"] == ["ignore_eos"]


def test_no_two_prompts_begin_alike(plan_file: Written, tmp_path: Path) -> None:
    with Server() as server:
        assert main(["bench", "run", str(plan_file()), "--url", server.url, "--results", str(tmp_path / "r")]) == 0
        begins = [body["messages"][0]["content"].split()[0] for body in server.asked]
    assert len(begins) == 1 + 2 + 4 and len(set(begins)) == len(begins)
    assert all(body["temperature"] == 0 and body["stream_options"] == {"include_usage": True} for body in server.asked)


def test_the_key_is_sent_and_kept_nowhere(
    plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-very-secret\n")
    with Server(key="sk-very-secret") as server:
        argv = ["bench", "run", str(plan_file()), "--url", server.url, "--results", str(tmp_path / "r")]
        assert main(argv) == 2
        assert "--api-key-file" in capsys.readouterr().err
        assert main([*argv, "--api-key-file", str(key)]) == 0
    told = capsys.readouterr()
    assert "secret" not in told.out + told.err
    assert not [f for f in (tmp_path / "r").iterdir() if "secret" in f.read_text()]


@pytest.mark.parametrize(
    ("lie", "lines", "said"),
    [
        ("dies on the first token", {}, "does not answer a first question"),
        ("server error", {}, "does not answer a first question"),
        ("", {"prompts": "{a: {text: w w, tokens: 4000}}", "max_tokens": "[16, 256]"}, "a: 4000 + 256 = 4256"),
        ("", {"prompts": "{a: {text: w w, tokens: 3838}}", "max_tokens": "[256]"}, "a: 3843 + 256 = 4099"),
        ("", {"prompts": "{a: {text: w w, tokens: 5000}}"}, "context is 4096 tokens"),
        ("", {"prompts": "{a: {text: w, tokens: 1}}"}, "it could not be cut to 1 tokens: the server counted"),
        ("no tokenizer", {"prompts": "{a: {text: w w, tokens: 50}}"}, "cannot count tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_is(
    lie: str,
    lines: dict[str, str],
    said: str,
    plan_file: Written,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Server(lie=lie) as server:
        argv = ["bench", "run", str(plan_file(**lines)), "--url", server.url, "--results", str(tmp_path / "r")]
        assert main(argv) == 2
        assert len(server.asked) <= 1
    told = capsys.readouterr().err
    assert said in told and "way out: " in told
    assert not list((tmp_path / "r").glob("attached_*.json"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "connection refused"),
        ("http://no-such-host.invalid:80", "no engine answers"),
        ("127.0.0.1:8000", "no address of a server"),
        ("http://127.0.0.1:99999", "Port out of range"),
    ],
)
def test_a_server_that_is_not_there_is_said_in_one_line(
    url: str, said: str, plan_file: Written, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "run", str(plan_file()), "--url", url, "--results", str(tmp_path / "r")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
