# SPDX-License-Identifier: Apache-2.0
"""Recordings as files; --record and --replay for commands that ask one host: the same command on this machine, or on paper."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..core.door.host import Host
from ..core.door.live import LiveHost
from ..core.model import Refused
from ..core.recording.record import RecordingHost
from ..core.recording.redaction import redact
from ..core.recording.replay import load
from ..core.recording.shape import SCHEMA
from ..data import machine


def replay_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --record FILE and --replay FILE; the function gets them as `record` and `replay`."""
    kind = click.Path(dir_okay=False)
    replay = click.option(
        "--replay", type=kind, metavar="FILE", help="Look at the host of a recording; asks no machine."
    )
    record = click.option(
        "--record", type=kind, metavar="FILE", help="Write all that was asked and answered into a new file."
    )
    return record(replay(command))


def host_of(replay: str | None, record: str | None = None) -> Host:
    """This machine (record: each answer is kept), or the host of a recording. Refused for a file that is none, naming its
    line or key, and for a place where no recording can be written."""
    if replay and record:
        raise click.UsageError("--replay asks no machine: it goes not with --record")
    if record:
        refuse_taken(record)
        return RecordingHost(LiveHost())
    if not replay:
        return LiveHost()
    try:
        machines = load(read(replay), machine)
    except Refused as e:
        raise Refused(
            e.what, e.where if e.where.startswith(replay) else ": ".join(filter(None, (replay, e.where))), e.way_out
        )
    if "host" not in machines:
        raise Refused("it holds no machine named host, only %s" % ", ".join(machines), replay)
    return machines["host"]


def keep_host(record: str | None, host: Host) -> None:
    """Write what was asked of a host and answered, if a recording was wanted."""
    if record and isinstance(host, RecordingHost):
        keep(record, redact({"schema": SCHEMA, "machines": {"host": host.view}}))
        click.echo("recorded in %s, without names, addresses and UUIDs" % record, err=True)


def read(path: str) -> dict[str, Any]:
    """The recording in a file. Refused, with the line, for what is no JSON."""
    try:
        data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused("there is no such file", path)
    except (ValueError, RecursionError) as e:
        raise Refused("this is not JSON: %s" % getattr(e, "msg", e), "%s:%s" % (path, getattr(e, "lineno", 1)))
    return data


def refuse_taken(path: str) -> None:
    """Refused before anything is asked. A folder that is missing is a typing error here, and none is made."""
    if os.path.lexists(path):
        raise Refused("there is such a file already", path, "name another")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise Refused("there is no such folder", folder, "mkdir -p %s" % shlex.quote(folder))


def keep(path: str, recording: dict[str, Any]) -> None:
    """A new file of mode 0600. An existing one is never overwritten: it may be the report of another fault."""
    data = json.dumps(recording, indent=1, sort_keys=True).encode() + b"\n"
    try:
        LiveHost().replace(path, data, expect=None, mode=0o600)
    except OSError as e:
        raise Refused("the recording could not be written: %s" % e.strerror, path)
    except Refused:
        raise Refused("there is such a file already", path, "name another")
