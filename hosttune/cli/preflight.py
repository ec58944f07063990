# SPDX-License-Identifier: Apache-2.0
"""hosttune preflight: go or no-go."""

from __future__ import annotations

import click

from ..core.door.live import LiveHost
from ..core.wanted.profile import PATH
from .output import Output, reporting
from .profile import load, profile_option


@click.command(name="preflight")
@click.argument("plan", required=False)
@click.option(
    "--engine", "engines", multiple=True, metavar="NAME", help="Only this engine of the profile. May be repeated."
)
@profile_option
@reporting
def command(plan: str | None, engines: tuple[str, ...], profile_path: str | None, output: Output) -> int:
    """Go or no-go, in seconds, before anything is measured: declared settings, nodes and CUDA, models, engines, GPUs, room for
    results.

    PLAN is a benchmark plan, whose mistakes are named too, and whose engines alone are looked at if it names some. Exit code:
    0 go, 1 no-go.
    """
    from ..preflight import preflight

    profile = load(profile_path)
    if plan:
        from ..bench.plan import ATTACH
        from ..bench.plan import load as load_plan

        named = tuple(sorted({engine for engine in load_plan(plan).arms.values() if engine != ATTACH}))
        engines = engines or named
    report = preflight(LiveHost(), profile, engines)
    code = output.emit(report, profile)
    if output.format == "text":
        if not profile.knobs and not profile.engines:
            click.echo("no setting and no engine is declared (--profile FILE, or %s): none was looked at" % PATH, err=True)
        click.echo("preflight: %s" % ("go" if code == 0 else "no-go"))
    return code
