# SPDX-License-Identifier: Apache-2.0
"""The settings of a host through Ansible: seen, predicted, changed, left alone, taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hosttune.core.knobs import KNOBS
from tests.ansible.conftest import Machine
from tests.kernel.pci_tree import DEVICE_CONTROL

BOOT = KNOBS["numa-balancing"].persists
WANTED = {"profile": "pcie-inference"}
GPUS = ["0000:11:00.0", "0000:21:00.0"]


def device_control(bdf: str) -> int:
    config = Path("/sys/bus/pci/devices", bdf, "config").read_bytes()
    return int.from_bytes(config[DEVICE_CONTROL : DEVICE_CONTROL + 2], "little")


def changes(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(s["target"], s["before"], s["after"]) for s in told["steps"]]


def test_plan_says_what_it_would_do_and_writes_nothing(machine: Machine) -> None:
    before = machine.snapshot()
    told = machine.module("tune", knobs=WANTED)
    assert (told["rc"], told["changed"], told["ok"], told["mode"], told["effects"]) == (0, False, False, "plan", [])
    statuses = {(f["id"], f["status"]) for f in told["findings"]}
    assert statuses >= {("HT101", "fail"), ("HT201", "fail"), ("HT102", "skip")}
    assert {id for id, status in statuses if status in ("fail", "error")} == {"HT101", "HT201"}
    assert "would change 0000:11:00.0 MaxReadReq: 512 -> 4096" in told["lines"]
    assert machine.snapshot() == before


def test_check_mode_predicts_what_apply_then_does(machine: Machine) -> None:
    before = machine.snapshot()
    predicted = machine.module("tune", "--check", mode="apply", knobs=WANTED)
    assert predicted["changed"] and predicted["effects"] == [] and machine.snapshot() == before
    done = machine.module("tune", mode="apply", knobs=WANTED)
    assert done["rc"] == 0 and done["changed"] and done["ok"]
    assert changes(done) == changes(predicted) and len(changes(done)) == 4  # now, at boot, two GPUs


def test_check_mode_shows_one_diff_for_each_change(machine: Machine) -> None:
    told = machine.play("host", {"mode": "apply", "knobs": WANTED}, "--check", "--diff")
    assert told.returncode == 0 and "changed=1" in told.stdout
    assert told.stdout.count("--- before: ") == 4
    assert "-512\n+4096\n" in told.stdout and "+kernel.numa_balancing = 0\n" in told.stdout


def test_apply_changes_the_machine_and_keeps_all_other_bits(machine: Machine) -> None:
    machine.module("tune", mode="apply", knobs=WANTED)
    assert machine.numa_balancing.read_text().strip() == "0"
    assert "kernel.numa_balancing = 0\n" in Path(BOOT).read_text()
    assert [device_control(bdf) for bdf in GPUS] == [0x593F, 0x593F]  # 0x293f but for bits 14:12


def test_second_apply_changes_nothing_and_writes_nothing(machine: Machine) -> None:
    machine.module("tune", mode="apply", knobs=WANTED)
    before = machine.snapshot()
    told = machine.module("tune", mode="apply", knobs=WANTED)
    assert (told["rc"], told["changed"], told["ok"], told["effects"], told["steps"]) == (0, False, True, [], [])
    assert machine.snapshot() == before


def test_revert_gives_every_byte_back(machine: Machine) -> None:
    before = machine.snapshot()
    machine.module("tune", mode="apply", knobs=WANTED)
    assert machine.module("revert", "--check")["changed"]
    told = machine.module("revert")
    assert told["changed"] and told["ok"] and len(told["steps"]) == 4
    now = machine.snapshot()
    assert {path: now.get(path) for path in before} == before and not Path(BOOT).exists()
    assert not machine.module("revert")["changed"]


def test_setting_that_cannot_be_made_fails_the_task_and_stops_no_other(machine: Machine) -> None:
    machine.fake.folder("/etc/sysctl.d", {"99-local.conf": "kernel.numa_balancing = 1\n"})
    told = machine.module("tune", mode="apply", knobs=WANTED)
    assert told["rc"] == 2 and not told["ok"] and told["changed"]
    assert "/etc/sysctl.d/99-local.conf" in told["msg"]
    assert device_control(GPUS[0]) == 0x593F and machine.numa_balancing.read_text().strip() == "0"


def test_ignored_finding_fails_no_task(machine: Machine) -> None:
    machine.fake.folder("/etc/sysctl.d", {"99-local.conf": "kernel.numa_balancing = 1\n"})
    ignore = [{"id": "HT101", "subject": "boot", "reason": "ours until the next window"}]
    told = machine.module("tune", mode="apply", knobs=WANTED, ignore=ignore)
    assert told["rc"] == 0 and told["ok"]
    assert [f["ignored"] for f in told["findings"] if (f["id"], f["subject"]) == ("HT101", "boot")] == [
        "ours until the next window"
    ]


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"mod": "apply"}, "hosttune.mod: no such key"),
        ({"knobs": {"numa-balancng": "0"}}, "did you mean numa-balancing?"),
        ({"knobs": {"numa-balancing": 0}}, 'write it in quotes: "0"'),
        ({"knobs": {"pcie-max-read-request": "5036"}}, "5036 is none of 128, 256, 512, 1024, 2048, 4096"),
        ({"knobs": {"profile": "fast"}}, "no such profile: fast"),
    ],
)
def test_profile_that_is_wrong_is_refused_with_its_place(
    machine: Machine, profile: dict[str, Any], message: str
) -> None:
    before = machine.snapshot()
    told = machine.module("tune", profile={"mode": "apply", **profile})
    assert told["rc"] == 2 and message in told["msg"] and machine.snapshot() == before


def test_profile_without_knobs_keeps_none(machine: Machine) -> None:
    before = machine.snapshot()
    told = machine.module("tune", profile={"mode": "apply"})
    assert (told["changed"], told["findings"]) == (False, []) and machine.snapshot() == before
