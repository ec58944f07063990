# SPDX-License-Identifier: Apache-2.0
"""--replay and --record for commands that only ask files: the same command on this machine, or on one of a recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..core.host import Host
from ..core.live import LiveHost
from ..core.model import Refused
from ..core.recording import SCHEMA, RecordingHost, ReplayHost, load
from ..data import machine


def replay_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --replay FILE; the function gets it as `replay`."""
    words = "Look at the host of a recording; asks no machine."
    return click.option("--replay", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help=words)(command)


def host_of(replay: str | None) -> Host:
    """This machine, or the host of a recording. Refused for a file that is none, naming its line or key."""
    if not replay:
        return LiveHost()
    try:
        recording = json.loads(Path(replay).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise Refused("this is not JSON: %s" % getattr(e, "msg", e), "%s:%s" % (replay, getattr(e, "lineno", 1)))
    try:
        machines = load(recording, machine)
    except Refused as e:
        raise Refused(e.what, "%s%s" % (replay, ": " + e.where if e.where else ""), e.way_out)
    if "host" not in machines:
        raise Refused("it holds no machine named host, only %s" % ", ".join(machines), replay)
    return machines["host"]


def recorded(host: RecordingHost, note: str) -> dict[str, Any]:
    """What was asked of a host, as a recording."""
    return {"schema": SCHEMA, "note": note, "machines": {"host": host.view}}


def missing(host: Host) -> list[str]:
    """What a recording was asked and does not hold."""
    return list(host.unrecorded) if isinstance(host, ReplayHost) else []
