# SPDX-License-Identifier: Apache-2.0
"""Who copies what next: the chunks of many files shared out among threads. Touches nothing; every order of threads ends well.

While there are more files than threads, each file has one thread: several writers of one tmpfs file wait for its inode lock.
Threads without a file of their own join others' files; all but a few of those copy through a mapping, which has no such lock.

A file whose one sha256 is known has to be hashed in order, by one thread at a time. Near the end such files take turns, the one
with the most left first, so that all end together: 17 equal files on 16 threads then need 17/16 of the time of 16, not twice
(McNaughton's rule). Threads that are left over copy ahead of the hash.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Collection, Deque, List, Optional, Sequence, Set, Tuple


@dataclass(frozen=True)
class Part:
    """Chunk `number` of file `file`. copy, hash: what is to be done with it. mapped: through a mapping of the target, for
    enough others write to the file now (or since it is there already, and only to be hashed)."""

    file: int
    number: int
    copy: bool
    hash: bool
    mapped: bool


WRITERS = 4
"""Who hashes what he writes holds the inode lock for a sixth of his time: so many may write to one file (of 1 to 9 the fastest
on 16 cores, in the mean of three rounds)."""


class _Row:
    """One file: chunks to be copied, how many of them are taken, chunks that are there ahead of the hash, how many are done."""

    def __init__(self, file: int, count: int, in_order: bool, there: Collection[int] = ()) -> None:
        self.file, self.count, self.in_order = file, count, in_order
        self.todo: Sequence[int] = [n for n in range(count) if n not in there] if there else range(count)
        self.taken, self.running, self.writing = 0, 0, 0
        self.done = 0 if in_order else count - len(self.todo)
        self.ahead: Set[int] = set(there) if in_order else set()
        self.hashing = False

    @property
    def left(self) -> int:
        return self.count - self.done if self.in_order else len(self.todo) - self.taken

    @property
    def untaken(self) -> bool:
        """A chunk of it waits to be copied."""
        return self.taken < len(self.todo)

    @property
    def free(self) -> bool:
        """A thread can have it for itself now."""
        if self.in_order:
            return not self.hashing and (self.done in self.ahead or self.untaken and self.todo[self.taken] == self.done)
        return not self.running and self.untaken


class Schedule:
    """files: (chunks, in order) of each. hashed: chunks of the others are hashed too. ahead: files in order may be copied
    by threads that do not hash them; else they are left to one thread at a time. there: of each file the chunks that are there
    already; never all of them, since a file's last part ends it."""

    def __init__(self, files: Sequence[Tuple[int, bool]], threads: int, hashed: bool = True, ahead: bool = True,
                 there: Sequence[Collection[int]] = ()) -> None:
        self.threads, self.hashed, self.ahead = threads, hashed, ahead
        self.writers = WRITERS if hashed else 1
        rows = [_Row(file, *files[file], there[file] if there else ()) for file in range(len(files))]
        # Small files first, they are soon out of the way; then the largest.
        self.waiting: Deque[_Row] = deque(sorted(rows, key=lambda row: (row.count > 1, -row.count)))
        self.begun: List[_Row] = []
        self.running = 0
        self.over = False
        self.changed = threading.Condition()

    def take(self) -> Optional[Part]:
        """The next part, marked as taken; waits while only others' work could bring one. None: nothing is left."""
        with self.changed:
            while not self.over:
                part = self._next()
                if part:
                    return part
                if not self.running:
                    return None
                self.changed.wait()
            return None

    def done(self, part: Part) -> bool:
        """Give a part back; True when it was the last one of its file."""
        with self.changed:
            row = next(row for row in self.begun if row.file == part.file)
            self.running -= 1
            row.running -= 1
            row.writing -= not part.mapped
            if row.in_order and not part.hash:
                row.ahead.add(part.number)
            else:
                row.done += 1
                row.ahead.discard(part.number)
            if part.hash and row.in_order:
                row.hashing = False
            whole = row.done == row.count
            if whole:
                self.begun.remove(row)
            self.changed.notify_all()
            return whole

    def end(self) -> None:
        """Nothing more is handed out."""
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def _next(self) -> Optional[Part]:
        free = [row for row in self.begun if row.free]
        if self.waiting and (not free or len(self.waiting) < self.threads):
            free.append(self.waiting[0])
        if free:
            return self._own(max(free, key=lambda row: row.left))
        return self._join()

    def _own(self, row: _Row) -> Part:
        if self.waiting and row is self.waiting[0]:
            self.begun.append(self.waiting.popleft())
        if row.in_order:
            row.hashing = True
            if row.done in row.ahead:
                return self._mark(row, Part(row.file, row.done, False, True, True))
        return self._copy(row, self.hashed)

    def _join(self) -> Optional[Part]:
        open_ = [row for row in self.begun if row.untaken and (self.ahead or not row.in_order)]
        if not open_:
            return None
        row = max(open_, key=lambda row: len(row.todo) - row.taken)
        return self._copy(row, self.hashed and not row.in_order)

    def _copy(self, row: _Row, hashed: bool) -> Part:
        row.taken += 1
        number = row.todo[row.taken - 1]
        return self._mark(row, Part(row.file, number, True, hashed, row.writing >= (self.writers if hashed else 1)))

    def _mark(self, row: _Row, part: Part) -> Part:
        row.running += 1
        row.writing += not part.mapped
        self.running += 1
        return part
