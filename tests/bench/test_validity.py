# SPDX-License-Identifier: Apache-2.0
"""The gate, the statistics and the event parser where no server can bring them: borders, and any cut of the bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.bench.client import Answer
from hosttune.bench.http import server
from hosttune.bench.sse import Events
from hosttune.bench.statistics import number, ratio, summary, words
from hosttune.bench.target import PREEMPTED, counter
from hosttune.bench.validity import CEILING, Wanted, of_answer

GOOD = Answer(
    sent=0.1,
    head=0.2,
    first=0.3,
    last=1.3,
    end=1.4,
    status=200,
    done=True,
    usage={"prompt": 20, "completion": 16, "cached": 0},
    finish_reason="length",
    letters=60,
    distinct_letters=20,
    pieces=[0.3, 1.3],
)


def codes(answer: Answer, **wanted: object) -> list[str]:
    return [reason.code for reason in of_answer(answer, replace(Wanted(16), **wanted))]  # type: ignore[arg-type]


def test_a_good_answer_has_no_reason() -> None:
    assert codes(GOOD) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sent": None}, ["clock"]),
        ({"first": 0.05}, ["clock"]),
        ({"first": 1.35}, ["clock"]),
        ({"end": 1.2}, ["clock"]),
        ({"last": 0.3}, ["not-streamed"]),
        ({"last": 0.3 + 15 / (CEILING * 1.01)}, ["too-fast"]),
        ({"last": 0.3 + 15 / (CEILING * 0.99)}, []),
        ({"usage": {"prompt": 20, "completion": None, "cached": None}}, ["no-usage"]),
        ({"usage": {"prompt": 0, "completion": 16, "cached": None}}, ["usage-disagrees"]),
        ({"usage": {"prompt": 20, "completion": 16, "cached": 21}}, ["usage-disagrees"]),
        ({"usage": {"prompt": 20, "completion": 16, "cached": 10}}, []),
        ({"usage": {"prompt": 20, "completion": 16, "cached": 11}}, ["prompt-cached"]),
        ({"usage": {"prompt": 9000, "completion": 16, "cached": 65}}, ["prompt-cached"]),
        ({"usage": {"prompt": 20, "completion": -1, "cached": 0}, "letters": 0}, ["no-tokens"]),
        ({"pieces": [0.3] * 17}, []),
        ({"pieces": [0.3] * 18}, ["usage-disagrees"]),
        ({"error": {"kind": "event", "text": "illegal"}, "done": False, "usage": None}, ["event"]),
    ],
)
def test_each_border(changes: dict[str, object], expected: list[str]) -> None:
    assert codes(replace(GOOD, **changes)) == expected  # type: ignore[arg-type]


def test_natural_answers_may_end_early() -> None:
    early = replace(GOOD, usage={"prompt": 20, "completion": 9, "cached": 0}, finish_reason="stop")
    assert codes(early, exact=False) == []
    assert codes(early) == ["short"]


@pytest.mark.parametrize(
    ("prompt", "planned", "right"), [(84, 20, True), (85, 20, False), (30600, 30000, True), (30601, 30000, False)]
)
def test_a_prompt_is_as_long_as_planned(prompt: int, planned: int, right: bool) -> None:
    answer = replace(GOOD, usage={"prompt": prompt, "completion": 16, "cached": 0})
    assert codes(answer, prompt_tokens=planned) == ([] if right else ["prompt-length"])


@pytest.mark.parametrize(
    ("given", "url", "authority"),
    [
        ("http://127.0.0.1:30000", "http://127.0.0.1:30000", "127.0.0.1:30000"),
        ("http://127.0.0.1:30000/v1/", "http://127.0.0.1:30000", "127.0.0.1:30000"),
        ("https://engine.example/llm/v1", "https://engine.example:443/llm", "engine.example:443"),
        ("http://[::1]:8000", "http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_an_address_is_taken_with_and_without_v1(given: str, url: str, authority: str) -> None:
    assert (server(given).url, server(given).authority) == (url, authority)


STREAM = (
    ': ping\r\n\r\ndata: {"a": 1}\n\nevent: error\rdata: no\r\rdata: one\r\ndata:two\r\nid: 7\r\n\r\n\n\ndata: [DONE]\n\n'
).encode() + "data: é\n\n".encode()
EVENTS = [("message", '{"a": 1}'), ("error", "no"), ("message", "one\ntwo"), ("message", "[DONE]"), ("message", "é")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_however_the_network_cuts_them(cuts: list[int]) -> None:
    events, found, begin = Events(), [], 0
    for end in [*sorted(cuts), len(STREAM)]:
        found += list(events.feed(STREAM[begin:end]))
        begin = end
    assert found == EVENTS


def test_statistics_are_those_of_a_sample() -> None:
    found = summary([2, 4, 4, 4, 5, 5, 7, 9])
    assert found is not None and (found.n, found.mean, found.median) == (8, 5, 4.5)
    assert found.stdev == pytest.approx(2.1380899)


def test_nothing_is_claimed_of_one_trial_or_none() -> None:
    one, two = summary([26.4]), summary([173.0, 174.0])
    assert summary([]) is None
    assert one is not None and two is not None and one.stdev is None
    assert ratio(two, one) is None and ratio(one, two) is None
    assert words(one) == "26.4 (n=1)" and words(None) == "–"


def test_a_ratio_carries_its_interval() -> None:
    """Checked by hand: cv 2 % and 1 %, n = 3 each, so 2.94 degrees of freedom, t of 2: 4.303 * sqrt(0.0005 / 3) = 0.0556."""
    slow, fast = summary([99.0, 100.0, 101.0]), summary([196.0, 200.0, 204.0])
    assert slow is not None and fast is not None
    found = ratio(fast, slow)
    assert found is not None and str(found) == "2.00 (1.89 to 2.11)"
    same = ratio(slow, slow)
    assert same is not None and same.low < 1 < same.high
    steady = summary([5.0, 5.0])
    assert steady is not None and str(ratio(steady, steady)) == "1.00 (1.00 to 1.00)"


@pytest.mark.parametrize(
    ("values", "scale", "said"),
    [
        ([3012, 3108], 1, "3060 ± 68"),
        ([0.0036, 0.0038], 1000, "3.70 ± 0.14"),
        ([0.5, 0.5], 1, "0.500 ± 0.000"),
        ([0, 0], 1, "0 ± 0"),
    ],
)
def test_figures_are_said_to_the_third_digit(values: list[float], scale: float, said: str) -> None:
    assert words(summary(values), scale) == said


@pytest.mark.parametrize(("value", "said"), [(0, "0"), (5000, "5000"), (2.5, "2.5"), (0.0123, "0.0123"), (40, "40")])
def test_ticks_are_short(value: float, said: str) -> None:
    assert number(value) == said


def test_a_counter_is_summed_over_its_labels() -> None:
    rows = ("# HELP vllm:num_preemptions_total x", 'vllm:num_preemptions_total{engine="0"} 1.0')
    text = "\n".join([*rows, 'vllm:num_preemptions_total{engine="1"} 2e1', ""])
    assert counter(text, PREEMPTED) == 21
    assert counter(text.replace("preemptions_total", "preemptions_total_created"), PREEMPTED) is None
