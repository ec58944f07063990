# SPDX-License-Identifier: Apache-2.0
"""A plan is refused with its file, its line, its key and the way out, or means the same whichever way it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosttune.bench.plan import load, read, restore
from hosttune.core.model import Refused

GOOD = "prompts:\n  fib: def fib\nmax_tokens: [16]\n"

BAD = [
    ("", "p.yml", "empty"),
    ("- 3", "p.yml:1", "a map is wanted"),
    ("prompts: {a: b\n", "p.yml:2", "not YAML"),
    ("prompts: {a: b}\n", "p.yml:1", "the key max_tokens is missing"),
    (GOOD + "trails: 3\n", "p.yml:4", "trails: no such key"),
    (GOOD + "max_tokens: [32]\n", "p.yml:4", "a second time"),
    (GOOD + "trials: three\n", "p.yml:4", "trials: a text (three) stands here, a whole number from 1"),
    (GOOD + "trials: true\n", "p.yml:4", "true or false (True) stands here"),
    (GOOD + "trials: 0\n", "p.yml:4", "not between 1 and"),
    (GOOD + "concurrency:\n  - 1\n  - 0\n", "p.yml:6", "concurrency[1]: 0 is not between"),
    (GOOD + "concurrency: [1, 1]\n", "p.yml:4", "twice"),
    (GOOD + "concurrency: []\n", "p.yml:4", "the list is empty"),
    (GOOD + "timeout: soon\n", "p.yml:4", "timeout: a text (soon)"),
    (GOOD + "streaming: false\n", "p.yml:4", "only streaming"),
    (GOOD + "temperature: 0.7\n", "p.yml:4", "only 0"),
    (GOOD + "ignore_eos: 1\n", "p.yml:4", "true or false is wanted"),
    (GOOD + "baseline: ar\n", "p.yml:4", "no arm is called ar"),
    (GOOD + "arms: {}\n", "p.yml:4", "there is no arm"),
    (GOOD + "arms: {a_b: attach}\n", "p.yml:4", "cannot be part of a file name"),
    (GOOD + "name: ../../etc\n", "p.yml:4", "cannot be part of a file name"),
    ("prompts:\n  fib: ' '\nmax_tokens: 16\n", "p.yml:2", "the prompt is empty"),
    ("prompts:\n  fib: {txt: a}\nmax_tokens: 16\n", "p.yml:2", "prompts.fib.txt: no such key"),
    ("prompts:\n  fib: {text: a, file: b}\nmax_tokens: 16\n", "p.yml:2", "either a text or a file"),
    ("prompts:\n  fib: {file: nowhere.txt}\nmax_tokens: 16\n", "p.yml:2", "nowhere.txt: No such file"),
    ("prompts:\n  fib: 1.10\nmax_tokens: 16\n", "p.yml:2", "stands here, a map is wanted"),
    ("prompts: {}\nmax_tokens: 16\n", "p.yml:1", "there is no prompt"),
    ("prompts: &a [*a]\nmax_tokens: 16\n", "p.yml", "points at what contains it"),
]


@pytest.mark.parametrize(("text", "where", "said"), BAD)
def test_what_is_wrong_is_named_with_its_place(text: str, where: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        read(text, "p.yml", tmp_path)
    assert refused.value.where == where and said in refused.value.what


def test_a_near_miss_of_a_key_is_named() -> None:
    with pytest.raises(Refused) as refused:
        read(GOOD + "trails: 3\n", "p.yml", None)
    assert refused.value.way_out == "did you mean trials?"


def test_the_shipped_plan_is_good_and_an_unknown_one_names_it() -> None:
    assert len(load("smoke").configurations) == 4
    with pytest.raises(Refused) as refused:
        load("smok")
    assert "smoke" in refused.value.way_out


def test_a_plan_is_known_by_what_it_means(tmp_path: Path) -> None:
    (tmp_path / "fib.txt").write_text("def fib")
    same = "max_tokens: 16\nprompts: {fib: {file: fib.txt}}\n# said otherwise\n"
    a, b = read(GOOD + "name: x\n", "p.yml", None), read(same + "name: x\n", "q.yml", tmp_path)
    assert a.digest == b.digest
    (tmp_path / "fib.txt").write_text("def fob")
    assert read(same + "name: x\n", "q.yml", tmp_path).digest != a.digest
    assert restore(a.as_dict()).digest == a.digest


def test_every_configuration_has_a_file_name_of_its_own() -> None:
    text = (
        "prompts: {a.b: x, a-b: y, t1: z}\nmax_tokens: [1, 11]\nconcurrency: [1, 11]\narms: {a: attach, a.b: attach}\n"
    )
    keys = [c.key for c in read(text, "p.yml", None).configurations]
    assert len(keys) == 24 == len(set(keys))
