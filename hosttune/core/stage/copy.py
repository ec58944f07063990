# SPDX-License-Identifier: Apache-2.0
"""Bytes into tmpfs at memory speed, hashed on their way. With the files it imports it touches the machine itself.

Measured (16 cores, source in memory): `cp` into plain /dev/shm 2 GB/s; with huge pages, one writer a file by whole pages
47 GB/s (a write of a whole page does not clear it first, a page fault does), and 29 GB/s for the parts of one file, most read
straight into a mapping (several writers of one file wait for its inode lock, a mapping has none). schedule.py says which
thread does what: a file a thread while there are as many files as threads, then the parts of what is left.

Each piece is hashed while it is in the cache of the core that read it. Processes in place of threads were measured and gain
nothing: preadv, pwrite, posix_fallocate and hashlib release the interpreter's lock (pieces of 256 KiB are a fifth slower for it).
To hash straight from a mapping of the source would be a tenth faster, and a SIGBUS when the source is cut short; what is not
hashed the kernel takes from there (reading.py). Every page is reserved before the first byte is copied: a full tmpfs is ENOSPC
then, and never a SIGBUS either.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, Optional, Sequence, Tuple

from ..model import Refused
from .begun import VOID
from .chunks import chunk_digests, compare, copy_chunks, write
from .folders import keep_only, make_folders, move, remove
from .nodes import bind
from .pace import FREE, Pace
from .reading import CACHE, CHUNK, DISK, GIVEN, MEMORY, PIECE, Cold, Job, Source
from .schedule import Part
from .together import Run, each, share_out, threads_here

__all__ = ["CHUNK", "Copied", "Job", "Pace", "chunk_digests", "compare", "copy", "copy_chunks", "keep_only", "make_folders",
           "move", "remove", "threads_here"]  # fmt: skip


@dataclass(frozen=True)
class Copied:
    """A file that is whole: sha256 of all of it if that was known before, else one for each CHUNK. None if not hashed."""

    job: Job
    sha256: str = ""
    chunks: Tuple[str, ...] = ()


Noted = Callable[[Job, int, str], None]
"""Told by the thread that copied it: chunk `number` of that file is there, and its digest if there is one."""


def copy(jobs: Sequence[Job], threads: int, whole: Callable[[Copied], None], tick: Callable[[int], None],
         hashed: bool = True, pace: Pace = FREE, forget: Optional[bool] = None,
         noted: Noted = lambda job, number, digest: None) -> None:  # fmt: skip
    """Copy all jobs into files that do not exist yet (one that does is unlinked: somebody may have it mapped), or into what an
    earlier run has left of them (job.there).

    whole(copied) for each file that is whole, tick(bytes so far) some times a second, both in the calling thread.
    pace: for a host that is serving. forget: the sources' page cache is dropped behind the copy; None: if memory would not
    hold a second copy of all that is copied.
    Raises OSError (ENOSPC: nothing was copied yet) and Refused for a source that vanishes, shrinks or changes.
    """
    run = Run(pace)
    with ThreadPoolExecutor(threads, initializer=pace.begin) as pool:
        each([pool.submit(reserve, job) for job in jobs], lambda _: None, lambda: tick(0))
        if forget is None:
            forget = _available() < sum(job.size for job in jobs)
        cold = Cold()
        files = [_File(job, hashed, forget, cold, noted) for job in jobs]
        try:
            share_out(pool, threads, files, run, whole, tick, hashed)
        finally:
            for file in files:
                file.close()


def reserve(job: Job) -> None:
    """A new file of the full size with all its pages. The size comes first: before Linux 6.12 `huge=within_size` looks at it.
    The NUMA node comes before the pages. Raises OSError: ENOSPC for a full tmpfs."""
    if job.there:
        _still_reserved(job)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(job.target)
    fd = os.open(job.target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)  # whatever the umask says
        os.ftruncate(fd, job.size)
        if job.node:
            bind(fd, job.size, job.node)
        if job.size:
            os.posix_fallocate(fd, 0, job.size)
    except OSError as e:
        os.unlink(job.target)
        raise OSError(e.errno, os.strerror(e.errno or 0), job.target) from None
    finally:
        os.close(fd)


def _still_reserved(job: Job) -> None:
    """What an earlier run has left has all its pages: it copied nothing before. Refused when that is not so any more."""
    fd = os.open(job.target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        now = os.fstat(fd)
        if (now.st_size, now.st_blocks * 512 >= job.size) != (job.size, True):
            raise Refused("what an earlier run has left of it has changed", job.target, "rm %s, and run this again" % job.target)
    finally:
        os.close(fd)


def _available() -> int:
    """MemAvailable, bytes."""
    with open("/proc/meminfo", encoding="ascii") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable:"))


class _File:
    """A file on its way: both descriptors and the mapping, from its first part to its last; what was hashed of it."""

    def __init__(self, job: Job, hashed: bool, forget: bool, cold: Cold, noted: Noted) -> None:
        self.job, self.forget, self.cold, self.noted = job, forget, cold, noted
        self.count = max(1, -(-job.size // CHUNK))
        self.in_order = bool(hashed and job.sha256)
        self.there: Collection[int] = job.there
        self.total: Any = hashlib.sha256() if self.in_order else None
        self.chunks: Dict[int, str] = dict(job.there) if hashed and not job.sha256 else {}
        self.lock = threading.Lock()
        self.source: Optional[Source] = None
        self.target = -1
        self.mapping: Optional[mmap.mmap] = None

    def open(self, mapped: bool) -> Source:
        """Open it, if nobody has yet."""
        with self.lock:
            if self.source is None:
                self.target = os.open(self.job.target, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                self.source = Source(self.job)
            if mapped and self.mapping is None:
                self.mapping = mmap.mmap(self.target, self.job.size)
            return self.source

    def close(self) -> None:
        """When no thread has a part of it any more. More than once is fine."""
        if self.mapping is not None:
            self.mapping.close()
        if self.target >= 0:
            os.close(self.target)
        if self.source is not None:
            self.source.close()
        self.source, self.target, self.mapping = None, -1, None

    def do(self, part: Part, memory: mmap.mmap, run: Run) -> None:
        """Copy, hash, or both: through `memory` or in the mapping."""
        source = self.open(part.mapped)
        start, end = part.number * CHUNK, min((part.number + 1) * CHUNK, self.job.size)
        digest = self.total or hashlib.sha256()
        # In the middle: who looked at a file's head made that warm, and the kernel reads ahead beyond a chunk's end.
        lies = source.lies((start + end) // 2) if part.copy and start < end else ""
        cold = lies == DISK and source.go_direct()
        direct, began = cold and self.cold.direct(), time.monotonic()
        # What somebody has mapped the page cache does not drop.
        given = not part.hash and not part.mapped and (lies == MEMORY or lies == CACHE and not self.forget)
        done = self._given(source, start, end, run) if given else start
        with memoryview(self.mapping if part.mapped and self.mapping is not None else memory) as room:
            for at in range(done, end, PIECE):
                count = min(PIECE, end - at)
                with room[at : at + count] if part.mapped else room[:count] as view:
                    if part.copy:
                        source.read(view, at, direct)
                    if part.hash:
                        digest.update(view)
                    if not part.mapped:
                        write(self.target, view, at)
                run.add(count if part.copy else 0)
        if part.hash and not self.total and start < end:
            self.chunks[part.number] = digest.hexdigest()
        if cold:
            self.cold.took(direct, end - start, time.monotonic() - began)
        if part.copy:
            self.noted(self.job, part.number, self.chunks.get(part.number, ""))
            if self.forget and not direct:
                source.forget(start, end)

    def _given(self, source: Source, at: int, end: int, run: Run) -> int:
        """How far the kernel alone came: to the end, unless the source cannot be read there any more."""
        stop = at
        while at == stop < end:
            stop = min(at + GIVEN, end)
            before, at = at, source.give(self.target, at, stop)
            run.add(at - before)
        return at

    def seal(self) -> Copied:
        """The copy is what it must be: its size, the known hash; and it gets the source's time."""
        job, sha256 = self.job, self.total.hexdigest() if self.total else ""
        if sha256 != job.sha256 and self.total:
            self.noted(job, VOID, "")  # or what an earlier run has left would be found wrong for ever
            raise Refused("its sha256 is %s..., and its name in the cache says %s..." % (sha256[:12], job.sha256[:12]),
                          job.source, "the file is damaged on the disk: remove it and download it again")
        source = self.open(False)
        source.check()
        size = os.fstat(self.target).st_size
        if size != job.size:
            raise Refused("the copy is %d bytes long, want %d" % (size, job.size), job.target, "run this again")
        if self.forget:
            source.forget(0, job.size)  # again: what was read ahead beyond a chunk that another thread had done
        at = os.fstat(source.fd).st_mtime_ns
        self.close()  # first: the time of a file written through a mapping may move until it is unmapped
        os.utime(job.target, ns=(at, at))
        return Copied(job, sha256, tuple(self.chunks[number] for number in sorted(self.chunks)))
