# SPDX-License-Identifier: Apache-2.0
"""A value in /sys: now by a write, over a reboot by a `w` line of its own in /etc/tmpfiles.d."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Tuple

from ..configured import tmpfiles
from ..configured.conflicts import Setting
from ..door.host import Host
from ..machine import sysfs
from ..model import Knob, Reading, Step
from . import shape_kept
from .shape_kept import Kept

HEAD = "# hosttune: written at each boot. `hosttune revert` takes the file away.\n"


def kept(
    name: str,
    target: str,
    default: Callable[[Host], str] = lambda host: "",
    words: Mapping[str, str] = {},
    offered: str = "",
    meets: Callable[[str, str], bool] = shape_kept.meets,
    **rivals: Any,
) -> Kept:
    """A file of /sys, or a pattern of like files, and how it is kept. rivals: what Setting calls its other names."""
    setting = Setting(target, "/etc/tmpfiles.d/hosttune-%s.conf" % name, **rivals)
    return Kept(setting, lambda raw: HEAD + tmpfiles.text(target, raw), default, words, offered, meets)


def sysfs_knob(
    *,
    id: str,
    name: str,
    title: str,
    want: str,
    why: str,
    check: Callable[[str], str],
    layouts: Tuple[Kept, ...],
    absent: str,
    **more: Any,
) -> Knob:
    """A knob of one file, or pattern, in /sys. layouts: where it may lie, the first that is there counts.
    absent: why it may be nowhere. more: recommend, meets, cost, evidence and so on, as for Knob."""

    def here(host: Host) -> Kept:
        return next((each for each in layouts if sysfs.there(host, each.setting.target)), layouts[0])

    def read(host: Host) -> Dict[str, Reading]:
        return shape_kept.readings(host, here(host))

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        return shape_kept.step(host, here(host), id, subject, have, want)

    def skip(host: Host) -> str:
        return shape_kept.of_the_host(host) or ("" if sysfs.there(host, here(host).setting.target) else absent)

    more.setdefault("meets", shape_kept.meets)
    return Knob(id=id, name=name, title=title, why=why, want=want, read=read, step=step, check=check, skip=skip,
                persists=layouts[0].setting.file, **more)  # fmt: skip
