# SPDX-License-Identifier: Apache-2.0
"""Staging beside the ways a person would copy, in one run. Needs root, and memory for three times the model.

    python tests/performance/stage.py [--gib N] [--threads N] [--rounds N]     a source in memory
    python tests/performance/stage.py --disk FOLDER [...]                      a source that is cold on a disk

All ways take turns, several rounds, and the best of each counts: on a shared machine others only ever make it slower. The
bounds are measured in the same run: fresh pages set, warm memory copied, the same bytes hashed, by as many threads. Sources in
memory lie in a tmpfs of huge pages. Mounts are made in a mount namespace of this program's own.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import mmap
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hosttune.core.stage import copy
from hosttune.core.stage.reading import PIECE, UNKNOWN, Cold, Source

TOP, FOLDER = Path("/mnt"), "hosttune-performance"
SHARDS, SLOWER = 30, 5
"""Ways of one or two threads copy a fifth of the bytes: their rate does not depend on how many there are."""
LIBC = ctypes.CDLL(None)
LIBC.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
LIBC.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


Copying = Callable[[Path, Path], None]
"""From a folder into another."""


@dataclass(frozen=True)
class Way:
    """One line of the table. target: the folder it fills, emptied after each round. before: not timed."""

    name: str
    run: Callable[[], None]
    size: int
    target: Path | None = None
    before: Callable[[], None] = lambda: None


def tmpfs(name: str, huge: str) -> Path:
    path = TOP / name
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=90%,huge=" + huge, "hosttune-performance", path], check=True)
    return path


def make(folder: Path, count: int, size: int) -> Path:
    """A model of `count` shards of whole pages."""
    folder.mkdir()
    block = os.urandom(PIECE)
    for n in range(count):
        with (folder / ("model-%05d.safetensors" % n)).open("wb", buffering=0) as f:
            for _ in range(size // count // PIECE):
                f.write(block)
            os.fsync(f.fileno())
    return folder


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def in_threads(threads: int, one: Callable[..., None], rows: Iterable[tuple[object, ...]]) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(one, *row) for row in rows]:
            future.result()


def parts(folder: Path) -> list[tuple[Path, int, int]]:
    sizes = [(path, path.stat().st_size) for path in sorted(folder.iterdir())]
    return [(path, at, min(at + copy.CHUNK, size)) for path, size in sizes for at in range(0, size, copy.CHUNK)]


def address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def set_part(path: Path, start: int, end: int) -> None:
    with path.open("r+b") as f:
        memory = mmap.mmap(f.fileno(), end - start, offset=start)
    for at in range(0, end - start, PIECE):
        LIBC.memset(address(memory) + at, 1, min(PIECE, end - start - at))


def fresh(source: Path, target: Path, threads: int) -> None:
    """Pages that nobody has touched, set: as many files of as many bytes."""
    for path in source.iterdir():
        with (target / path.name).open("wb") as f:
            f.truncate(path.stat().st_size)
    in_threads(threads, set_part, parts(target))


def copy_part(path: Path, start: int, end: int, target: Path) -> None:
    """memcpy from one mapping to another, all pages of both there."""
    with path.open("r+b") as f, (target / path.name).open("r+b") as g:
        a, b = (mmap.mmap(file.fileno(), end - start, offset=start) for file in (f, g))
    for at in range(0, end - start, PIECE):
        LIBC.memcpy(address(b) + at, address(a) + at, min(PIECE, end - start - at))


def hash_part(path: Path, start: int, end: int) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        for at in range(start, end, PIECE):
            with view[at : min(at + PIECE, end)] as piece:
                digest.update(piece)


def by_cat(source: Path, target: Path) -> None:
    for path in source.iterdir():
        with (target / path.name).open("wb") as f:
            subprocess.run(["cat", path], stdout=f, check=True)


def by_python(source: Path, target: Path) -> None:
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)


def by_command(*argv: str) -> Copying:
    def run(source: Path, target: Path) -> None:
        subprocess.run([*argv, "%s/." % source, target], check=True)

    return run


def ours(threads: int, hashes: dict[str, str] | None) -> Copying:
    """hashes: name -> known sha256 ({}: a digest for each chunk); None: nothing is hashed."""

    def run(source: Path, target: Path) -> None:
        known = hashes or {}
        rows = [(path, path.stat()) for path in source.iterdir()]
        jobs = [copy.Job(str(path), str(target / path.name), str(source), stat.st_size, stat.st_mtime, known.get(path.name, ""))
                for path, stat in rows]  # fmt: skip
        copy.copy(jobs, threads, lambda copied: None, lambda count: None, hashes is not None)

    return run


def whole_hashes(folder: Path, threads: int) -> dict[str, str]:
    def one(path: Path) -> tuple[str, str]:
        with path.open("rb") as f:
            return path.name, hashlib.file_digest(f, "sha256").hexdigest()

    with ThreadPoolExecutor(threads) as pool:
        return dict(pool.map(one, folder.iterdir()))


def cool(folder: Path) -> None:
    """Out of the page cache with it: this folder's files, nobody else's."""
    for path in folder.iterdir():
        with path.open("rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def always(way: Copying, direct: bool) -> Copying:
    """The same without its choice between O_DIRECT and the page cache."""

    def run(source: Path, target: Path) -> None:
        choice, Cold.direct = Cold.direct, lambda self: direct  # type: ignore[method-assign]
        try:
            way(source, target)
        finally:
            Cold.direct = choice  # type: ignore[method-assign]

    return run


def buffered(way: Copying) -> Copying:
    """The same without writing straight from a mapping of the source: each piece is read first, as where it is hashed."""

    def run(source: Path, target: Path) -> None:
        lies, Source.lies = Source.lies, lambda self, at: UNKNOWN  # type: ignore[method-assign]
        try:
            way(source, target)
        finally:
            Source.lies = lies  # type: ignore[method-assign]

    return run


def table(args: argparse.Namespace) -> tuple[list[Way], str]:
    """All ways, and a line about the bytes."""
    size = int(args.gib * (1 << 30)) // SHARDS // PIECE * PIECE * SHARDS
    memory, small, huge = (tmpfs(name, pages) for name, pages in (("source", "always"), ("small", "never"), ("huge", "always")))
    many, one = make(memory / "many", SHARDS, size), make(memory / "one", 1, size)
    few, part = make(memory / "few", SHARDS // SLOWER, size // SLOWER), make(memory / "part", 1, size // SLOWER)
    t, known, ways = args.threads, whole_hashes(many, args.threads), []
    cp, python = by_command("cp", "-r"), by_python
    in_turn: list[tuple[str, Copying]] = [("cp", cp), ("cat >", by_cat), ("Python's shutil", python)]
    if shutil.which("rsync"):
        in_turn.insert(1, ("rsync", by_command("rsync", "-a", "--whole-file")))

    def add(name: str, way: Copying, source: Path, target: Path, before: Callable[[], None] = nothing) -> None:
        ways.append(Way(name, lambda: way(source, target), size_of(source), target, before))

    for pages, target in (("4 KiB", small), ("huge", huge)):
        for name, way in in_turn:
            add("%s, shards, %s pages" % (name, pages), way, few, target)
        add("cp, 1 file, %s pages" % pages, cp, part, target)
        for shape, folder in (("shards", many), ("1 file", one)):
            add("hosttune, %s, %s pages, not hashed" % (shape, pages), ours(t, None), folder, target)
            add("hosttune, %s, %s pages, hashed by chunks" % (shape, pages), ours(t, {}), folder, target)
        add("hosttune, shards, %s pages, known sha256" % pages, ours(t, known), many, target)
        add("hosttune, shards, %s pages, not hashed, by a buffer" % pages, buffered(ours(t, None)), many, target)
    for n in [2**k for k in range(t.bit_length()) if 2**k < t]:
        for shape, folder in (("shards", few if n < 4 else many), ("1 file", part if n < 4 else one)):
            add("hosttune, %s, huge pages, not hashed, by %d" % (shape, n), ours(n, None), folder, huge)
            add("hosttune, %s, huge pages, hashed by chunks, by %d" % (shape, n), ours(n, {}), folder, huge)
    ways.append(Way("bound: sha256, from a mapping", lambda: in_threads(t, hash_part, parts(many)), size))
    ways.append(Way("bound: sha256, as stage verify reads", lambda: verified(many, t), size))
    ways.append(Way("bound: fresh huge pages set, 1 file", lambda: fresh(one, huge, t), size, huge))
    ways.append(Way("bound: fresh huge pages set, shards", lambda: fresh(many, huge, t), size, huge))
    ways.append(Way("bound: warm memory copied", lambda: in_threads(t, copy_part, [(*p, huge) for p in parts(many)]), size, huge,
                    lambda: fresh(many, huge, t)))  # fmt: skip
    return ways, "%.1f GB in %d shards" % (size / 1e9, SHARDS)


def cold_table(args: argparse.Namespace) -> tuple[list[Way], str]:
    """Ways from a disk into huge pages. The files leave the page cache before each."""
    size = int(args.gib * (1 << 30)) // SHARDS // PIECE * PIECE * SHARDS
    huge, disk = tmpfs("huge", "always"), make(Path(args.disk) / FOLDER, SHARDS, size)
    hashed = ours(args.threads, {})
    rows: list[tuple[str, Copying]] = [
        ("cp", by_command("cp", "-r")), ("Python's shutil", by_python), ("hosttune, hashed by chunks", hashed),
        ("hosttune, hashed, O_DIRECT alone", always(hashed, True)), ("hosttune, hashed, page cache alone", always(hashed, False)),
    ]  # fmt: skip
    ways = [Way(name, lambda way=way: way(disk, huge), size, huge, lambda: cool(disk)) for name, way in rows]  # type: ignore[misc]
    return ways, "%.1f GB in %d shards on %s" % (size / 1e9, SHARDS, args.disk)


def nothing() -> None:
    pass


def verified(folder: Path, threads: int) -> None:
    """What `hosttune stage verify` reads and hashes."""
    rows = []
    for path in folder.iterdir():
        size = path.stat().st_size
        rows.append((str(path), size, "", [""] * -(-size // copy.CHUNK), copy.CHUNK))
    copy.compare(rows, threads, lambda told: None, lambda count: None)


def measure(ways: list[Way], rounds: int) -> dict[str, float]:
    """Best rate of each, GB/s."""
    best = dict.fromkeys((way.name for way in ways), 0.0)
    for way in ways:
        if "pages, not hashed" in way.name:
            once(way)  # this one only warms the memory of a virtual machine
    for _ in range(rounds):
        for way in ways:
            best[way.name] = max(best[way.name], way.size / once(way) / 1e9)
    return best


def once(way: Way) -> float:
    """Seconds."""
    way.before()
    start = time.perf_counter()
    way.run()
    seconds = time.perf_counter() - start
    for path in way.target.iterdir() if way.target else ():
        path.unlink()
    return seconds


def say(best: dict[str, float], head: str) -> None:
    """The table, and what is wanted of it on 16 cores."""
    cp, memcpy = best["cp, shards, 4 KiB pages"], best["bound: warm memory copied"]
    floor, sha, read = (best["bound: " + name] for name in (
        "fresh huge pages set, 1 file", "sha256, from a mapping", "sha256, as stage verify reads"))  # fmt: skip
    print(head)
    print("%-58s %6s %6s %9s %9s %9s" % ("", "GB/s", "x cp", "of fresh", "of memcpy", "of sha256"))
    for name, had in best.items():
        print("%-58s %6.2f %6.2f %9.2f %9.2f %9.2f" % (name, had, had / cp, had / floor, had / memcpy, had / sha))

    def rate(shape: str, how: str) -> float:
        return best["hosttune, %s, huge pages, %s" % (shape, how)]

    rows = [("shards, not hashed: x cp", rate("shards", "not hashed") / cp, 15),
            ("shards, not hashed: of warm memcpy", rate("shards", "not hashed") / memcpy, 0.9),
            ("1 file, not hashed: x cp", rate("1 file", "not hashed") / cp, 10),
            ("1 file, not hashed: of fresh pages", rate("1 file", "not hashed") / floor, 0.7)]  # fmt: skip
    for shape, how in (("shards", "known sha256"), ("shards", "hashed by chunks"), ("1 file", "hashed by chunks")):
        rows.append(("%s, %s: of sha256 as verify reads" % (shape, how), rate(shape, how) / read, 0.8))
    for what, have, want in rows:
        print("%-58s %6.2f wanted %4.1f: %s" % (what, have, want, "yes" if have >= want else "no"))


def say_cold(best: dict[str, float], head: str) -> None:
    """The table."""
    print(head)
    for name, had in best.items():
        print("%-58s %6.2f GB/s %6.2f x cp" % (name, had, had / best["cp"]))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gib", type=float, default=1, help="size of the model")
    options.add_argument("--threads", type=int, default=copy.threads_here())
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--disk", default="", help="a folder on a disk, for a cold source")
    args = options.parse_args()
    if os.environ.get("HOSTTUNE_PERFORMANCE") != "own namespace":
        os.environ["HOSTTUNE_PERFORMANCE"] = "own namespace"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    subprocess.run(["mount", "-t", "tmpfs", "hosttune-performance", TOP], check=True)
    try:
        ways, size = cold_table(args) if args.disk else table(args)
        head = "Linux %s, Python %s, %d CPUs, %d threads, %s, best of %d rounds" % (
            platform.release(), platform.python_version(), len(os.sched_getaffinity(0)), args.threads, size, args.rounds)
        (say_cold if args.disk else say)(measure(ways, args.rounds), head)
    finally:
        if args.disk:
            shutil.rmtree(Path(args.disk) / FOLDER, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
