# SPDX-License-Identifier: Apache-2.0
"""A sysctl: now by a write to /proc/sys, over a reboot by a file of its own in /etc/sysctl.d."""

from __future__ import annotations

from typing import Any, Callable, Dict

from ..configured import sysctl
from ..configured.conflicts import Setting
from ..door.host import Host, read_or_none
from ..model import Knob, Reading, Step
from . import shape_kept
from .shape_kept import Kept

TEXT = "# hosttune: kept at this value over reboots. `hosttune revert` takes the file away.\n%s = %s\n"


def sysctl_knob(
    *,
    id: str,
    name: str,
    key: str,
    want: str,
    why: str,
    check: Callable[[str], str],
    default: Callable[[Host], str],
    absent: str = "this kernel has no such setting",
    **more: Any,
) -> Knob:
    """A knob of a sysctl. key: "vm.swappiness". default: see shape_kept.Kept. absent: why there may be no such file.
    more: recommend, meets, cost, evidence and so on, as for Knob."""
    setting = Setting(sysctl.path_of(key), "/etc/sysctl.d/90-hosttune-%s.conf" % name, sysctl=key)
    meets = more.setdefault("meets", shape_kept.meets)
    kept = Kept(setting, lambda raw: TEXT % (key, raw), default, {}, meets=meets)

    def read(host: Host) -> Dict[str, Reading]:
        return shape_kept.readings(host, kept)

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        return shape_kept.step(host, kept, id, subject, have, want)

    def skip(host: Host) -> str:
        return shape_kept.of_the_host(host) or ("" if read_or_none(host, setting.target) is not None else absent)

    return Knob(id=id, name=name, title=key, why=why, want=want, read=read, step=step, check=check, skip=skip,
                persists=setting.file, **more)  # fmt: skip
