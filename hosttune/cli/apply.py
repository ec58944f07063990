# SPDX-License-Identifier: Apache-2.0
"""hosttune apply: make the settings so. Typing it is the owner's word; --dry-run shows what it would do."""

from __future__ import annotations

from dataclasses import replace

import click

from ..core import engine
from ..core.door.live import LiveHost
from ..core.model import Report
from ..core.unattended import bound
from .output import Output, reporting
from .profile import load, profile_option


@click.command(name="apply")
@click.argument("knobs", nargs=-1, metavar="[KNOB]...")
@click.option("--dry-run", is_flag=True, help="Show the changes, make none.")
@profile_option
@reporting
def command(knobs: tuple[str, ...], dry_run: bool, profile_path: str | None, output: Output) -> int:
    """Make the settings of this host as wanted: shown, backed up, written, read back, journalled."""
    profile, host = load(profile_path), LiveHost()
    by_name, by_id = bound.with_profile(profile)
    wants = engine.wants_of(knobs, profile.knobs, by_name)
    done = engine.tune(host, wants, by_name, by_id, dry_run)
    # What was named is shown, also where it does not apply.
    return replace(output, verbose=output.verbose or bool(knobs)).emit(
        Report(
            "apply",
            host.uname()[0],
            findings=tuple(done.findings),
            steps=tuple(done.steps),
            effects=tuple(host.effects),
            changed=done.changed,
            mode="plan" if dry_run else "apply",
        ),
        profile,
    )
