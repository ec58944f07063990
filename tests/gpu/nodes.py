# SPDX-License-Identifier: Apache-2.0
"""Copies of the machine's NVIDIA nodes in the private /dev of this process."""

from __future__ import annotations

import os
from pathlib import Path

from tests.kernel import view


def copy() -> list[Path]:
    """Made anew, whatever is there; the paths. Raises RuntimeError where the machine has none."""
    made = []
    listed = view.outside(
        "find", "/dev", "-maxdepth", "1", "-name", "nvidia*", "-type", "c", "-printf", "%f %m\n"
    ).stdout
    for line in listed.splitlines():
        name, mode = line.split()
        seen = view.outside("stat", "-c", "%t:%T", "/dev/" + name).stdout.strip().split(":")
        path = Path("/dev", name)
        if path.exists():
            path.unlink()
        os.mknod(path, 0o020600, os.makedev(int(seen[0], 16), int(seen[1], 16)))
        path.chmod(int(mode, 8))
        made.append(path)
    if not made:
        raise RuntimeError("this machine has no /dev/nvidia*")
    return made
