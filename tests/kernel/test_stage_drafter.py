# SPDX-License-Identifier: Apache-2.0
"""A drafter and its target in memory: the same words under the same numbers, or it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.model import Report
from hosttune.core.stage import declared, verify
from hosttune.core.wanted.profile import Profile, validate
from tests.kernel.staged import MOUNT, scratched
from tests.kernel.staged import shm as shm  # a fixture
from tests.kernel.view import scratch
from tests.unit.stage_models import plain, tensors

WORDS = {"a": 0, "b": 1, "c": 2}
BPE = {"model": {"type": "BPE", "vocab": WORDS}, "added_tokens": [{"id": 3, "content": "<eos>"}]}
UNIGRAM = {"model": {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0], ["c", -2.5]]}}
ARGS: dict[str, Mapping[str, str]] = {
    "sglang in a container": {"speculative-algorithm": "STANDALONE", "speculative-draft-model-path": "/srv/models/small"},
    "vllm on the host": {"speculative-config": '{"method": "draft_model", "model": "/dev/shm/models/small"}'},
}


def model(tokenizer: object, name: str) -> Path:
    files = {"model.safetensors": tensors({"a": ("uint8", (1000,))}), "config.json": b'{"architectures": ["X"]}'}
    if tokenizer is not None:
        files["tokenizer.json"] = tokenizer if isinstance(tokenizer, bytes) else json.dumps(tokenizer).encode()
    return plain(scratch(name), files)


def profile(target: object, drafter: object, args: Mapping[str, str] = ARGS["sglang in a container"]) -> Profile:
    rows = {"large": {"source": str(model(target, "large"))}, "small": {"source": str(model(drafter, "small"))}}
    engine = {"engine": "sglang", "venv": "/opt/x", "model": "large", "port": 1, "args": dict(args)}
    return validate({"models": rows, "engines": {"e": engine}})


def odd(report: Report) -> list[tuple[str, str, str]]:
    return [(f.subject, f.status, f.summary) for f in report.findings if f.id == "HT508"]


@pytest.mark.parametrize("args", ARGS.values(), ids=ARGS)
def test_drafter_with_other_numbers_is_told_when_both_are_in_memory(args: Mapping[str, str]) -> None:
    wanted = profile(BPE, {**BPE, "model": {"vocab": {**WORDS, "b": 2, "c": 1}}}, args)
    assert odd(declared.bring(LiveHost(), wanted, "large")) == []
    (told,) = odd(declared.bring(LiveHost(), wanted, "small"))
    assert told[:2] == ("small", "warn") and "small drafts for large, and 2 of their 4 words" in told[2]
    for report in (declared.bring(LiveHost(), wanted, "large"), declared.overview(LiveHost(), wanted)):
        assert odd(report) == [told] and not report.changed


SAME = {
    "one file": (BPE, BPE),
    "another text": (BPE, json.dumps({**BPE, "padding": None}, indent=2).encode()),
    "two kinds": ({**BPE, "added_tokens": []}, UNIGRAM),
    "a drafter without one": (BPE, None),
    "a target without one": (None, BPE),
}


@pytest.mark.parametrize("case", SAME)
def test_same_words_are_the_same_whatever_their_files_look_like(case: str) -> None:
    wanted = profile(*SAME[case])
    assert [odd(declared.bring(LiveHost(), wanted, name)) for name in ("large", "small")] == [[], []]


def test_what_cannot_be_compared_is_an_error() -> None:
    wanted = profile(BPE, {**BPE, "model": {"vocab": {"a": 0}}})
    for name in ("large", "small"):
        declared.bring(LiveHost(), wanted, name)
    scratched(MOUNT / "small/tokenizer.json", 0)
    (told,) = odd(declared.overview(LiveHost(), wanted))
    assert told[:2] == ("small", "error") and verify.verify(LiveHost(), ["small"]).findings[0].status == "fail"


def test_models_that_have_nothing_to_do_with_each_other_are_not_compared() -> None:
    wanted = profile(BPE, UNIGRAM, {"speculative-config": "{not JSON", "context-length": "/srv/models/small"})
    for name in ("large", "small"):
        assert odd(declared.bring(LiveHost(), wanted, name)) == []
