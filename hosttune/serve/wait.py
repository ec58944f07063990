# SPDX-License-Identifier: Apache-2.0
"""Wait until an engine answers, with its journal before one's eyes; when it dies instead, say why at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..core.catalogue import finding
from ..core.door.host import Host
from ..core.model import FAIL, OK, Finding, Hint, Report
from ..core.wanted.profile import Profile
from . import alive
from .see import LINES, Seen, look, see

GONE = ("inactive", "failed")


def wait(host: Host, profile: Profile, name: str, timeout: float = 0, tell: Callable[[str], None] = lambda line: None,
         sleep: Callable[[float], None] = time.sleep) -> Report:  # fmt: skip
    """Until the engine answers HTTP 200 on its own port, dies, or `timeout` seconds are over (0: the declared `wait`).

    tell: is given each new line of its journal. SGLang generates a token for each health check: asked every 2 s at most.
    """
    seen = see(host, profile, name, health=True)
    begun, limit = time.monotonic(), timeout or seen.engine.wait
    restarts = seen.told["show"].get("NRestarts", "0")
    rows = list(seen.told["journal"])
    while True:
        for row in seen.told["journal"]:
            tell(row["text"])
        found = _verdict(seen, rows, restarts)
        if found is None and time.monotonic() - begun >= limit:
            found = _too_long(seen, rows, limit)
        if found is not None:
            facts = {"waited": "%.1f s" % (time.monotonic() - begun), "pid": seen.told["show"].get("MainPID", "")}
            return Report("unit wait", host.uname()[0], facts, (found, *alive.pending(seen)), mode="plan")
        sleep(2 if seen.engine.kind == "sglang" else 0.5)
        told = look(seen.place, seen.engine, seen.rendered, True, seen.told.get("cursor", ""))
        rows = (rows + list(told["journal"]))[-LINES :]
        seen = replace(seen, told=told)


def _verdict(seen: Seen, rows: list[dict[str, object]], restarts: str) -> Finding | None:
    show = seen.told["show"]
    if show.get("ActiveState") == "inactive" and not show.get("ExecMainStartTimestamp"):
        return finding(
            "HT605",
            FAIL,
            seen.engine.name,
            "it is not started",
            machine=seen.place.machine,
            hint=Hint("hosttune unit start %s" % seen.engine.name, "host", "", "apply"),
        )
    if (
        show.get("ActiveState") in GONE
        or show.get("SubState") == "auto-restart"
        or show.get("NRestarts", "0") != restarts
    ):
        return alive.died(seen.engine, dict(seen.told, journal=rows))
    now = alive.answering(seen)
    return now if now.status == OK or now.id == "HT607" else None


def _too_long(seen: Seen, rows: list[dict[str, object]], limit: float) -> Finding:
    lines = tuple(str(row["text"])[:300] for row in rows[-3:])
    return finding(
        "HT605",
        FAIL,
        seen.engine.name,
        "it runs, but does not answer after %g s" % limit,
        machine=seen.place.machine,
        evidence=lines,
        hint=Hint(
            "journalctl -fu %s" % seen.engine.unit,
            seen.engine.place,
            "raise `wait:` of the engine if it only needs longer",
            "look",
        ),
    )
