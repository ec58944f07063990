# SPDX-License-Identifier: Apache-2.0
"""hosttune list: every knob and every finding."""

from __future__ import annotations

import click

from ..core.catalogue import CATALOGUE
from ..core.knobs import KNOBS


@click.command(name="list")
def command() -> int:
    """Every knob with its default want and why, and every finding."""
    click.echo("knobs")
    for knob in KNOBS.values():
        click.echo("  %s  %-24s %-5s %s" % (knob.id, knob.name, knob.want, knob.why))
    click.echo("findings")
    for id, entry in sorted(CATALOGUE.items()):
        click.echo("  %s  %-29s %s" % (id, entry.name, entry.title))
    return 0
