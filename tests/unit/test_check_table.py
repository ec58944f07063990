# SPDX-License-Identifier: Apache-2.0
"""The table of `hosttune check`: every column, one line for eight GPUs with one value, and readable where there is no room."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hosttune.cli import main
from hosttune.core import engine
from hosttune.core.catalogue import finding
from hosttune.core.knobs import KNOBS
from hosttune.core.model import FAIL, OK, REPORT, SKIP, Finding, Hint, Report
from hosttune.core.recording.merge import merge
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.recording.shape import SCHEMA
from hosttune.core.settings import Setting, settings, wants
from hosttune.core.unattended import bound
from hosttune.core.wanted.profile import Profile, validate
from hosttune.render import check_table

ROOT = Path(__file__).parents[2]
ONE_GPU = json.loads((ROOT / "tests/cases/knobs/mrrs-512-to-4096.json").read_text())["machine"]
GPUS = ["0000:%d1:00.0" % n for n in range(1, 9)]
MRRS, NUMA, UNITS = "pcie-max-read-request", "numa-balancing", "boot-units"


def eight_gpus(**more: Any) -> dict[str, Any]:
    """The machine of a knob's case, with its one GPU eight times."""
    view = merge(ONE_GPU, {"dirs": {"/sys/bus/pci/devices": GPUS}})
    for section in ("files", "links"):
        copies = {path.replace(GPUS[0], bdf): answer for bdf in GPUS for path, answer in ONE_GPU[section].items()}
        view = merge(view, {section: copies})
    return merge(view, more)


def settings_of(profile: Profile, *names: str) -> dict[str, Setting]:
    by_name, _ = bound.with_profile(profile)
    return settings(profile, by_name, wants(profile, by_name, names))


def table(findings: list[Finding], width: int = 120, **more: Any) -> list[str]:
    profile = validate({"knobs": {"profile": "pcie-inference"}}, "site.yml", KNOBS, {"knobs.profile": 6})
    report = Report("check", "pve1", findings=tuple(findings))
    return check_table.render(report, settings_of(profile, MRRS, NUMA), width, **more).splitlines()


def mrrs(bdf: str, have: str = "512", **more: Any) -> Finding:
    hint = Hint("hosttune apply " + MRRS, "host", "nothing is restarted", "apply")
    return finding("HT201", FAIL, bdf, "MaxReadReq is %s, want 4096" % have, have=have, want="4096", hint=hint, **more)


def test_eight_gpus_with_one_value_are_one_line() -> None:
    host = ReplayHost(eight_gpus())
    lines = table(engine.check(KNOBS[MRRS], host, "4096"))
    assert lines[0].split() == ["setting", "subject", "now", "wanted"]
    assert lines[1].split() == ["✗", "HT201", MRRS, "8", "GPUs", "512", "4096"]
    assert [line for line in lines if "HT201" in line] == [lines[1]]
    assert lines[-1].startswith("8 failed") and host.effects == []


def test_one_gpu_with_another_value_has_a_line_of_its_own() -> None:
    lines = table([*(mrrs(bdf) for bdf in GPUS[:7]), mrrs(GPUS[7], "128")])
    assert [line.split()[3:] for line in lines if "HT201" in line] == [
        ["7", "GPUs", "512", "4096"],
        [GPUS[7], "128", "4096"],
    ]


def test_a_reason_of_its_own_is_never_folded_away() -> None:
    """GPUs whose MaxReadReq is deferred for different processes are told apart."""
    told = "\n".join(table([replace(mrrs(bdf), summary="deferred: python %s" % n) for n, bdf in enumerate(GPUS[:2])]))
    assert "deferred: python 0" in told and "deferred: python 1" in told


def test_what_is_wrong_says_why_who_wants_it_and_what_it_costs() -> None:
    words = dict(line.split(None, 1) for line in table([mrrs(GPUS[0])]) if line.startswith("    ") and line[4] != " ")
    assert words["why"].startswith(KNOBS[MRRS].why[:40])
    assert words["from"].startswith("site.yml:6 (pcie-inference); " + KNOBS[MRRS].evidence[:20])
    assert words["else"].startswith(KNOBS[MRRS].cost[:40])
    assert words["fix"] == "hosttune apply " + MRRS
    assert "seen" not in words, "now and wanted are columns already"


def test_what_is_well_is_one_line_until_somebody_asks() -> None:
    well = finding("HT101", OK, "now", "kernel.numa_balancing is 0", have="0", want="0")
    assert len(table([well])) == 3
    assert any(line.strip().startswith("why") for line in table([well], verbose=True))


def test_an_opt_in_that_nobody_took_is_seen_and_what_does_not_apply_is_not() -> None:
    offered = finding("HT201", SKIP, GPUS[0], "MaxReadReq is 512; 4096 is opt-in", have="512", want="4096")
    nothing = finding("HT101", SKIP, NUMA, "this kernel has no automatic NUMA balancing", want="0")
    lines = table([offered, nothing])
    assert [line.split()[1] for line in lines[1:-1]] == ["HT201"] and lines[-1].startswith("2 skipped")
    assert any("HT101" in line for line in table([offered, nothing], verbose=True))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    findings = [*(mrrs(bdf) for bdf in GPUS), finding("HT101", OK, "now", "", have="0", want="0")]
    lines = table(findings, width, verbose=True, ascii_only=True)
    assert max(len(line) for line in lines if not line.startswith("    fix")) <= width, "only a command is never broken"
    told = " ".join(" ".join(lines).split())
    assert "8 GPUs" in told and "512" in told and "4096" in told and "XX HT201" in told and told.isascii()


def test_a_machine_steers_no_terminal() -> None:
    told = "\n".join(table([mrrs("\x1b[31m\u202e"), replace(mrrs(GPUS[0]), have="5\r12")]))
    assert not {"\x1b", "\u202e", "\r"} & set(told)


def test_with_a_profile_its_own_settings_are_judged_and_what_is_only_reported_is_shown() -> None:
    report = replace(KNOBS[NUMA], name="told", id="HT101", recommend=REPORT)
    knobs = {MRRS: KNOBS[MRRS], NUMA: KNOBS[NUMA], "told": report}
    declared = validate({"knobs": {MRRS: "2048"}})
    assert wants(declared, knobs) == {MRRS: "2048", "told": ""}
    assert wants(validate({}), knobs) == {MRRS: "", NUMA: "", "told": ""}
    assert wants(declared, knobs, (NUMA,)) == {NUMA: "0"}
    assert settings(declared, knobs, {MRRS: "2048"})["HT201"].source == "hosttune.knobs." + MRRS


def test_json_carries_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, profile = tmp_path / "host.json", tmp_path / "site.yml"
    recording.write_text(json.dumps({"schema": SCHEMA, "machines": {"host": eight_gpus()}}))
    profile.write_text("knobs:\n  profile: pcie-inference\n")
    assert main(["check", MRRS, "--replay", str(recording), "--profile", str(profile), "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json.loads((ROOT / "docs/report.schema.json").read_text()))
    (told,) = document["hosts"][0]["settings"].values()
    assert told["source"] == "%s:2 (pcie-inference)" % profile and told["want"] == "4096"
    assert told["why"] and told["evidence"] and told["cost"] and told["persists"]
    assert len(document["hosts"][0]["findings"]) == 8


@pytest.mark.parametrize("argv", [["check", "zfs-arc"], ["apply", "zfs-arc", "--dry-run"]], ids=" ".join)
def test_a_setting_that_was_named_is_shown_where_it_does_not_apply(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """`1 skipped` and exit code 0 read as done."""
    main(argv)
    assert "HT111" in capsys.readouterr().out
