# SPDX-License-Identifier: Apache-2.0
"""hosttune explain: the page of a finding, offline."""

from __future__ import annotations

import click

from ..core.catalogue import CATALOGUE
from ..core.model import Refused
from ..data import finding_page


@click.command(name="explain")
@click.argument("finding", metavar="ID|NAME")
def command(finding: str) -> int:
    """Print the page of a finding: symptom, why, check by hand, fix, how to ignore it."""
    by_name = {entry.name: id for id, entry in CATALOGUE.items()}
    id = by_name.get(finding, finding.upper())
    if id not in CATALOGUE:
        import difflib

        near = difflib.get_close_matches(finding, [*CATALOGUE, *by_name], 1)
        raise Refused(
            "no such finding: %s" % finding, way_out="did you mean %s?" % near[0] if near else "hosttune list"
        )
    click.echo(finding_page(id), nl=False)
    return 0
