# SPDX-License-Identifier: Apache-2.0
"""Staging beside `cp`, in one run, source in memory. Run as root: python tests/performance/stage.py [--gib N] [--threads N]

All ways take turns, several rounds, and the best of each counts: on a shared machine the others only ever make it slower.
The floors are measured in the same run: sha256 of the same bytes by as many threads, and a write of pages never touched.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hosttune.core.stage import copy

FOLDER = Path("/run/hosttune-performance")
FILES = 32
PIECE = 2 << 20


def tmpfs(name: str, huge: str) -> Path:
    path = FOLDER / name
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=90%,huge=" + huge, "hosttune-performance", path], check=True)
    return path


def timed(way: Callable[[], None]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def cp(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", source, target / "copy"], check=True)


def ours(source: Path, target: Path, threads: int, hashed: bool) -> None:
    folder = target / "copy"
    folder.mkdir()
    jobs = [copy.Job(str(p), str(folder / p.name), str(source), p.stat().st_size, p.stat().st_mtime) for p in source.iterdir()]
    copy.copy(jobs, threads, lambda copied: None, lambda count: None, hashed)


def in_threads(paths: list[Path], threads: int, one: Callable[[Path, int, int], None]) -> None:
    """Call `one` for equal parts of these files, by as many threads."""
    parts = [(p, at, min(at + copy.CHUNK, p.stat().st_size)) for p in paths for at in range(0, p.stat().st_size, copy.CHUNK)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: one(*part), parts))


def hash_part(path: Path, start: int, end: int) -> None:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as f, mmap.mmap(-1, PIECE) as memory, memoryview(memory) as view:
        for at in range(start, end, PIECE):
            count = os.preadv(f.fileno(), [view], at)
            digest.update(view[:count])


def write_part(path: Path, start: int, end: int) -> None:
    with path.open("r+b", buffering=0) as f:
        for at in range(start, end, PIECE):
            os.pwrite(f.fileno(), ZEROS[: min(PIECE, end - at)], at)


ZEROS = memoryview(bytes(PIECE))


def fresh(source: Path, target: Path, threads: int) -> None:
    """As many files of as many bytes, written by one thread each from one warm buffer."""
    folder = target / "copy"
    folder.mkdir()

    def write(path: Path) -> None:
        size = path.stat().st_size
        (folder / path.name).touch()
        write_part(folder / path.name, 0, size)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, source.iterdir()))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gib", type=float, default=1, help="size of the model")
    options.add_argument("--threads", type=int, default=copy.threads_here())
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    size = int(args.gib * (1 << 30)) // FILES // PIECE * PIECE * FILES
    FOLDER.mkdir()
    mounts: list[Path] = []
    try:
        for name, pages in (("source", "within_size"), ("small", "never"), ("huge", "within_size")):
            mounts.append(tmpfs(name, pages))
        source, small, huge = mounts
        many, single = source / "many", source / "single"
        block = os.urandom(PIECE)
        for folder, count in ((many, FILES), (single, 1)):
            folder.mkdir()
            for n in range(count):
                with (folder / ("model-%05d.safetensors" % n)).open("wb") as f:
                    for _ in range(size // count // PIECE):
                        f.write(block)
        t, many_paths = args.threads, list(many.iterdir())
        ways: dict[str, tuple[Callable[[], None], Path | None]] = {
            "cp, %d files, plain tmpfs" % FILES: (lambda: cp(many, small), small),
            "cp, 1 file, plain tmpfs": (lambda: cp(single, small), small),
            "cp, %d files, huge tmpfs" % FILES: (lambda: cp(many, huge), huge),
            "cp, 1 file, huge tmpfs": (lambda: cp(single, huge), huge),
            "hosttune, %d files, not hashed" % FILES: (lambda: ours(many, huge, t, False), huge),
            "hosttune, 1 file, not hashed": (lambda: ours(single, huge, t, False), huge),
            "hosttune, %d files, hashed" % FILES: (lambda: ours(many, huge, t, True), huge),
            "hosttune, 1 file, hashed": (lambda: ours(single, huge, t, True), huge),
            "floor: sha256 alone": (lambda: in_threads(many_paths, t, hash_part), None),
            "floor: fresh huge pages written": (lambda: fresh(many, huge, t), huge),
        }
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(args.rounds):
            for name, (way, target) in ways.items():
                best[name] = min(best[name], timed(way))
                if target:
                    shutil.rmtree(target / "copy")
        base = best["cp, %d files, plain tmpfs" % FILES]
        print("Linux %s, Python %s, %d CPUs, %d threads, %.1f GB, best of %d rounds" % (
            platform.release(), platform.python_version(), len(os.sched_getaffinity(0)), t, size / 1e9, args.rounds))
        for name, seconds in best.items():
            print("%-34s %6.2f GB/s   %5.2f x cp into plain tmpfs" % (name, size / seconds / 1e9, base / seconds))
        hashed, floor = best["hosttune, %d files, hashed" % FILES], best["floor: sha256 alone"]
        print("hashed copy at %.2f of the rate of sha256 alone" % (floor / hashed))
        return 0
    finally:
        for path in mounts:
            subprocess.run(["umount", path], check=True)
        shutil.rmtree(FOLDER)


if __name__ == "__main__":
    sys.exit(main())
