# SPDX-License-Identifier: Apache-2.0
"""docs/taxonomy.md from what is there: causes (hosttune/data/causes.csv), pages of findings, recordings that lead to them.

`python -m tests.unit.taxonomy` writes it; test_taxonomy.py holds it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from hosttune.core.catalogue import CATALOGUE
from hosttune.data import finding_page, table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "taxonomy.md"
HEAD = """\
# Why CUDA does not start: every cause, and what hosttune says of it

Made by `python -m tests.unit.taxonomy` from the table of causes, the pages of findings and the recordings of the tests: a
cause without a finding would show here. "shown by" counts the recordings that must lead to a cause, with the certainty that they
must reach; where it is empty the finding's page tells the cause, and doctor says "fits" or names the layer. T01 to T15 are the
public reports that tests/cases/causes.yml retells. `hosttune explain K12` lists the findings of a cause.

| cause | what is wrong | who mends it | findings | shown by |
| --- | --- | --- | --- | --- |
"""


def of_page(id: str) -> list[str]:
    """The causes that a page answers for."""
    last = finding_page(id).rstrip("\n").rpartition("\nTaxonomy: ")[2]
    return [] if last == "none" else last.split(", ")


def shown() -> dict[str, set[tuple[str, str]]]:
    """{cause: (recording, certainty)} of all recordings that name the cause that they show."""
    found: dict[str, set[tuple[str, str]]] = {}
    for name, row in yaml.safe_load((ROOT / "tests/cases/causes.yml").read_text(encoding="utf-8")).items():
        if "cause" in row["expect"]:  # else it shows what must not be said
            found.setdefault(row["expect"]["cause"], set()).add((name, row["expect"]["proof"]))
    for path in sorted((ROOT / "tests/cases/doctor").glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        proofs = {expect["proof"] for expect in case["expect"].values() if "proof" in expect}
        if "cause" in case:
            found.setdefault(case["cause"], set()).update((path.stem, proof) for proof in proofs)
    return found


def text() -> str:
    """The whole page."""
    recordings, causes = shown(), table("causes.csv")
    pages = {id: of_page(id) for id in CATALOGUE}
    lines = []
    for row in causes:
        ids = [id for id, named in pages.items() if row["cause"] in named]
        rows = recordings.get(row["cause"], set())
        certainty = "/".join(sorted({proof for _, proof in rows}, reverse=True))
        told = "%d (%s)" % (len({name for name, _ in rows}), certainty) if rows else ""
        links = " ".join("[%s](findings/%s.md)" % (id, id) for id in ids) or "none"
        lines.append("| %s | %s | %s | %s | %s |" % (row["cause"], row["what"], row["who"], links, told))
    with_rows = sum(1 for line in lines if not line.endswith("|  |"))
    return (
        HEAD
        + "\n".join(lines)
        + "\n\n%d causes, all with a finding; %d with recordings of their own.\n" % (len(causes), with_rows)
    )


def uncovered() -> list[str]:
    """Causes that no page answers for."""
    named = {cause for id in CATALOGUE for cause in of_page(id)}
    return [row["cause"] for row in table("causes.csv") if row["cause"] not in named]


def letters() -> dict[str, int]:
    """How many causes each layer has."""
    count: dict[str, int] = {}
    for row in table("causes.csv"):
        letter = re.sub(r"\d", "", row["cause"])
        count[letter] = count.get(letter, 0) + 1
    return count


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
