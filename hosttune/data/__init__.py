# SPDX-License-Identifier: Apache-2.0
"""What an installed hosttune needs at run time beside its code: pages of findings, shipped machines for recordings."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from typing import Any

from ..core.model import Refused


def finding_page(id: str) -> str:
    """The text of docs/findings/ID.md."""
    return (files(__package__) / "findings" / (id + ".md")).read_text(encoding="utf-8")


def machine(name: str) -> dict[str, Any]:
    """A shipped machine that a recording may inherit with `base`. Refused for an unknown name."""
    folder = files(__package__) / "machines"
    known = sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))
    if name not in known:
        raise Refused("no such base machine: %s (known: %s)" % (name, ", ".join(known)), "base")
    data: dict[str, Any] = json.loads((folder / (name + ".json")).read_text(encoding="utf-8"))
    return data


def template(name: str) -> str:
    """The text of a jinja2 template of templates/."""
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def table(name: str) -> list[dict[str, str]]:
    """The rows of a CSV table of this folder, each by column name; lines that begin with # say where it is from."""
    text = (files(__package__) / name).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
