# SPDX-License-Identifier: Apache-2.0
"""What a call leaves behind in this very process: children, zombies among them, and open files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def children() -> set[int]:
    """Process ids of this process's children. Fixtures of other tests may have some that run on."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid():
                found.add(int(stat.parent.name))
    return found


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """What is done in it leaves no process, none that waits to be collected, and no open file."""
    descriptors, before = set(os.listdir("/proc/self/fd")), children()
    yield
    assert children() - before == set()
    assert set(os.listdir("/proc/self/fd")) == descriptors
