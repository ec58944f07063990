# SPDX-License-Identifier: Apache-2.0
"""hosttune explain: the page of a finding, offline."""

from __future__ import annotations

import re

import click

from ..core.catalogue import CATALOGUE
from ..core.model import Refused
from ..data import finding_page


def causes(page: str) -> list[str]:
    """The causes of docs/taxonomy.md that a page answers for."""
    last = page.rstrip("\n").rpartition("\nTaxonomy: ")[2]
    return [] if last == "none" else last.split(", ")


def _near(typed: str, id: str, names: dict[str, str]) -> str:
    """A number is near the numbers beside it, a name those that are written alike."""
    if re.fullmatch(r"HT\d+", id):
        return min(CATALOGUE, key=lambda other: abs(int(other[2:]) - int(id[2:])))
    import difflib

    return next(iter(difflib.get_close_matches(typed, [*CATALOGUE, *names], 1)), "")


@click.command(name="explain")
@click.argument("finding", metavar="ID|NAME|CAUSE")
def command(finding: str) -> int:
    """Print the page of a finding: symptom, why, check by hand, fix, how to ignore it.

    CAUSE is a cause of docs/taxonomy.md, such as K12: its findings are listed.
    """
    by_name = {entry.name: id for id, entry in CATALOGUE.items()}
    id = by_name.get(finding, finding.upper())
    if id not in CATALOGUE and re.fullmatch(r"[A-Z]\d{1,2}", id):
        found = [other for other in CATALOGUE if id in causes(finding_page(other))]
        if found:
            click.echo(
                "".join("%s  %s: %s\n" % (other, CATALOGUE[other].name, CATALOGUE[other].title) for other in found),
                nl=False,
            )
            return 0
    if id not in CATALOGUE:
        near = _near(finding, id, by_name)
        raise Refused("no such finding: %s" % finding, way_out="did you mean %s?" % near if near else "hosttune list")
    click.echo(finding_page(id), nl=False)
    return 0
