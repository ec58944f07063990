# SPDX-License-Identifier: Apache-2.0
"""One screen after a reboot: every part that can be lost has its place, and says who brings it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import status
from hosttune.core.catalogue import CATALOGUE, finding
from hosttune.core.knobs import boot_units
from hosttune.core.model import ERROR, FAIL, OK, SKIP, WARN, Action, Finding, Hint, Report, Step
from hosttune.core.recording.merge import merge
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.wanted.profile import validate
from hosttune.render import status_text

MACHINE = json.loads((Path(__file__).parents[1] / "cases/knobs/mrrs-512-to-4096.json").read_text())["machine"]
NODES = {
    "/dev/nvidiactl": "195:255",
    "/dev/nvidia0": "195:0",
    "/dev/nvidia-uvm": "511:0",
    "/dev/nvidia-uvm-tools": "511:1",
}


def host(**more: Any) -> ReplayHost:
    folder = "/proc/driver/nvidia/gpus"
    there = {
        "dirs": {folder: ["0000:11:00.0"]},
        "files": {folder + "/0000:11:00.0/information": "Device Minor: \t 0\n"},
        "nodes": {path: {"type": "char", "rdev": rdev} for path, rdev in NODES.items()},
    }
    return ReplayHost(merge(merge(MACHINE, there), more))


def told(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.id, f.status, f.subject) for f in findings]


def test_nodes_that_are_as_the_driver_has_them_are_one_line() -> None:
    assert told(status.nodes(host())) == [("HT403", OK, "/dev")]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"nodes": {"/dev/nvidia0": {"errno": "ENOENT"}}}, [("HT403", FAIL, "/dev/nvidia0")]),
        ({"nodes": {"/dev/nvidia-uvm": {"type": "char", "rdev": "509:0"}}}, [("HT405", FAIL, "/dev/nvidia-uvm")]),
        ({"nodes": {"/dev/nvidia-uvm-tools": {"type": "file"}}}, [("HT404", FAIL, "/dev/nvidia-uvm-tools")]),
        ({"nodes": {"/dev/nvidiactl": {"errno": "EACCES"}}}, [("HT403", ERROR, "/dev/nvidiactl")]),
        (
            {
                "files": {"/proc/devices": "Character devices:\n  1 mem\n"},
                "dirs": {"/proc/driver/nvidia/gpus": {"errno": "ENOENT"}},
            },
            [("HT302", FAIL, "nvidia"), ("HT303", FAIL, "nvidia-uvm")],
        ),
        (
            {"files": {"/proc/devices": "Character devices:\n195 nvidia\n"}},
            [("HT303", FAIL, "nvidia-uvm"), ("HT403", OK, "/dev")],
        ),
        ({"dirs": {"/sys/bus/pci/devices": []}}, []),
        ({"links": {"/sys/bus/pci/devices/0000:11:00.0/driver": "../../../bus/pci/drivers/vfio-pci"}}, []),
    ],
    ids=["gone", "stale-number", "placeholder", "not-seen", "no-driver", "no-uvm", "no-gpu", "of-a-vm"],
)
def test_nodes_that_a_reboot_took_are_named_with_the_way_back(more: Any, expected: list[tuple[str, str, str]]) -> None:
    findings = status.nodes(host(**more))
    assert told(findings) == expected
    assert all(f.hint.command for f in findings if f.status == FAIL)


def show(name: str, **values: str) -> str:
    rows = {"Id": name, "ActiveState": "active", "Result": "success", **values}
    return "".join("%s=%s\n" % row for row in rows.items())


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        (boot_units.KNOBS_UNIT, {}, OK),
        (boot_units.KNOBS_UNIT, {"ActiveState": "failed", "Result": "exit-code"}, FAIL),
        (boot_units.STAGE_UNIT, {"ActiveState": "failed", "Result": "timeout"}, FAIL),
        (boot_units.WATCH_UNIT, {"ActiveState": "inactive"}, FAIL),
        (boot_units.TIMER, {"ActiveState": "active", "LastTriggerUSec": "Sun 2026-11-29 22:00:00 UTC"}, OK),
        (boot_units.RECHECK_UNIT, {"ActiveState": "inactive"}, OK),
        (boot_units.RECHECK_UNIT, {"ActiveState": "failed", "Result": "exit-code"}, WARN),
    ],
)
def test_what_its_own_units_did(name: str, values: dict[str, str], expected: str) -> None:
    asked = "systemctl show %s -p Id,ActiveState,Result,ExecMainExitTimestamp,LastTriggerUSec" % name
    files = {"%s/%s" % (boot_units.UNITS, n): "x" if n == name else {"errno": "ENOENT"} for n in boot_units.NAMES}
    commands = {asked: {"rc": 0, "out": show(name, **values)}}
    (found,) = status.own_units(host(files=files, commands=commands, dirs={"/run/systemd/system": []}))
    assert (found.status, found.subject) == (expected, name)


def test_without_systemd_nothing_is_said_of_units() -> None:
    assert status.own_units(host(dirs={"/run/systemd/system": {"errno": "ENOENT"}})) == []


def test_every_finding_has_its_part_of_the_screen() -> None:
    parts = {id: status.section(finding(id, OK, "x", "")) for id in CATALOGUE}
    assert set(parts.values()) == set(status.SECTIONS)
    assert {parts[id] for id in ("HT101", "HT201")} == {"settings"} and parts["HT102"] == parts["HT911"] == "hosttune"
    assert parts["HT403"] == "nodes" and status.section(finding("HT403", OK, "x", "", machine="ct:200")) == "rules"
    assert (parts["HT501"], parts["HT605"]) == ("models", "services")


@pytest.mark.parametrize(("seconds", "words"), [(59.9, "59 s"), (720, "12 min"), (10800, "3 h"), (864000, "10 days")])
def test_how_long_it_is_up(seconds: float, words: str) -> None:
    assert status.words_of(seconds) == words


def test_a_part_that_cannot_be_looked_at_hides_no_other() -> None:
    """This recording answers for one knob only: all else is `could not tell`, and the nodes are told."""
    report = status.status(host(files={"/proc/uptime": "720.5 1\n"}), validate({"mode": "apply", "knobs": {}}))
    assert ("HT403", OK, "/dev") in told(list(report.findings))
    assert report.facts == {"up": "12 min", "mode": "apply"} and report.effects == ()


LOST = [
    finding("HT101", FAIL, "now", "kernel.numa_balancing is 1, want 0", have="1", want="0",
            hint=Hint("hosttune apply numa-balancing", "host", "nothing is restarted", "apply")),
    finding("HT101", OK, "boot", "kernel.numa_balancing is 0", have="0", want="0"),
    finding("HT102", OK, boot_units.KNOBS_UNIT, "boot unit is on", have="on", want="on"),
    finding("HT402", FAIL, "200", "a restart is pending", machine="ct:200"),
    finding("HT501", FAIL, "qwen", "qwen is not in memory"),
    finding("HT605", FAIL, "tp4", "it is not started"),
    finding("HT202", SKIP, "pcie", "does not apply"),
]  # fmt: skip
STEPS = (Step("HT101", "now", "poke", "/proc/sys/kernel/numa_balancing", "1", "0"),)
ACTIONS = (Action("restart", "ct:200", ("pct", "reboot", "200"), "its rules", ("what is in its /dev/shm",)),)


@pytest.mark.parametrize("mode", ["apply", "plan"])
def test_the_screen_says_what_is_gone_and_who_brings_it_back(mode: str) -> None:
    report = Report("status", "pve1", {"up": "12 min", "mode": mode}, tuple(LOST), STEPS, ACTIONS, mode="plan")
    screen = status_text.render(report)
    heads = [line.split()[1] for line in screen.splitlines() if line[:1] in "✗✓!?" and line[1:2] == " "]
    assert heads == ["settings", "rules", "models", "services", "hosttune"]
    assert "✗ settings  1 gone, 1 as wanted" in screen and "HT202" not in screen and "/proc/sys/kernel" not in screen
    does = "does it" if mode == "apply" else "only tells it (mode: plan)"
    assert "hosttune apply, or site.yml --tags host; at each boot hosttune-knobs.service %s" % does in screen
    assert "site.yml --tags models; at a boot nobody does it: hosttune-stage.service is not enabled" in screen
    assert "site.yml --tags serving; at a boot nobody does it\n" in screen
    assert "1 change and 1 action would bring back what is gone" in screen
    assert screen.splitlines()[0].startswith("pve1, up for 12 min")
    assert len(screen.splitlines()) <= 30, "one screen"


def test_with_v_it_shows_every_line_that_would_change() -> None:
    report = Report("status", "pve1", {"up": "12 min", "mode": "plan"}, tuple(LOST), STEPS, ACTIONS, mode="plan")
    screen = status_text.render(report, ascii_only=True, verbose=True)
    assert "/proc/sys/kernel/numa_balancing: 1 -> 0" in screen and "loses:  what is in its /dev/shm" in screen
    assert screen.isascii() and "does not apply" in screen
