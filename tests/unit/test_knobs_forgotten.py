# SPDX-License-Identifier: Apache-2.0
"""What was forgotten when a knob was added: CONTRIBUTING.md has the list, and each line of it is looked for here."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import engine
from hosttune.core.catalogue import CATALOGUE
from hosttune.core.knobs import BY_ID, KNOBS
from hosttune.core.model import ON, Knob
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.wanted.shipped import SHIPPED, resolve
from tests.unit import gpu_host
from tests.unit.test_knobs_every import CASES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "hosttune" / "core" / "knobs"
PORT, GPU = "0000:10:00.0", "0000:11:00.0"


NOWHERE_BUT_ON_A_GPU = ("nvidia-compute-mode", "nvidia-power-limit")
"""Only the driver of a real GPU takes them, and no test changes a GPU's settings."""
NO_CASES = ("boot-units",)
"""Its texts depend on the profile and on the code: tests/unit/test_boot.py, tests/lab/test_boot.py."""


def forgotten(name: str) -> list[str]:
    """A line for each thing that a knob lacks."""
    knob, cases = KNOBS[name], cases_of(name)
    rows = [row for case in cases for row in case["findings"]]
    found = {"fail" if words.endswith("is opt-in") else status for _, status, words in rows}
    writes = any(case["steps"] for case in cases)
    lacks = {
        "its id in hosttune/core/catalogue.py": knob.id in CATALOGUE and CATALOGUE[knob.id].name == name,
        "its page docs/findings/%s.md" % knob.id: (ROOT / "docs" / "findings" / (knob.id + ".md")).is_file(),
        "its name in docs/host-tuning.md": name in documented(),
        "cases in tests/cases/knobs or tests/cases/knobs_host": bool(cases) or name in NO_CASES,
        "a case in which it is as wanted (ok)": "ok" in found or name in NO_CASES,
        "a case in which it is not (fail, warn)": bool({"fail", "warn"} & found) or name in NO_CASES,
        "what it asks, in knobs_host/base.json or gpu_host.py: %s" % ", ".join(unknown(knob)): not unknown(knob),
        "a write on the real kernel: tests/kernel/test_knobs_host.py": not writes or name in (*NOWHERE_BUT_ON_A_GPU, *written()),
        "a shipped profile (it is recommended): hosttune/core/wanted/shipped.py": knob.recommend != ON or name in mentioned(),
        "why": bool(knob.why),
        "cost: what it costs to be wrong": bool(knob.cost),
        "evidence: where the recommended value comes from": bool(knob.evidence),
        "persists: what keeps it over a reboot": bool(knob.persists),
        "a want that its own check takes": not knob.want or knob.check(knob.want) == "",
    }
    return [what for what, there in lacks.items() if not there]


def cases_of(name: str) -> list[dict[str, Any]]:
    return [case for knob, case in CASES.values() if knob == name]


def unknown(knob: Knob) -> list[str]:
    """Questions to which the paper machine of the cases has no answer."""
    host = ReplayHost(gpu_host.machine([{"bdf": PORT, "port": True}, {"bdf": GPU, "below": PORT}], {}))
    if knob.id in CATALOGUE and not knob.starts:
        engine.check(knob, host)
    return host.unrecorded


def written() -> set[str]:
    """Names of knobs in the tests of the real kernel and of the lab."""
    texts = [path.read_text() for room in ("kernel", "lab") for path in (ROOT / "tests" / room).glob("test_*.py")]
    return {name for name in KNOBS if any('"%s"' % name in text for text in texts)}


def documented() -> set[str]:
    text = (ROOT / "docs" / "host-tuning.md").read_text()
    return {name for name in KNOBS if re.search(r"(?<![\w-])%s(?![\w-])" % name, text)}


def mentioned() -> set[str]:
    return {knob for profile in SHIPPED for knob in resolve(profile)}


@pytest.mark.parametrize("name", KNOBS)
def test_nothing_was_forgotten(name: str) -> None:
    lacks = forgotten(name)
    assert not lacks, "%s lacks:\n  %s" % (name, "\n  ".join(lacks))


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


def test_what_is_forgotten_is_told_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the test above can fail."""
    import dataclasses

    lost = dataclasses.replace(KNOBS["cpu-governor"], id="HT199", name="no-such-knob", cost="")
    monkeypatch.setitem(KNOBS, "no-such-knob", lost)
    assert [" ".join(what.split()[:2]) for what in forgotten("no-such-knob")] == [
        "its id", "its page", "its name", "cases in", "a case", "a case", "a shipped", "cost: what",
    ]  # fmt: skip


def test_no_two_knobs_have_one_id_and_none_one_boot_file() -> None:
    assert len(BY_ID) == len(KNOBS)
    files = [
        knob.persists for knob in KNOBS.values() if knob.persists.startswith("/etc/") and "hosttune" in knob.persists
    ]
    assert len(files) == len(set(files))
