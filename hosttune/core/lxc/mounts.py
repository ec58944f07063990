# SPDX-License-Identifier: Apache-2.0
"""What LXC makes of a section's mount entries, one after the other (seen with LXC 5.0.2; tests/kernel holds it).

An empty value takes back the entries above it. The container's /dev is new and empty when they are mounted: an entry without
`create=`, or with the wrong kind of it, has nothing to mount its node on. With `optional` it is then passed over in silence,
without it the container does not start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence, Tuple

from ..machine.devices import is_nvidia_path
from .document import Line
from .rules import Mount, parse_mount

_FOLDERS = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")
Placed = Tuple[Line, Mount]


def mounts(lines: Sequence[Line]) -> Tuple[Placed, ...]:
    """Each entry, and whether it counts. lines: those of lxc.mount.entry, in file order."""
    out: List[Placed] = []
    for line in lines:
        if line.value:
            out.append((line, _placed(parse_mount(line.value))))
        else:
            taken = "%s, which has no value, takes it back" % (line.origin or "line %d" % line.number)
            out = [(above, replace(mount, bad=taken, ignored=True, fatal=False, misplaced=False)) for above, mount in out]
    return tuple(out)


def _placed(mount: Mount) -> Mount:
    if not mount.is_bind or not is_nvidia_path(mount.source):
        return mount
    kinds = [option[len("create="):] for option in mount.options if option.startswith("create=")]
    right = "dir" if mount.source in _FOLDERS else "file"
    if right in kinds:
        return mount
    why = "without create=%s there is nothing to mount it on" % right if not kinds else (
        "create=%s makes the wrong kind of target, and nothing is mounted on it" % kinds[-1])
    optional = "optional" in mount.options
    return replace(mount, bad=why, ignored=optional, fatal=not optional, misplaced=True)
