# SPDX-License-Identifier: Apache-2.0
"""Who copies what next: every chunk once, in order where the hash wants it, and all threads busy to the end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Collection, Sequence

import pytest

from hosttune.core.stage.schedule import Part, Schedule

FILES = {
    "many equal": [(5, False)] * 20,
    "one large": [(40, False)],
    "one large, in order": [(40, True)],
    "seventeen, in order": [(8, True)] * 17,
    "mixed": [(1, False), (30, True), (12, False), (3, True), (1, True), (7, False)],
    "small ones": [(1, False)] * 50,
    "nothing": [],
}


def simulate(files: list[tuple[int, bool]], threads: int, seed: int, hashed: bool = True, ahead: bool = True,
             there: Sequence[Collection[int]] = ()) -> int:  # fmt: skip
    """Threads of unlike speed, without threads: whoever is done first takes the next part. The time that it took, in parts."""
    rng, schedule, busy, now = random.Random(seed), Schedule(files, threads, hashed, ahead, there), {}, 0.0
    copied: Counter[tuple[int, int]] = Counter()
    hashes: dict[int, list[int]] = {number: [] for number in range(len(files))}
    whole: list[int] = []
    free = threads
    while True:
        while free:
            part = schedule._next()  # `take` would wait
            if not part:
                break
            busy[part] = now + 1 + rng.random() * 1e-3
            free -= 1
            check(part, [other for other in busy if other is not part], files, hashed)
            if part.copy:
                copied[part.file, part.number] += 1
        if not busy:
            break
        part = min(busy, key=busy.__getitem__)
        now = busy.pop(part)
        free += 1
        if part.hash:
            hashes[part.file].append(part.number)
        if schedule.done(part):
            whole.append(part.file)
    old = [set(there[n]) if there else set() for n in range(len(files))]
    assert copied == Counter({(n, at): 1 for n, (count, _) in enumerate(files) for at in range(count) if at not in old[n]})
    assert sorted(whole) == list(range(len(files)))
    for number, (count, in_order) in enumerate(files):
        seen = hashes[number] if in_order else sorted(hashes[number])
        assert seen == ([at for at in range(count) if in_order or at not in old[number]] if hashed else [])
    return round(now)


def check(part: Part, others: list[Part], files: list[tuple[int, bool]], hashed: bool) -> None:
    same = [other for other in others if other.file == part.file]
    if files[part.file][1] and part.hash:
        assert not any(other.hash for other in same), "one thread at a time hashes a file in order"
    if not hashed and not part.mapped:
        assert all(other.mapped for other in same), "one writer a file"


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("name", FILES)
def test_every_chunk_is_copied_once_and_hashed_in_the_order_that_its_file_wants(name: str, threads: int) -> None:
    for seed in range(5):
        simulate(FILES[name], threads, seed)
        simulate(FILES[name], threads, seed, ahead=False)
        simulate([(count, False) for count, _ in FILES[name]], threads, seed, hashed=False)


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("name", FILES)
def test_chunk_that_is_there_is_not_copied_and_is_hashed_only_where_the_order_wants_it(name: str, threads: int) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        there = [set(rng.sample(range(count), rng.randrange(count))) for count, _ in FILES[name]]
        simulate(FILES[name], threads, seed, there=there)
        simulate([(count, False) for count, _ in FILES[name]], threads, seed, hashed=False, there=there)


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ([(8, True)] * 17, 8.5 + 1),  # 17/16 of 8, and the last part: not 16
        ([(40, False)] * 24, 60 + 1),  # 24/16 of 40: not 80
        ([(64, False)], 4 + 1),  # one file is as parallel as many
        ([(40, True)], 40 + 1),  # a hash in order is one thread's work
    ],
)
def test_threads_end_together(files: list[tuple[int, bool]], parts: float) -> None:
    assert max(simulate(files, 16, seed) for seed in range(10)) <= parts + 1


def test_files_that_were_begun_are_ended_before_others_while_there_are_many() -> None:
    schedule, begun = Schedule([(4, False)] * 100, 2, True), set()
    for _ in range(100):
        part = schedule.take()
        assert part
        begun.add(part.file)
        schedule.done(part)
    assert len(begun) <= 26, "a run that is killed half-way leaves whole files"


def test_threads_that_wait_for_others_are_woken_by_the_end() -> None:
    schedule = Schedule([(1, True)], 2, True)
    assert schedule.take()
    got: list[Part | None] = []
    waiting = threading.Thread(target=lambda: got.append(schedule.take()))
    waiting.start()
    schedule.end()
    waiting.join(10)
    assert got == [None]
