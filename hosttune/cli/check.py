# SPDX-License-Identifier: Apache-2.0
"""hosttune check: compare, change nothing."""

from __future__ import annotations

import click

from ..core import boot, engine
from ..core.live import LiveHost
from ..core.model import Report
from .output import Output, reporting
from .profile import load, profile_option


@click.command(name="check")
@click.argument("knobs", nargs=-1, metavar="[KNOB]...")
@profile_option
@reporting
def command(knobs: tuple[str, ...], profile_path: str | None, output: Output) -> int:
    """Compare the settings of this host with what is wanted. Changes nothing."""
    profile, host = load(profile_path), LiveHost()
    by_name, _ = boot.with_profile(profile)
    wants = engine.wants_of(knobs, profile.knobs or None, by_name)
    findings = [f for name, want in wants.items() for f in engine.check(by_name[name], host, want)]
    return output.emit(Report("check", host.uname()[0], findings=tuple(findings), effects=tuple(host.effects)), profile)
