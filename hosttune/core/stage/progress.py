# SPDX-License-Identifier: Apache-2.0
"""What a copy tells while it runs: bytes, rate, time left, and which file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

from ..door.host import Host
from . import manifest
from .plan import Plan

RATE_OVER = 10.0
"""Seconds over which the rate is told."""


@dataclass(frozen=True)
class Progress:
    """event: wait (for another run to end), start, bytes, file or end. rate: bytes a second. left: seconds, None if unknown.
    file: the last one that is whole, relative to the model. hashed: the bytes are, on their way. there: of `total` and of `bytes`
    what an earlier run has copied."""

    event: str
    name: str
    bytes: int
    total: int
    files: int
    of: int
    rate: float = 0
    left: Optional[float] = None
    file: str = ""
    hashed: bool = True
    there: int = 0


Told = Callable[[Progress], None]


class Meter:
    """Bytes and seconds of one copy, told to a callback."""

    def __init__(self, host: Host, seen: Plan, told: Told, hashed: bool = True) -> None:
        self.host, self.seen, self.told, self.hashed = host, seen, told, hashed
        self.bytes, self.files = seen.there, len(seen.kept)
        self.marks: List[Tuple[float, int]] = [(host.clock(), self.bytes)]
        self.started = self.marks[0][0]

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self.host.clock() - self.started

    def count(self, done: int) -> None:
        """So many bytes so far by this run."""
        self.bytes = self.seen.there + done
        self.marks.append((self.host.clock(), self.bytes))
        while len(self.marks) > 2 and self.marks[-1][0] - self.marks[0][0] > RATE_OVER:
            del self.marks[0]
        self.tell("bytes")

    def tell(self, event: str, file: str = "") -> None:
        """Call the callback."""
        if event == "file":
            self.files += 1
        seconds = self.marks[-1][0] - self.marks[0][0]
        rate = (self.marks[-1][1] - self.marks[0][1]) / seconds if seconds > 0 else 0.0
        there, of = self.seen.there, len(self.seen.source.files)
        total = there + self.seen.need
        left = (total - self.bytes) / rate if rate else None
        done = total if event == "end" else self.bytes
        self.told(Progress(event, self.seen.name, done, total, self.files, of, rate, left, manifest.shown(file), self.hashed,
                           there))  # fmt: skip
