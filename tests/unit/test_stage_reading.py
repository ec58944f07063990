# SPDX-License-Identifier: Apache-2.0
"""A source on a disk: cold it is read past the page cache, warm it is taken from there, and short of memory it is forgotten."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hosttune.core.stage import copy
from hosttune.core.stage.copy import Job
from hosttune.core.stage.reading import DISK, MEMORY, PIECE, UNKNOWN, Cold, Source

MIB = 1 << 20
SIZE = 9 * MIB + 4096 + 5
"""Chunks of 4 MiB below, and a tail that O_DIRECT takes no part of."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A source that is written out and in the page cache, on a real disk."""
    monkeypatch.setattr(copy, "CHUNK", 4 * MIB)
    source = tmp_path / "source"
    with source.open("wb") as f:
        f.write(os.urandom(SIZE))
        f.flush()
        os.fsync(f.fileno())
    if not os.major(source.stat().st_dev):
        pytest.skip("no block device below %s" % tmp_path)
    return Job(str(source), str(tmp_path / "target"), str(tmp_path), SIZE, source.stat().st_mtime)


@contextmanager
def opened(job: Job) -> Iterator[Source]:
    with closing(Source(job)) as source:
        yield source


def is_cold(job: Job) -> list[bool]:
    """In both chunks, where no head or tail was read. To ask makes the disk read ahead: ask once, and the later chunk first."""
    with opened(job) as source:
        later = source.lies(5 * MIB)
        return [source.lies(MIB) == DISK, later == DISK]


def cool(job: Job) -> None:
    with opened(job) as source:
        source.forget(0, SIZE)


@pytest.mark.parametrize("threads", [1, 4])
def test_cold_source_is_copied_whole_and_leaves_no_second_copy_in_the_page_cache(
    job: Job, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cold, "direct", lambda self: True)
    cool(job)
    with open(job.source, "rb") as f:
        f.read(4096)  # a header that was looked at before makes no warm file
    copy.copy([job], threads, lambda copied: None, lambda count: None)
    assert is_cold(job) == [True, True]
    assert Path(job.target).read_bytes() == Path(job.source).read_bytes()


def test_warm_source_is_read_from_the_page_cache(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "go_direct", lambda self: pytest.fail("no O_DIRECT for what is in memory"))
    copy.copy([job], 2, lambda copied: None, lambda count: None)
    assert is_cold(job) == [False, False]


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("short", [True, False])
def test_page_cache_is_dropped_behind_the_copy_if_memory_is_short(
    job: Job, short: bool, hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "_available", lambda: SIZE - short)
    copy.copy([job], 2, lambda copied: None, lambda count: None, hashed)
    assert is_cold(job) == [short, short]


def test_warm_source_that_is_not_hashed_is_never_read_into_this_process(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "read", lambda *_: pytest.fail("two copies in place of one"))
    copy.copy([job], 1, lambda copied: None, lambda count: None, hashed=False)
    assert Path(job.target).read_bytes() == Path(job.source).read_bytes()


def test_cold_source_that_is_not_hashed_is_copied_whole(job: Job) -> None:
    cool(job)
    copy.copy([job], 1, lambda copied: None, lambda count: None, hashed=False)
    assert Path(job.target).read_bytes() == Path(job.source).read_bytes()


@pytest.mark.parametrize("left", [5 * MIB, 5 * MIB + 7, 0])
def test_kernel_stops_where_a_source_was_cut_short_and_nobody_is_killed(job: Job, left: int) -> None:
    target = os.open(job.target, os.O_RDWR | os.O_CREAT)
    try:
        with opened(job) as source:
            assert source.give(target, 0, 2 * MIB) == 2 * MIB
            os.truncate(job.source, left)
            assert source.give(target, 2 * MIB, SIZE) <= max(2 * MIB, left + 4096)
    finally:
        os.close(target)


def test_what_o_direct_refuses_is_read_through_the_page_cache(job: Job) -> None:
    cool(job)
    with opened(job) as source, mmap.mmap(-1, 2 * PIECE) as memory, memoryview(memory) as view:
        assert source.go_direct() and source.direct
        with view[1 : PIECE + 1] as unaligned:
            with pytest.raises(OSError, match="Invalid argument"):
                os.preadv(source.direct, [unaligned], 0)
            source.read(unaligned, 0, direct=True)
            assert bytes(unaligned) == Path(job.source).read_bytes()[:PIECE]


def test_file_system_without_a_disk_is_never_cold_and_only_memory_is_called_memory(tmp_path: Path) -> None:
    status = os.stat("/proc/version")
    with opened(Job("/proc/version", "", "/proc", status.st_size, status.st_mtime)) as source:
        assert source.lies(0) == UNKNOWN
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as f:
        status = os.stat(f.name)
        with opened(Job(f.name, "", "/dev/shm", 0, status.st_mtime)) as source:
            assert source.lies(0) == MEMORY


@pytest.mark.parametrize(("direct", "cached"), [(2.0, 1.0), (1.0, 2.0)])
def test_way_that_is_faster_is_gone_on_with_when_both_were_tried(direct: float, cached: float) -> None:
    cold, begun = Cold(), []
    for _ in range(40):
        begun.append([cold.direct() for _ in range(4)])  # four threads
        for choice in begun[-1]:
            cold.took(choice, MIB, MIB / (direct if choice else cached))
    assert sorted(choice for four in begun[:2] for choice in four) == [False] * 4 + [True] * 4
    assert {choice for four in begun[2:] for choice in four} == {direct > cached}
