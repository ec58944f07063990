# SPDX-License-Identifier: Apache-2.0
"""Kernel, memory and CPU: each file in tests/cases/knobs_host holds the cases of one knob, as differences from base.json.

A case says what the knob must find, in which words, and what it plans. Then it is applied, applied again and reverted, on
paper.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import engine, journal
from hosttune.core.configured import cmdline
from hosttune.core.door.host import read_or_none
from hosttune.core.knobs import BY_ID, KNOBS
from hosttune.core.machine import sysfs
from hosttune.core.model import Finding, Step
from hosttune.core.recording.merge import merge
from hosttune.core.recording.replay import ReplayHost

ABSENT = {"errno": "ENOENT"}
FOLDER = Path(__file__).parents[1] / "cases" / "knobs_host"
BASE = json.loads((FOLDER / "base.json").read_text())
FILES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json")) if path.stem != "base"}
CASES = {f"{name}/{case}": (file["knob"], body) for name, file in FILES.items() for case, body in file["cases"].items()}
WRITING = {name: case for name, case in CASES.items() if case[1]["steps"] and "systemctl" not in case[1]["steps"][0][0]}


def machine(body: dict[str, Any]) -> ReplayHost:
    own = [path for path in BASE["files"] if "hosttune" in path]
    backups = {f"{journal.BACKUP}/{n:04d}{path.replace('/', '_')}": ABSENT for n in range(1, 9) for path in own}
    return ReplayHost(merge(merge(BASE, {"files": backups}), body["machine"]))


def files_of(host: ReplayHost, step: Step) -> list[str]:
    """The files that a step writes: one, or all that there are of a pattern."""
    return list(sysfs.values(host, step.target)) if "*" in step.target else [step.target]


def contents(host: ReplayHost, steps: list[Step]) -> dict[str, str | None]:
    """{file: its value or text} of all that these steps write."""
    paths = [path for step in steps for path in files_of(host, step)]
    texts = {path: read_or_none(host, path) for path in paths}
    return {
        path: text if text is None or path.startswith("/etc") else sysfs.in_use(text) for path, text in texts.items()
    }


def said(found: Finding) -> str:
    return " ".join([found.summary, *found.evidence, found.hint.command])


def plain(step: Step) -> tuple[str, str]:
    if step.effect == "run":
        return " ".join(step.argv), " ".join(step.undo)
    return step.target, f"{step.before} -> {step.after}"


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_and_planned(name: str) -> None:
    knob, body = CASES[name]
    host = machine(body)
    findings, steps = engine.plan(KNOBS[knob], host, body["want"])
    assert [(f.subject, f.status) for f in findings] == [(subject, status) for subject, status, _ in body["findings"]]
    for found, (_, _, words) in zip(findings, body["findings"], strict=True):
        assert words in said(found)
    assert [target for target, _ in map(plain, steps)] == [target for target, _ in body["steps"]]
    for (_, got), (_, want) in zip(map(plain, steps), body["steps"], strict=True):
        assert got.startswith(want)
    assert host.effects == [], "a plan writes nothing"
    assert host.unrecorded == []


@pytest.mark.parametrize("name", WRITING)
def test_applied_it_is_as_wanted_and_a_second_time_nothing_is_written(name: str) -> None:
    knob, body = WRITING[name]
    host = machine(body)
    wants = {knob: body["want"]}
    done = engine.tune(host, wants, KNOBS, BY_ID, dry_run=False)
    assert len(done.steps) == len(body["steps"])
    host.effects.clear()
    again = engine.tune(host, wants, KNOBS, BY_ID, dry_run=False)
    assert not again.changed and host.effects == []


@pytest.mark.parametrize("name", WRITING)
def test_reverted_every_file_is_as_it_was(name: str) -> None:
    knob, body = WRITING[name]
    host = machine(body)
    planned = engine.plan(KNOBS[knob], host, body["want"])[1]
    before = contents(host, planned)
    engine.tune(host, {knob: body["want"]}, KNOBS, BY_ID, dry_run=False)
    applied = contents(host, planned)
    assert [path for path in before if applied[path] == before[path]] == []
    steps, refused = engine.revert(host, BY_ID)
    assert len(steps) == len(planned) and refused == []
    assert contents(host, planned) == before


@pytest.mark.parametrize("name", WRITING)
def test_what_somebody_has_changed_since_is_left_alone(name: str) -> None:
    knob, body = WRITING[name]
    host = machine(body)
    planned = engine.plan(KNOBS[knob], host, body["want"])[1]
    engine.tune(host, {knob: body["want"]}, KNOBS, BY_ID, dry_run=False)
    theirs = {path: "77" for step in planned for path in files_of(host, step)}
    host.view = merge(host.view, {"files": theirs})
    steps, refused = engine.revert(host, BY_ID)
    assert steps == [] and len(refused) == len(planned)
    assert all("it is no longer what hosttune wrote" in found.summary for found in refused)
    assert contents(host, planned) == theirs


IGNORABLE = [
    name for name, (_, body) in WRITING.items() if any(not target.startswith("/etc") for target, _ in body["steps"])
]


@pytest.mark.parametrize("name", IGNORABLE)
def test_a_write_that_the_kernel_ignores_is_a_failure_with_its_likely_reason(name: str) -> None:
    knob, body = WRITING[name]
    host = machine(body)
    pokes = [step for step in engine.plan(KNOBS[knob], host, body["want"])[1] if step.effect == "poke"]
    host.view["writes"] = {path: "ignored" for step in pokes for path in files_of(host, step)}
    done = engine.tune(host, {knob: body["want"]}, KNOBS, BY_ID, dry_run=False)
    failed = [found for found in done.findings if found.status == "fail" and "did not stick" in found.summary]
    assert len(failed) == len(pokes) > 0
    likely = "; likely: " + (KNOBS[knob].if_ignored or "the device or the kernel ignores this value")
    assert all(found.summary.endswith(likely) and found.hint.command.startswith("hosttune explain ") for found in failed)


@pytest.mark.parametrize("errno", ["EBUSY", "EINVAL", "EACCES"])
def test_a_write_that_is_refused_says_so_and_the_other_changes_are_made(errno: str) -> None:
    _, body = CASES["cpu-energy-preference/asked-for"]
    host = machine(body)
    path = "/sys/devices/system/cpu/cpufreq/policy%d/energy_performance_preference"
    host.view["writes"] = {path % 0: errno, path % 1: errno}
    done = engine.tune(host, {"cpu-energy-preference": "performance"}, KNOBS, BY_ID, dry_run=False)
    failed = [found for found in done.findings if found.status == "fail"]
    assert len(failed) == 1 and errno in failed[0].summary and failed[0].hint.command
    assert [step.subject for step in done.steps] == ["boot"]


def edits() -> list[tuple[str, str, str]]:
    """(case, file, command) of every way out that edits, with sed, a file that decides about the next boot. Those for the
    kernel command line are tried in test_cmdline.py."""
    found = []
    for name, (knob, body) in CASES.items():
        for told in engine.check(KNOBS[knob], machine(body), body["want"]):
            command = told.hint.command.partition(" && ")[0]
            file = shlex.split(command)[-1] if command.startswith("sed -i ") else ""
            if told.subject == "boot" and file not in ("", cmdline.GRUB, cmdline.LOADER):
                found.append((name, file, command))
    return found


@pytest.mark.parametrize(("name", "file", "command"), edits())
def test_the_way_out_is_one(name: str, file: str, command: str, tmp_path: Path) -> None:
    """Pasted into a shell it changes the file so that this file is in nobody's way any more."""
    knob, body = CASES[name]
    copy = tmp_path / "file"
    copy.write_text(machine(body).read(file))
    subprocess.run(["bash", "-c", command.replace(shlex.quote(file), str(copy))], check=True)
    after = machine(merge(body, {"machine": {"files": {file: copy.read_text()}}}))
    boot = [f for f in engine.check(KNOBS[knob], after, body["want"]) if f.subject == "boot"]
    assert [f for f in boot if f.status in ("fail", "warn") and any(e.startswith(file) for e in f.evidence)] == []


