# SPDX-License-Identifier: Apache-2.0
"""What was forgotten when a knob was added: CONTRIBUTING.md has the list, and each line of it is looked for here."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from hosttune.core.catalogue import CATALOGUE
from hosttune.core.knobs import BY_ID, KNOBS
from hosttune.core.model import ON
from hosttune.core.shipped_profiles import SHIPPED, resolve

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "hosttune" / "core" / "knobs"
CASES = ROOT / "tests" / "cases"


def forgotten(name: str) -> list[str]:
    """A line for each thing that a knob lacks."""
    knob = KNOBS[name]
    lacks = {
        "its id in hosttune/core/catalogue.py": knob.id in CATALOGUE and CATALOGUE[knob.id].name == name,
        "its page docs/findings/%s.md" % knob.id: (ROOT / "docs" / "findings" / (knob.id + ".md")).is_file(),
        "a case in tests/cases/knobs or tests/cases/knobs_host": name in with_cases(),
        "a shipped profile (it is recommended): hosttune/core/shipped_profiles.py": knob.recommend != ON
        or name in mentioned(),
        "why": bool(knob.why),
        "cost: what it costs to be wrong": bool(knob.cost) or name == "boot-units",
        "evidence: where the recommended value comes from": bool(knob.evidence) or name == "boot-units",
        "a want that its own check takes": not knob.want or knob.check(knob.want) == "",
    }
    return [what for what, there in lacks.items() if not there]


def with_cases() -> set[str]:
    files = [*(CASES / "knobs").glob("*.json"), *(CASES / "knobs_host").glob("*.json")]
    return {json.loads(path.read_text()).get("knob", "") for path in files}


def mentioned() -> set[str]:
    return {knob for profile in SHIPPED for knob in resolve(profile)}


@pytest.mark.parametrize("name", KNOBS)
def test_nothing_was_forgotten(name: str) -> None:
    assert forgotten(name) == []


def made_in(path: Path) -> set[str]:
    """Names of a file's knobs: constants in capitals to which a call of Knob or of a shape (sysctl_knob ...) is given."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            if node.value.func.id == "Knob" or node.value.func.id.endswith("_knob"):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name) and target.id.isupper()}
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_no_knob_was_left_out_of_the_registry(path: Path) -> None:
    registry = (FOLDER / "__init__.py").read_text()
    assert {knob for knob in made_in(path) if f"import {knob}\n" not in registry} == set()


def test_a_forgotten_page_case_and_mention_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the test above can fail."""
    import dataclasses

    lost = dataclasses.replace(KNOBS["cpu-governor"], id="HT199", name="lost", cost="")
    monkeypatch.setitem(KNOBS, "lost", lost)
    assert [what.split()[0] for what in forgotten("lost")] == ["its", "its", "a", "a", "cost:"]


def test_no_two_knobs_have_one_id_and_none_one_boot_file() -> None:
    assert len(BY_ID) == len(KNOBS)
    files = [
        knob.persists for knob in KNOBS.values() if knob.persists.startswith("/etc/") and "hosttune" in knob.persists
    ]
    assert len(files) == len(set(files))
