# SPDX-License-Identifier: Apache-2.0
"""What only a file's own blocks tell: where it has holes, and whether what it holds is zeros. A header says neither: a sparse
or zero-filled shard of the right length passes every check of names, sizes and headers."""

from __future__ import annotations

import errno
import os
from typing import Tuple

SAMPLES, SAMPLE = 64, 4096


def holes(path: str) -> Tuple[int, int]:
    """(offset of the first hole, bytes in holes); (size, 0) for a file without any. Raises OSError.

    By lseek(2) SEEK_HOLE; a file system that knows no holes says that there is none.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        size = os.fstat(fd).st_size
        first, total, at = size, 0, 0
        while at < size:
            hole = os.lseek(fd, at, os.SEEK_HOLE)
            if hole >= size:
                break
            first = min(first, hole)
            try:
                at = os.lseek(fd, hole, os.SEEK_DATA)
            except OSError as e:
                if e.errno != errno.ENXIO:  # no data after this hole
                    raise
                at = size
            total += at - hole
        return first, total
    finally:
        os.close(fd)


def ends_as_zip(path: str) -> bool:
    """Whether a file that begins as a zip archive (PyTorch's own form since 1.6) has the end of one; True for any other file.

    The end record is the last but for a comment of at most 65535 bytes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        last = min(os.fstat(fd).st_size, 22 + 65535)
        return os.pread(fd, 4, 0) != b"PK\x03\x04" or b"PK\x05\x06" in os.pread(fd, last, os.fstat(fd).st_size - last)
    finally:
        os.close(fd)


def zero_samples(path: str, start: int) -> Tuple[int, int]:
    """(samples that hold nothing but zeros, samples) of SAMPLE bytes, spread evenly from `start` to the end, which is one of
    them. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        room = os.fstat(fd).st_size - start - SAMPLE
        if room < SAMPLES * SAMPLE:
            return 0, 0
        read = [os.pread(fd, SAMPLE, start + room * number // (SAMPLES - 1)) for number in range(SAMPLES)]
        return sum(1 for piece in read if not any(piece)), SAMPLES
    finally:
        os.close(fd)
