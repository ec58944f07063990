# SPDX-License-Identifier: Apache-2.0
"""Chunks of files that are not whole yet: a run that is killed at 99 % of a large file is gone on with, not begun again.

    /dev/shm/models/.hosttune/NAME.chunks    a JSON line of the files that are copied, then one for each chunk that is there

The thread that wrote a chunk notes it when all of it is written; killed in between, it is copied again. Both lie in one tmpfs,
so nothing is synced: what takes the chunk takes the note. A note that finds no room costs a chunk that is copied again, never a
copy.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import dataclass, field
from typing import Any, Collection, Dict, List, Mapping, Sequence

from ..door.host import Host
from . import manifest, reading
from .nodes import Copy
from .source import File

VOID = -1
"""In place of a chunk's number: nothing that was noted of this file counts, for its content is not what its name says."""
Chunks = Mapping[int, str]
"""Numbers of chunks that are there, each with its sha256, or "" where that was not asked for."""


@dataclass(frozen=True)
class Begun:
    """A file as it was planned by the run that began it, and the chunks of it that are there."""

    size: int
    mtime: float
    sha256: str
    chunks: Dict[int, str] = field(default_factory=dict)


def left(host: Host, copy: Copy, todo: Sequence[File], hashed: bool) -> Dict[str, Chunks]:
    """Chunks that a run which was cut short has left, by path: of files on this copy's node that are still what the source holds.
    hashed: each byte shall be, on its way: a chunk that was not will not do where the file has no sha256. Raises OSError."""
    if manifest.exists(host, manifest.folder_of(copy.name)):
        return {}  # that is what is gone on with
    found: Dict[str, Chunks] = {}
    noted = read(host, copy)
    for file in todo:
        was, count = noted.get(file.path), -(-file.size // reading.CHUNK)
        if was is None or (was.size, was.mtime, was.sha256) != (file.size, file.mtime, file.sha256):
            continue
        there = {number: digest for number, digest in was.chunks.items()
                 if 0 <= number < count and (digest or file.sha256 or not hashed)}  # fmt: skip
        if len(there) == count:
            del there[count - 1]  # a file is ended by its last part
        if there and _stands(host, "%s/%s" % (manifest.partial_path(copy.name), file.path), file.size):
            found[file.path] = there
    return found


def _stands(host: Host, path: str, size: int) -> bool:
    try:
        stat = host.lstat(path)
    except OSError:
        return False
    return (stat.type, stat.size) == ("file", size)


def read(host: Host, copy: Copy) -> Dict[str, Begun]:
    """What was noted, by path; {} if that was of a copy on another node, or of chunks of another size. A torn line is a chunk
    that is not there. Raises OSError."""
    head, *lines = (manifest.bytes_of(host, manifest.chunks_path(copy.name)) or b"").splitlines() or [b""]
    try:
        row = json.loads(head)
        files = {str(path): Begun(int(size), float(mtime), str(sha256)) for path, size, mtime, sha256 in row["files"]}
        if (row["node"], row["chunk"]) != (copy.node, reading.CHUNK):
            return {}
    except (ValueError, LookupError, TypeError):
        return {}
    in_order = list(files.values())
    for line in lines:
        with contextlib.suppress(ValueError, LookupError, TypeError):
            number, at, digest = json.loads(line)
            if at == VOID:
                in_order[number].chunks.clear()
            else:
                in_order[number].chunks[int(at)] = str(digest)
    return files


def size_of(size: int, numbers: Collection[int]) -> int:
    """Bytes in these chunks of a file of that size."""
    return sum(min((number + 1) * reading.CHUNK, size) - number * reading.CHUNK for number in numbers)


class Notes:
    """Where the threads of one run note their chunks. What earlier ones noted is gone but for `there`, by path in the model."""

    def __init__(self, name: str, node: str, files: Sequence[File], there: Mapping[str, Chunks]) -> None:
        large = [file for file in files if file.size > reading.CHUNK]  # a file of one chunk is whole or not
        self.numbers = {file.path: number for number, file in enumerate(large)}
        self.lock = threading.Lock()
        about = [[file.path, file.size, file.mtime, file.sha256] for file in large]
        rows: List[Any] = [{"node": node, "chunk": reading.CHUNK, "files": about}]
        rows += [[self.numbers[path], at, digest] for path, chunks in there.items() for at, digest in chunks.items()]
        path = manifest.chunks_path(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._append(*rows)

    def add(self, path: str, chunk: int, digest: str) -> None:
        """That chunk of that file is there (VOID: none is)."""
        if path in self.numbers:
            self._append([self.numbers[path], chunk, digest])

    def _append(self, *rows: Any) -> None:
        data = b"".join(json.dumps(row).encode("ascii") + b"\n" for row in rows)
        with self.lock, contextlib.suppress(OSError):
            start = os.fstat(self.fd).st_size
            if os.write(self.fd, data) != len(data):
                os.ftruncate(self.fd, start)  # no half line before the next one

    def close(self) -> None:
        """When no thread copies any more."""
        os.close(self.fd)
