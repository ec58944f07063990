# SPDX-License-Identifier: Apache-2.0
"""What is mounted: /proc/PID/mountinfo (proc_pid_mountinfo(5)), of this process or of a container's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

PATH = "/proc/self/mountinfo"


@dataclass(frozen=True)
class Mount:
    """One mount. device: "0:58". options: of the mount, then of its file system. kind, source: "" where a line is cut short."""

    device: str
    point: str
    options: Tuple[str, ...]
    kind: str = ""
    source: str = ""


def parse(text: str) -> List[Mount]:
    """In the order of mounting: what is mounted over another comes after it."""
    found = []
    for fields in (line.split(" ") for line in text.splitlines()):
        if len(fields) < 6:
            continue
        system = fields[fields.index("-") + 1 :] if "-" in fields else []
        kind, source, options = [*system, "", "", ""][:3]
        all_options = [*fields[5].split(","), *(options.split(",") if options else ())]
        found.append(Mount(fields[2], _plain(fields[4]), tuple(all_options), kind, _plain(source)))
    return found


def at(mounts: Sequence[Mount], point: str) -> Optional[Mount]:
    """The uppermost mount at exactly this point."""
    return next((mount for mount in reversed(mounts) if mount.point == point), None)


def holding(mounts: Sequence[Mount], path: str) -> Optional[Mount]:
    """The innermost mount that a path lies on."""
    best: Optional[Mount] = None
    for mount in mounts:
        if (path + "/").startswith(mount.point.rstrip("/") + "/") and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _plain(text: str) -> str:
    """Blanks, tabs, line feeds and backslashes stand there as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits.group(1), 8)), text)
