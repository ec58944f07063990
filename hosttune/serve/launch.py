# SPDX-License-Identifier: Apache-2.0
"""What a start of an engine needs, and what would be in its way."""

from __future__ import annotations

from ..core.door.host import Host
from ..core.gpu.own import computing
from ..core.model import FAIL, OK, Finding, Hint
from . import command
from .see import Seen, about


def launchable(seen: Seen) -> list[Finding]:
    """HT602: everything that must be there before a start; HT607 and HT608: nothing in its way. One OK when all is well."""
    e, told = seen.engine, seen.told
    found = []
    program = command.program(e)
    if program and told["paths"].get(program) not in ("file",):
        found.append(
            about(
                seen,
                "HT602",
                FAIL,
                "the engine's program is not there (%s)" % told["paths"].get(program),
                have=program,
                hint=Hint("ls -l %s" % program, e.place, "", "look"),
            )
        )
    kind = told["paths"].get(e.model_path)
    if kind not in ("file", "dir"):
        fix = (
            Hint("hosttune stage add %s" % e.model_name, "host", "reads the model once", "apply")
            if e.model_name
            else Hint("ls -l %s" % e.model_path, e.place, "", "look")
        )
        found.append(about(seen, "HT602", FAIL, "the model is not there (%s)" % kind, have=e.model_path, hint=fix))
    if not told["user"]:
        found.append(
            about(seen, "HT602", FAIL, "there is no user %s" % e.user, hint=Hint("useradd -r -m %s" % e.user, e.place))
        )
    for name, path in e.secrets.items():
        if told["paths"].get(path) != "file":
            found.append(
                about(
                    seen,
                    "HT602",
                    FAIL,
                    "the secret %s is not there (%s)" % (name, told["paths"].get(path)),
                    have=path,
                    hint=Hint("install -m 600 /dev/stdin %s" % path, e.place),
                )
            )
    for name, want in e.packages.items():
        have = told["packages"].get(name, "")
        if have != want:
            fix = Hint(
                "%s/bin/pip install %s==%s" % (e.venv, name, want), e.place, "changes that environment", "reconfigure"
            )
            summary = "%s is %s, want %s" % (name, have or "not installed", want)
            found.append(about(seen, "HT602", FAIL, summary, have=have, want=want, hint=fix))
    if not seen.runs:
        found += in_the_way(seen)
    return found or [about(seen, "HT602", OK, "all that a start needs is there")]


def in_the_way(seen: Seen) -> list[Finding]:
    """HT607: another process has the port. HT608: other processes compute on its GPUs. For an engine that does not run."""
    found = []
    port = seen.told["port"]
    if port["listens"] and not port["ours"]:
        who = "%s %d" % (port["comm"], port["pid"]) if port["pid"] else "a process that cannot be seen"
        found.append(
            about(
                seen,
                "HT607",
                FAIL,
                "port %d is taken by %s" % (seen.engine.port, who),
                have=who,
                hint=Hint(
                    "ss -ltnp 'sport = :%d'" % seen.engine.port,
                    seen.engine.place,
                    "stop that process, or give the engine another port",
                    "look",
                ),
            )
        )
    busy = busy_gpus(seen.place.host, seen.devices.bdfs)
    if busy:
        first = ", ".join("%s %d" % (comm, pid) for pid, comm in busy[:5])
        found.append(
            about(
                seen,
                "HT608",
                FAIL,
                "other processes compute on its GPUs: %s" % first,
                have=first,
                hint=Hint("nvidia-smi", "host", "stop them, or choose other GPUs", "look"),
            )
        )
    return found


def busy_gpus(host: Host, bdfs: tuple[str, ...]) -> list[tuple[int, str]]:
    """Processes that compute on any of these GPUs. They hold /dev/nvidia-uvm; mere monitors do not."""
    return sorted({one for bdf in bdfs for one in computing(host, bdf)})
