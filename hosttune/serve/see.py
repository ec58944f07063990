# SPDX-License-Identifier: Apache-2.0
"""One engine as it is: its files, its process, its port and its GPUs, looked at in one visit and judged finding by finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.catalogue import finding
from ..core.door.host import Host
from ..core.gpu.own import computing
from ..core.model import ERROR, FAIL, OK, SKIP, WARN, Finding, Hint, Refused, Step
from ..core.place import Place, place_of
from ..core.wanted.profile import Profile
from . import command, deaths, nccl, quote
from .declare import SECRET, Engine, engine
from .devices import Devices, devices
from .unit import Rendered, render

HEALTH = ("/health", "/v1/models")
LINES = 400
"""Lines of the journal that are looked at for the reason of a death: a traceback of eight ranks fits."""


@dataclass(frozen=True)
class Seen:
    """An engine, where it lives, what its files shall be, and what was found there (core/units.py, look)."""

    engine: Engine
    place: Place
    devices: Devices
    rendered: Rendered
    told: Mapping[str, Any]

    @property
    def state(self) -> str:
        """systemd's ActiveState: active, activating, inactive, failed ..."""
        return str(self.told["show"].get("ActiveState", "unknown"))

    @property
    def runs(self) -> bool:
        """Whether it has a process now, or systemd is about to give it one."""
        return self.state in ("active", "activating", "deactivating", "reloading")

    @property
    def same_files(self) -> bool:
        """Whether all its files are as rendered."""
        return all(self.told["files"].get(path) == text for path, text in self.rendered.files.items())


def see(host: Host, profile: Profile, name: str, health: bool = False) -> Seen:
    """Look at one declared engine. Raises Refused: not declared, impossible, or its container cannot be asked."""
    declared = engine(profile, name)
    place, gpus = place_of(host, declared.place), devices(host, declared, profile)
    rendered = render(declared, gpus)
    return Seen(declared, place, gpus, rendered, look(place, declared, rendered, health))


def look(
    place: Place, declared: Engine, rendered: Rendered, health: bool, after: str = "", lines: int = LINES
) -> Mapping[str, Any]:
    """What units.look tells of this engine. health: ask it, too. after: only lines of the journal after that cursor."""
    paths = [p for p in (command.program(declared), declared.model_path, *declared.secrets.values()) if p]
    asked = {"address": declared.address, "paths": HEALTH, "timeout": 25 if declared.kind == "sglang" else 5}
    return place.ask("look", unit=declared.unit, files=list(rendered.files), paths=paths, user=declared.user, port=declared.port,
                     health=asked if health else None, journal=lines, after=after,
                     venv=declared.venv, packages=list(declared.packages))  # fmt: skip


def steps(seen: Seen) -> list[Step]:
    """The files that differ, the unit itself last: systemd never reads one that names a file that is not there yet."""
    have = seen.told["files"]
    return [Step("HT601", seen.engine.name, "replace", seen.place.target(path), have.get(path), text)
            for path, text in seen.rendered.files.items() if have.get(path) != text]  # fmt: skip


def files(seen: Seen) -> Finding:
    """HT601: are its files as declared?"""
    differ = [step.target for step in steps(seen)]
    if not differ:
        return _found(seen, "HT601", OK, "the unit is as declared", have=seen.rendered.mark)
    absent = seen.told["files"].get(seen.rendered.path) is None
    return _found(
        seen,
        "HT601",
        FAIL,
        "the unit is not there yet" if absent else "the unit differs from what is declared",
        evidence=tuple(differ),
        hint=Hint(
            "hosttune unit start %s" % seen.engine.name,
            "host",
            "starts the engine; `hosttune unit diff` shows the lines first",
            "apply",
        ),
    )