@pytest.mark.parametrize("name", CASES)
def test_a_line_to_paste_is_one_that_a_shell_understands(name: str) -> None:
    knob, body = CASES[name]
    for told in engine.check(KNOBS[knob], machine(body), body["want"]):
        if told.hint.command.split(" ")[0] in ("sed", "echo", "systemctl", "mkdir", "hosttune", "cp"):
            parsed = subprocess.run(["bash", "-n"], input=told.hint.command, text=True, capture_output=True)
            assert parsed.returncode == 0, told.hint.command


WRONG = {
    "numa-balancing": ["4", "-1", "on", "0x1", ""],
    "zone-reclaim-mode": ["8", "no"],
    "swappiness": ["201", "1.5", "ten", "²", "010", "+1"],
    "max-map-count": ["65529", "1e6", "-1"],
    "overcommit-memory": ["3", "0|3", "|", "never"],
    "transparent-hugepages": ["advise", "madvise,always", "on"],
    "shmem-hugepages": ["madvise", "deny|x"],
    "memlock": ["8Q", "-1", "unlimited", "8 G", "", "8M:4M", "8M:x", "1:2:3", "16777216T"],
    "remove-ipc": ["true", "0"],
    "reserved-hugepages": ["-1", "many"],
    "zfs-arc": ["16", "0G", "-1G", "16GiB", "half", "99999999G"],
    "cpu-governor": ["fast", "performance "],
    "cpu-energy-preference": ["255", "fast"],
    "cpu-boost": ["1", "yes"],
    "cpu-idle-latency": ["99us", "-1", "C1"],
    "irqbalance": ["stop", "0"],
    "smt": ["nosmt", "forceoff"],
}


@pytest.mark.parametrize("name", WRONG)
def test_an_impossible_want_is_refused_in_one_line(name: str) -> None:
    for want in WRONG[name]:
        told = KNOBS[name].check(want)
        assert told and "\n" not in told and "%" not in told, want


@pytest.mark.parametrize("name", FILES)
def test_a_want_of_a_case_is_a_possible_one(name: str) -> None:
    wants = {body["want"] for body in FILES[name]["cases"].values()} - {""}
    assert [want for want in wants if KNOBS[name].check(want)] == []


@pytest.mark.parametrize("name", FILES)
def test_reading_starts_no_program(name: str) -> None:
    """base.json has no commands at all: a program would be a question without an answer."""
    assert "commands" not in BASE
    host = machine({"machine": {}})
    engine.check(KNOBS[name], host)
    assert host.unrecorded == [] and host.effects == []


def test_the_journal_of_a_machine_with_256_cpus_has_one_entry_for_all() -> None:
    cpufreq = "/sys/devices/system/cpu/cpufreq"
    files = {f"{cpufreq}/policy{n}/scaling_governor": "powersave\n" for n in range(256)}
    host = machine({"machine": {"files": files, "dirs": {cpufreq: [f"policy{n}" for n in range(256)]}}})
    done = engine.tune(host, {"cpu-governor": ""}, KNOBS, BY_ID, dry_run=False)
    assert [step.subject for step in done.steps] == ["now"]
    assert sum(effect["effect"] == "append" for effect in host.effects) == 2, "an intent and a done"
    assert {host.read(path) for path in files} == {"performance\n"}
