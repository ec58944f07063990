# SPDX-License-Identifier: Apache-2.0
"""hosttune check: compare, change nothing."""

from __future__ import annotations

from dataclasses import replace

import click

from ..core import engine
from ..core.door.glance import Glance
from ..core.model import Report
from ..core.settings import settings, unasked, wants
from ..core.unattended import bound
from .output import Output, reporting
from .profile import load, profile_option
from .replay import host_of, keep_host, replay_option


@click.command(name="check")
@click.argument("knobs", nargs=-1, metavar="[KNOB]...")
@profile_option
@replay_option
@click.option(
    "--nvml", is_flag=True, help="Ask the driver too, through nvidia-smi: compute mode, MIG, ECC, power, clocks."
)
@reporting
def command(
    knobs: tuple[str, ...], profile_path: str | None, record: str | None, replay: str | None, nvml: bool, output: Output
) -> int:
    """Compare the settings of this host with what is wanted: now, wanted, why, who wants it, and what being wrong costs.

    Without a profile everything is looked at, against what is recommended; with one what it declares, and beside it what is
    only ever reported. Changes nothing, starts nothing; --nvml starts nvidia-smi, which may load the driver and make its nodes.
    """
    profile, host = load(profile_path), host_of(replay, record)
    by_name, _ = bound.with_profile(profile)
    wanted = wants(profile, by_name, knobs, nvml)
    look = Glance(host)
    findings = [f for name, want in wanted.items() for f in engine.check(by_name[name], look, want)]
    findings += [] if knobs else unasked(by_name, wanted)
    keep_host(record, host)
    report = Report("check", host.uname()[0], findings=tuple(findings), effects=tuple(host.effects))
    # What was named is shown, also where it does not apply.
    output = replace(output, verbose=output.verbose or bool(knobs))
    return output.emit(report, profile, settings=settings(profile, by_name, wanted))
