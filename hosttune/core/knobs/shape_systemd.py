# SPDX-License-Identifier: Apache-2.0
"""A setting of systemd itself (system.conf, logind.conf), kept by a drop-in of its own.

It has one subject, "boot": what a running systemd was started with cannot be read from a file."""

from __future__ import annotations

import shlex
from typing import Any, Callable, Dict

from ..configured import dropins, ini
from ..door.host import Host, list_or_empty, read_or_none
from ..model import Knob, Reading, Refused, Step
from . import shape_kept

TEXT = "# hosttune: `hosttune revert` takes the file away.\n[%s]\n%s=%s\n"


def systemd_knob(
    *,
    id: str,
    name: str,
    file: str,
    section: str,
    key: str,
    want: str,
    default: str,
    why: str,
    check: Callable[[str], str],
    where: Callable[[Host], str] = lambda host: "",
    **more: Any,
) -> Knob:
    """A knob of one key. file: "logind.conf". default: systemd's own. where(host): more evidence, where no file sets it."""
    drop_in = "/etc/systemd/%s.d/90-hosttune-%s.conf" % (file, name)

    def read(host: Host) -> Dict[str, Reading]:
        found = ini.assignments(host, file, section, key)
        if found and found[-1].value:
            return {"boot": Reading(found[-1].value, where="%s:%d" % (found[-1].path, found[-1].line))}
        return {"boot": Reading(default, where=where(host))}

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        found = ini.assignments(host, file, section, key)
        last = found[-1] if found else None
        if last and last.drop_in and dropins.basename(last.path) > dropins.basename(drop_in):
            way_out = "sed -i '%ds/=.*/=%s/' %s" % (last.line, want, shlex.quote(last.path))
            raise Refused("another file sets it later", "%s:%d" % (last.path, last.line), way_out)
        return Step(id, subject, "replace", drop_in, read_or_none(host, drop_in), TEXT % (section, key, want))

    def skip(host: Host) -> str:
        return shape_kept.of_the_host(host) or ("" if _systemd_runs(host) else "systemd does not run here")

    more.setdefault("meets", shape_kept.meets)
    return Knob(id=id, name=name, title=key, why=why, want=want, read=read, step=step, check=check, skip=skip,
                persists=drop_in, **more)  # fmt: skip


def _systemd_runs(host: Host) -> bool:
    """As sd_booted(3) tells it: /run/systemd/system is there."""
    return "system" in list_or_empty(host, "/run/systemd")
