# SPDX-License-Identifier: Apache-2.0
"""Digests of the parts of a file: verified side by side, and repaired alone.

One sha256 of a whole file is one thread's work (1.2 to 1.6 GB/s with SHA-NI), however many cores there are; a digest for each
CHUNK makes any file as parallel as many small ones, and a damaged chunk the only one that has to come from the source again.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, List, Sequence, Tuple

from ..model import Refused
from .reading import CHUNK, PIECE, Job, opened, read
from .together import Run, each, threads_here


def chunk_digests(path: str, chunk: int = CHUNK, threads: int = 0, tick: Callable[[int], None] = lambda count: None) -> List[str]:
    """sha256 of each `chunk` bytes of a file, the last one shorter; [] for an empty file. threads: 0 for one a CPU.
    tick(bytes so far) some times a second, in the calling thread. Raises OSError."""
    size = os.stat(path).st_size
    parts = [(start, min(start + chunk, size)) for start in range(0, size, chunk)]
    found: Dict[int, str] = {}
    run = Run()
    with ThreadPoolExecutor(threads or threads_here()) as pool, run.stopped_by_failure():
        futures = [pool.submit(_numbered, number, path, start, end, run) for number, (start, end) in enumerate(parts)]
        each(futures, lambda done: found.update([done]), lambda: tick(run.bytes))
    return [found[number] for number in range(len(parts))]


def _numbered(number: int, path: str, start: int, end: int, run: Run) -> Tuple[int, str]:
    digest, at = _digest(path, start, end, run)
    return number, digest if at == end else ""


def copy_chunks(source: str, target: str, chunks: Sequence[int], chunk: int = CHUNK, root: str = "/", threads: int = 0,
                tick: Callable[[int], None] = lambda count: None) -> List[str]:
    """Copy these chunks (by number, from 0) of `source` over the same bytes of `target`, in place: who has the target mapped
    sees the bytes come right. The digests of what was read, in the order of `chunks`; the caller compares.

    Both files are of one size, else Refused. source: real path below `root`, no link. The target's time is the source's when
    all is done and the time of the write before: a repair that was killed is not taken for a whole file. Raises OSError.
    """
    status = os.stat(source)
    job = Job(source, target, root, status.st_size, status.st_mtime)
    found: Dict[int, str] = {}
    run = Run()
    with opened(job) as fd:
        to = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(to).st_size
            if size != job.size:
                raise Refused("it is %d bytes long, and its source %d" % (size, job.size), target, "copy all of it again")
            with ThreadPoolExecutor(threads or threads_here()) as pool, run.stopped_by_failure():
                futures = [pool.submit(_copied, job, fd, to, number, chunk, run) for number in set(chunks)]
                each(futures, lambda done: found.update([done]), lambda: tick(run.bytes))
            os.utime(to, ns=(status.st_mtime_ns, status.st_mtime_ns))
        finally:
            os.close(to)
    return [found[number] for number in chunks]


def _copied(job: Job, source: int, target: int, number: int, chunk: int, run: Run) -> Tuple[int, str]:
    digest, end = hashlib.sha256(), min((number + 1) * chunk, job.size)
    with mmap.mmap(-1, PIECE) as memory, memoryview(memory) as buffer:
        for at in range(number * chunk, end, PIECE):
            with buffer[: min(PIECE, end - at)] as view:
                read(source, view, at, job)
                digest.update(view)
                write(target, view, at)
                run.add(len(view))
    return number, digest.hexdigest()


def write(fd: int, view: memoryview, at: int) -> None:
    """All of the view. Raises OSError."""
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], at + done)


def compare(files: Sequence[Tuple[str, int, str, Sequence[str], int]], threads: int,
            told: Callable[[Tuple[str, str]], None], tick: Callable[[int], None]) -> None:
    """Read files and compare digests; each is (path, size, sha256, chunks, chunk size).

    told((path, what is wrong or "")) once a chunk, or once a file that has one hash. Raises OSError.
    """
    run = Run()
    work = []
    for path, size, sha256, chunks, chunk in files:
        if sha256 or not chunks:
            work.append((path, 0, size, sha256))
        else:
            work += [(path, n * chunk, min((n + 1) * chunk, size), digest) for n, digest in enumerate(chunks)]
    with ThreadPoolExecutor(threads) as pool, run.stopped_by_failure():
        each([pool.submit(_compare, *one, run) for one in work], told, lambda: tick(run.bytes))


def _compare(path: str, start: int, end: int, want: str, run: Run) -> Tuple[str, str]:
    digest, at = _digest(path, start, end, run)
    if at < end:
        return path, "ends at byte %d" % at
    if want and digest != want:
        return path, "bytes %d to %d are not what was copied" % (start, end)
    return path, ""


def _digest(path: str, start: int, end: int, run: Run) -> Tuple[str, int]:
    """sha256 of a part of a file, and where reading ended: before `end` in a file that has become shorter."""
    digest, at = hashlib.sha256(), start
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, PIECE) as memory, memoryview(memory) as buffer:
            while at < end:
                count = os.preadv(fd, [buffer[: min(PIECE, end - at)]], at)
                if not count:
                    break
                with buffer[:count] as view:
                    digest.update(view)
                at += count
                run.add(count)
    finally:
        os.close(fd)
    return digest.hexdigest(), at