def launchable(seen: Seen) -> list[Finding]:
    """HT602: everything that must be there before a start; HT607 and HT608: nothing in its way. One OK when all is well."""
    e, told = seen.engine, seen.told
    found = []
    program = command.program(e)
    if program and told["paths"].get(program) not in ("file",):
        found.append(
            _found(
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
        found.append(_found(seen, "HT602", FAIL, "the model is not there (%s)" % kind, have=e.model_path, hint=fix))
    if not told["user"]:
        found.append(
            _found(seen, "HT602", FAIL, "there is no user %s" % e.user, hint=Hint("useradd -r -m %s" % e.user, e.place))
        )
    for name, path in e.secrets.items():
        if told["paths"].get(path) != "file":
            found.append(
                _found(
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
            found.append(_found(seen, "HT602", FAIL, summary, have=have, want=want, hint=fix))
    if not seen.runs:
        found += in_the_way(seen)
    return found or [_found(seen, "HT602", OK, "all that a start needs is there")]


def in_the_way(seen: Seen) -> list[Finding]:
    """HT607: another process has the port. HT608: other processes compute on its GPUs. For an engine that does not run."""
    found = []
    port = seen.told["port"]
    if port["listens"] and not port["ours"]:
        who = "%s %d" % (port["comm"], port["pid"]) if port["pid"] else "a process that cannot be seen"
        found.append(
            _found(
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
            _found(
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


def lint(seen: Seen) -> list[Finding]:
    """HT604: what is wrong with the variables of the unit."""
    found = []
    for a in nccl.lint(seen.rendered.environment, seen.engine.kind):
        if a.level != nccl.INFO:
            status = FAIL if a.level == nccl.ERROR else WARN
            fix = Hint(
                "%s: %s" % (a.name, a.fix) if a.fix else "",
                "engines.%s.env in the profile" % seen.engine.name,
                "",
                "reconfigure",
            )
            found.append(
                _found(
                    seen,
                    "HT604",
                    status,
                    "%s: %s" % (a.name, a.text),
                    have=seen.rendered.environment[a.name],
                    want=a.fix,
                    hint=fix,
                    severity="correctness" if status == FAIL else "performance",
                )
            )
    return found or [_found(seen, "HT604", OK, "every NCCL variable is one that NCCL reads")]


def verified(seen: Seen, analyzed: bool = False) -> list[Finding]:
    """HT603: systemd-analyze has nothing to say, and what systemd has read is what was meant. analyzed: it was asked of this
    text just now."""
    if not analyzed and (objection := _objection(seen)):
        return [objection]
    if not seen.same_files:
        return [_found(seen, "HT603", OK, "systemd-analyze has nothing to say of it")]
    have = quote.read_back(seen.told["show"].get("Environment", ""))
    wrong = [name for name, value in seen.rendered.environment.items() if not _same(have.get(name), value)]
    if wrong:
        return [
            _found(
                seen,
                "HT603",
                FAIL,
                "systemd has read %s differently" % ", ".join(wrong),
                have=str(have.get(wrong[0])),
                want=seen.rendered.environment[wrong[0]],
                hint=Hint(
                    "systemctl show -p Environment,DropInPaths %s" % seen.engine.unit,
                    seen.engine.place,
                    "a drop-in of another hand may change it",
                    "look",
                ),
            )
        ]
    return [
        _found(
            seen, "HT603", OK, "systemd has read all %d variables as they were meant" % len(seen.rendered.environment)
        )
    ]


def _objection(seen: Seen) -> Finding | None:
    told = seen.place.ask("verify", unit=seen.engine.unit, text=seen.rendered.text)
    program = command.program(seen.engine)
    absent = bool(program) and seen.told["paths"].get(program) != "file"  # told by HT602
    said = [line for line in told["said"] if not (absent and "is not executable" in line)]
    if not said and (absent or not told["rc"]):
        return None
    summary = "systemd-analyze does not take the unit"
    hint = Hint("hosttune unit render %s" % seen.engine.name, "host", "", "look")
    return _found(seen, "HT603", FAIL, summary, evidence=tuple(said[:3]), hint=hint)


def _same(have: str | None, want: str) -> bool:
    if want.startswith(SECRET):
        return bool(have) and str(have).endswith("/" + want[len(SECRET) :])
    return have == want


def pending(seen: Seen) -> list[Finding]:
    """HT610: the running process was started from another unit than the declared one."""
    mark = str(seen.told.get("mark", ""))
    if not seen.runs or not mark or mark == seen.rendered.mark:
        return []
    return [
        _found(
            seen,
            "HT610",
            WARN,
            "it runs with an older unit; a restart is pending",
            have=mark,
            want=seen.rendered.mark,
            evidence=ends(seen),
            hint=Hint(
                "hosttune unit restart %s" % seen.engine.name,
                "host",
                "ends what runs, and loads the model anew",
                "restart",
            ),
        )
    ]


def running(seen: Seen) -> list[Finding]:
    """HT605 and HT606: does it run and answer; if it died, why. An engine that was never started is a skip."""
    show = seen.told["show"]
    if seen.runs:
        return [answering(seen), *pending(seen)]
    if seen.state == "failed" or (show.get("ExecMainStartTimestamp") and show.get("Result") not in ("success", "")):
        return [died(seen.engine, seen.told)]
    return [
        _found(
            seen,
            "HT605",
            SKIP,
            "it is not started",
            hint=Hint("hosttune unit start %s" % seen.engine.name, "host", "", "apply"),
        )
    ]


def answering(seen: Seen) -> Finding:
    """HT605 of an engine that runs: what its health endpoint says. A server of another process on its port is a failure."""
    e, told = seen.engine, seen.told
    health = told.get("health")
    if told["port"]["listens"] and not told["port"]["ours"] and told["port"]["pid"]:
        return _found(
            seen, "HT607", FAIL, "port %d is taken by %s %d" % (e.port, told["port"]["comm"], told["port"]["pid"])
        )
    if health is None:
        return _found(seen, "HT605", ERROR, "its health was not asked")
    last: Mapping[str, Any] = (
        list(health.values())[-1] if health else {"status": 0, "error": "nothing listens on port %d yet" % e.port}
    )
    if last["status"] == 200:
        return _found(
            seen, "HT605", OK, "it runs and answers (pid %s, port %d)" % (told["show"].get("MainPID"), e.port)
        )
    said = last.get("error") or "HTTP %d" % last["status"]
    return _found(
        seen,
        "HT605",
        FAIL,
        "it runs, but does not answer: %s" % said,
        have=said,
        want="HTTP 200",
        hint=Hint("hosttune unit wait %s" % e.name, "host", "shows its journal until it answers or dies", "look"),
    )


def died(e: Engine, told: Mapping[str, Any]) -> Finding:
    """HT606: how it ended, the lines that say why, and the fix if this death is known."""
    rows = [row for row in told.get("journal", ()) if row["by"] != "systemd"]
    lines = [line for row in rows for line in row["text"].splitlines()]
    systemd = [row["text"] for row in told.get("journal", ()) if row["by"] == "systemd"]
    known = deaths.known(lines)
    summary = "it is dead: %s" % deaths.how(told["show"]) + (": %s" % known[0].means if known else "")
    shown = ([known[1].strip()[:300]] if known else []) + [
        x for x in deaths.last_errors(lines or systemd) if not known or x != known[1].strip()
    ]
    fix = known[0].fix if known else "journalctl -u %s -n 200" % e.unit
    return finding(
        "HT606",
        FAIL,
        e.name,
        summary,
        machine=e.place,
        evidence=tuple(shown[:3]),
        proof="proved" if known else "",
        have=deaths.how(told["show"]),
        hint=Hint(fix, e.place, "", "reconfigure" if known else "look"),
    )


def ends(seen: Seen) -> tuple[str, ...]:
    """What a stop or restart ends, a line each."""
    show, port = seen.told["show"], seen.told["port"]
    since = show.get("ExecMainStartTimestamp") or "now"
    out = ["process %s of %s, running since %s" % (show.get("MainPID"), seen.engine.unit, since)]
    if port.get("connections"):
        many = "" if port["connections"] == 1 else "s"
        out.append("%d open connection%s on port %d" % (port["connections"], many, seen.engine.port))
    memory = show.get("MemoryCurrent", "")
    if memory.isdigit() and int(memory) < 1 << 60:
        out.append("%.1f GiB of its memory, loaded anew at the next start" % (int(memory) / 2**30))
    return tuple(out)


def _found(seen: Seen, id: str, status: str, summary: str, **more: Any) -> Finding:
    return finding(id, status, seen.engine.name, summary, machine=seen.place.machine, **more)


def unseen(name: str, e: Refused) -> Finding:
    """HT602 for an engine that could not even be looked at."""
    return finding(
        "HT602",
        ERROR,
        name,
        e.what,
        evidence=(e.where,) if e.where else (),
        hint=Hint(e.way_out, "host", "", "reconfigure"),
    )
