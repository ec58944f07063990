# SPDX-License-Identifier: Apache-2.0
"""An engine that shall run: whether it answers; if it died, of what; what a stop would end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.catalogue import finding
from ..core.model import ERROR, FAIL, OK, SKIP, WARN, Finding, Hint
from . import deaths
from .declare import Engine
from .see import Seen, about


def running(seen: Seen) -> list[Finding]:
    """HT605 and HT606: does it run and answer; if it died, why. An engine that was never started is a skip."""
    show = seen.told["show"]
    if seen.runs:
        return [answering(seen), *pending(seen)]
    if seen.state == "failed" or (show.get("ExecMainStartTimestamp") and show.get("Result") not in ("success", "")):
        return [died(seen.engine, seen.told)]
    return [
        about(
            seen,
            "HT605",
            SKIP,
            "it is not started",
            hint=Hint("hosttune unit start %s" % seen.engine.name, "host", "", "apply"),
        )
    ]


def pending(seen: Seen) -> list[Finding]:
    """HT610: the running process was started from another unit than the declared one."""
    mark = str(seen.told.get("mark", ""))
    if not seen.runs or not mark or mark == seen.rendered.mark:
        return []
    return [
        about(
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


def answering(seen: Seen) -> Finding:
    """HT605 of an engine that runs: what its health endpoint says. A server of another process on its port is a failure."""
    e, told = seen.engine, seen.told
    health = told.get("health")
    if told["port"]["listens"] and not told["port"]["ours"] and told["port"]["pid"]:
        return about(
            seen, "HT607", FAIL, "port %d is taken by %s %d" % (e.port, told["port"]["comm"], told["port"]["pid"])
        )
    if health is None:
        return about(seen, "HT605", ERROR, "its health was not asked")
    last: Mapping[str, Any] = (
        list(health.values())[-1] if health else {"status": 0, "error": "nothing listens on port %d yet" % e.port}
    )
    if last["status"] == 200:
        return about(
            seen, "HT605", OK, "it runs and answers (pid %s, port %d)" % (told["show"].get("MainPID"), e.port)
        )
    said = last.get("error") or "HTTP %d" % last["status"]
    return about(
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
