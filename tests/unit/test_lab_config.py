# SPDX-License-Identifier: Apache-2.0
"""The lab's config reader and writer against what the real PVE 8 made of the same files: no byte and no warning may differ."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from lab.proxmox.pvelab import conf

CASES = Path(__file__).resolve().parents[1] / "cases" / "lxc"
FILES = sorted(CASES.glob("*.conf"))
SEEDS = sorted((Path(conf.__file__).parents[1] / "configs").glob("*.conf"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_comes_out_as_pve_writes_it(path: Path) -> None:
    warnings: list[str] = []
    written = conf.write(conf.parse(path.read_bytes(), warnings.append))
    assert written == path.with_suffix(".pve8.out").read_bytes()
    told = path.with_suffix(".pve8.warn")
    assert "\n".join(warnings).splitlines() == (told.read_text().splitlines() if told.exists() else [])


def test_generated_files_come_out_as_pve_writes_them() -> None:
    cases = [json.loads(line) for line in (CASES / "generated.jsonl").read_text().splitlines()]
    differ = [case["id"] for case in cases
              if conf.write(conf.parse(base64.b64decode(case["input"]))) != base64.b64decode(case["pve8"]["output"])]  # fmt: skip
    assert len(cases) == 200 and differ == []


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_the_labs_own_containers_are_written_as_pve_would(path: Path) -> None:
    warnings: list[str] = []
    assert conf.write(conf.parse(path.read_bytes(), warnings.append)) == path.read_bytes()
    assert warnings == []


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("/dev/nvidia0", None),
        ("path=/dev/nvidia0,mode=0666,uid=1000,gid=44,deny-write=1", None),
        ("/dev/nvidia0,", None),
        ("nvidia0", "not a valid device path"),
        ("/dev/../etc/passwd", "not a valid device path"),
        ("/dev/nvidia0,mode=666", "regex pattern"),
        ("/dev/nvidia0,mode=0666,mode=0660", "duplicate key"),
        ("/dev/nvidia0, mode=0666", "not defined in schema"),
    ],
)
def test_dev_entries_are_judged_by_their_grammar(value: str, complaint: str | None) -> None:
    said = conf.complaint_about("dev0", value)
    assert (said is None) if complaint is None else (said is not None and complaint in said)
