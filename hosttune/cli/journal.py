# SPDX-License-Identifier: Apache-2.0
"""hosttune journal: what was changed here, when, and the line that restores it without hosttune."""

from __future__ import annotations

import json
import time

import click

from ..core import journal
from ..core.door.live import LiveHost
from ..core.model import as_dict


@click.command(name="journal")
@click.option("-o", "--output", "format_", type=click.Choice(["text", "json"]), default="text", help="How to print.")
def command(format_: str) -> int:
    """What hosttune changed on this machine. Each entry names the line that restores it by hand."""
    rows = journal.entries(LiveHost())
    if format_ == "json":
        click.echo(json.dumps([dict(as_dict(e), restore=journal.restore_line(e)) for e in rows], indent=2))
        return 0
    for e in rows:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e.at))
        what = "the whole file" if e.step.effect == "replace" else "%s → %s" % (e.step.before, e.step.after)
        click.echo("%4d  %s  %-8s  %s: %s" % (e.number, at, e.state, e.step.target, what))
        if e.state == "done" and not e.reverts:
            click.echo("      restore by hand: %s" % journal.restore_line(e))
    if not rows:
        click.echo("nothing was changed here")
    return 0
