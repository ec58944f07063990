# SPDX-License-Identifier: Apache-2.0
"""hosttune revert: take back what hosttune changed."""

from __future__ import annotations

import click

from ..core import afterlife, engine
from ..core.knobs import BY_ID
from ..core.model import Report
from ..core.place import Reaching
from .output import Output, reporting


@click.command(name="revert")
@click.option(
    "--to",
    "to",
    type=click.IntRange(min=0),
    default=0,
    metavar="ENTRY",
    help="Take back only what came after this entry of `hosttune journal`.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be put back, change nothing.")
@reporting
def command(to: int, dry_run: bool, output: Output) -> int:
    """Take back every change, newest first, byte for byte. What somebody else changed since is left alone and named."""
    host = Reaching()
    steps, findings = engine.revert(host, BY_ID, to, dry_run)
    findings += afterlife.left(host, steps)
    return output.emit(
        Report(
            "revert",
            host.uname()[0],
            findings=tuple(findings),
            steps=tuple(steps),
            effects=tuple(host.effects),
            changed=bool(steps) and not dry_run,
            mode="plan" if dry_run else "revert",
        )
    )
