# SPDX-License-Identifier: Apache-2.0
"""The source of a copy: the file that was planned, and not what somebody has put in its place since."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import Iterator

from ..model import Refused

PIECE = 2 << 20
"""Bytes a read: one huge page, and small enough for a core's cache."""
CHUNK = 32 << 20
"""Bytes a digest, and a thread's part of a large file; whole huge pages, so that each has one writer."""
LATER = "let whatever writes there end, then run this again: files that are whole are kept"


@dataclass(frozen=True)
class Job:
    """One file to copy. source: real path, below `root` and no link. size, mtime: as it was planned. sha256: what its
    content must have, "" if unknown."""

    source: str
    target: str
    root: str
    size: int
    mtime: float
    sha256: str = ""


@contextlib.contextmanager
def opened(job: Job) -> Iterator[int]:
    """The source's descriptor. Refused when it is not the file that was planned: before the copy, and after it."""
    try:
        fd = os.open(job.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        raise Refused("the file cannot be opened any more: %s" % os.strerror(e.errno or 0), job.source, LATER)
    try:
        at = os.readlink("/proc/self/fd/%d" % fd)
        if not at.startswith(job.root.rstrip("/") + "/"):
            raise Refused("the file is now reached through a link out of %s" % job.root, job.source, LATER)
        _same(fd, job)
        yield fd
        _same(fd, job)
    finally:
        os.close(fd)


def _same(fd: int, job: Job) -> None:
    now = os.fstat(fd)
    if not stat.S_ISREG(now.st_mode) or now.st_size != job.size or now.st_mtime != job.mtime:
        raise Refused("the file changed while it was copied (%d bytes, now %d)" % (job.size, now.st_size), job.source, LATER)


def read(fd: int, view: memoryview, at: int, job: Job) -> None:
    """Fill the view. Refused when the file ends before, or cannot be read."""
    got = 0
    while got < len(view):
        try:
            count = os.preadv(fd, [view[got:]], at + got)
        except OSError as e:
            raise Refused("reading at %d failed: %s" % (at + got, os.strerror(e.errno or 0)), job.source,
                          "look at the disk: dmesg | tail; then run this again")
        if not count:
            raise Refused("the file ends at %d, and was %d bytes long" % (at + got, job.size), job.source, LATER)
        got += count
