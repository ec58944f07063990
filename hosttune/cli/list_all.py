# SPDX-License-Identifier: Apache-2.0
"""hosttune list: every setting, every shipped profile, every finding."""

from __future__ import annotations

import json

import click

from ..core.catalogue import CATALOGUE
from ..core.knobs import KNOBS
from ..core.wanted.shipped import SHIPPED, resolve


@click.command(name="list")
@click.option("-o", "--output", "format_", type=click.Choice(["text", "json"]), default="text", help="How to print.")
def command(format_: str) -> int:
    """Every setting with what is recommended and why, every shipped profile with what it wants, and every finding."""
    if format_ == "json":
        click.echo(json.dumps(_data(), indent=2))
        return 0
    click.echo("settings (on: kept for everybody; opt-in: shown; report: a warning. Those two change only when asked for)")
    for knob in KNOBS.values():
        click.echo("  %s  %-24s %-7s %-12s %s" % (knob.id, knob.name, knob.recommend, knob.want or "-", knob.why))
    click.echo("profiles")
    for name, shipped in SHIPPED.items():
        click.echo("  %s: %s" % (name, shipped.doc))
        if shipped.inherits:
            click.echo("      all of %s" % shipped.inherits)
        for knob_name, want in shipped.knobs.items():
            click.echo("      %s: %s" % (knob_name, want))
    click.echo("findings")
    for id, entry in sorted(CATALOGUE.items()):
        click.echo("  %s  %-29s %s" % (id, entry.name, entry.title))
    return 0


def _data() -> dict[str, object]:
    return {
        "settings": [
            {"id": k.id, "name": k.name, "recommend": k.recommend, "want": k.want, "why": k.why, "cost": k.cost,
             "evidence": k.evidence, "persists": k.persists}
            for k in KNOBS.values()
        ],
        "profiles": {
            name: {"doc": s.doc, "inherits": s.inherits, "knobs": {k: want for k, (want, _) in resolve(name).items()}}
            for name, s in SHIPPED.items()
        },
        "findings": [dict(entry._asdict(), id=id) for id, entry in sorted(CATALOGUE.items())],
    }  # fmt: skip
