# SPDX-License-Identifier: Apache-2.0
"""What an installed hosttune needs at run time beside its code: pages of findings, shipped machines for recordings."""

from __future__ import annotations

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
