# SPDX-License-Identifier: Apache-2.0
"""A copy on a host that is serving: held to a rate over all threads, and nice in its own threads alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hosttune.core.stage import copy, declared, pace
from hosttune.core.stage.pace import FREE, Bucket, Pace
from hosttune.core.stage.reading import Source
from hosttune.core.wanted.profile import Profile, validate

MIB = 1 << 20


class Clock(threading.Event):
    """Time that passes only while somebody waits."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0
        return False


@pytest.mark.parametrize("piece", [MIB, 2 * MIB, 7])
def test_bytes_take_the_time_that_the_limit_gives_them(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    bucket = Bucket(1000 * piece)
    for _ in range(5000):
        bucket.wait_for(piece, clock)
    assert clock.now - 1000 == pytest.approx(5)
    clock.now += 3600
    begin = clock.now
    for _ in range(1000):
        bucket.wait_for(piece, clock)
    assert clock.now - begin == pytest.approx(1 - Bucket.BURST), "an idle hour saves up no more than a burst"


def test_without_a_limit_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    Bucket(0).wait_for(1 << 40, clock)
    assert clock.now == 1000


def test_copy_is_nice_in_its_own_threads_and_ends_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(5 * MIB))
    levels, read = set(), Source.read

    def reading(self: Source, view: memoryview, at: int, direct: bool = False) -> None:
        levels.add(os.getpriority(os.PRIO_PROCESS, 0))
        read(self, view, at, direct)

    monkeypatch.setattr(Source, "read", reading)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    job = copy.Job(str(source), str(tmp_path / "target"), str(tmp_path), 5 * MIB, source.stat().st_mtime)
    copy.copy([job], 2, lambda copied: None, lambda count: None, pace=Pace(limit=1e12, nice=7))
    assert levels == {7} and os.getpriority(os.PRIO_PROCESS, 0) == before
    assert (tmp_path / "target").read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("said", "limit", "nice", "want"),
    [
        ({}, None, None, FREE),
        ({"limit": "2GB/s", "nice": "10"}, None, None, Pace(2e9, 10)),
        ({"limit": "500 MB/s"}, None, 3, Pace(5e8, 3)),
        ({"limit": "1.5G", "nice": "19"}, 1e9, None, Pace(1e9, 19)),
        ({"limit": "2GB/s", "nice": "10"}, 0.0, 0, FREE),
    ],
)
def test_model_is_copied_as_the_profile_says_and_an_option_says_otherwise(
    said: dict[str, str], limit: float | None, nice: int | None, want: Pace
) -> None:
    profile = validate({"models": {"tiny": {"source": "/m", **said}}})
    assert declared.pace_of(profile, "tiny", limit, nice) == want
    assert declared.pace_of(Profile(), "tiny", limit, nice) == Pace(limit or 0, nice or 0)
