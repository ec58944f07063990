# SPDX-License-Identifier: Apache-2.0
"""A look asks each question once, keeps refusals, and forgets when something is changed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hosttune.core import engine
from hosttune.core.door.glance import Glance
from hosttune.core.door.host import Host, Unrecorded
from hosttune.core.knobs import KNOBS
from hosttune.core.recording.replay import ReplayHost
from tests.unit import gpu_host


class Asked(ReplayHost):
    """Counts what it is asked."""

    def __init__(self, view: dict[str, Any]) -> None:
        super().__init__(view)
        self.asked: Counter[str] = Counter()

    def _answer(self, section: str, path: str) -> Any:
        self.asked["%s %s" % (section, path)] += 1
        return super()._answer(section, path)


def eight() -> Asked:
    """Eight GPUs, each below a root port of its own."""
    rows: list[dict[str, Any]] = []
    for n in range(1, 9):
        rows += [{"bdf": f"0000:{n}0:00.0", "port": True}, {"bdf": f"0000:{n}1:00.0", "below": f"0000:{n}0:00.0"}]
    return Asked(gpu_host.machine(rows, {}))


def test_every_question_of_a_whole_check_is_asked_once() -> None:
    """But config space, which differs by how much of it is wanted."""
    host = eight()
    look = Glance(host)
    for name, knob in KNOBS.items():
        if name.startswith(("pcie-", "iommu-", "nvidia-")) and not knob.starts:
            assert not [f for f in engine.check(knob, look) if f.status == "error"], name
    assert host.asked, "nothing was asked"
    assert {
        question for question, times in host.asked.items() if times > 1 and not question.endswith("/config")
    } == set()
    assert max(host.asked.values()) <= 2


def test_the_same_check_without_a_look_asks_again_and_again() -> None:
    """That the test above can fail is shown here."""
    host = eight()
    for knob in (KNOBS["pcie-link-width"], KNOBS["pcie-errors"]):
        engine.check(knob, host)
    assert host.asked["dirs /sys/bus/pci/devices"] > 2


def test_a_refusal_is_kept_as_it_was() -> None:
    host = Asked({"files": {"/x": {"errno": "EACCES"}}})
    look = Glance(host)
    for _ in range(2):
        with pytest.raises(PermissionError) as refused:
            look.read("/x")
        assert refused.value.filename == "/x"
        with pytest.raises(Unrecorded):
            look.read("/never")
    assert host.asked["files /x"] == 1 and host.unrecorded == ["files /never"]


def test_a_change_is_seen() -> None:
    look: Host = Glance(ReplayHost({"files": {"/proc/sys/x": "1\n"}}))
    assert look.read("/proc/sys/x") == "1\n"
    look.poke("/proc/sys/x", "0")
    assert look.read("/proc/sys/x") == "0\n"
    assert [effect["effect"] for effect in look.effects] == ["poke"]


def test_a_writing_of_eight_registers_asks_as_often_as_there_are_gpus() -> None:
    """Each write is read back by one question to one GPU: not eight times eight."""
    host = eight()
    for n in range(1, 9):
        bdf = f"0000:{n}1:00.0"
        path = f"/sys/bus/pci/devices/{bdf}/config"
        after = bytearray.fromhex(host.view["files"][path]["hex"])
        after[0x69] = 0x59
        host.view.setdefault("commands", {})[f"setpci -s {bdf} CAP_EXP+8.w=5000:7000"] = {
            "rc": 0, "then": {"files": {path: {"hex": after.hex()}}},
        }  # fmt: skip
    host.view["files"]["/var/lib/hosttune/journal.jsonl"] = {"errno": "ENOENT"}
    by_id = {knob.id: knob for knob in KNOBS.values()}
    done = engine.tune(host, {"pcie-max-read-request": "4096"}, KNOBS, by_id, dry_run=False)
    assert len(done.steps) == 8 and [f.status for f in done.findings] == ["ok"] * 8
    reads = sum(times for question, times in host.asked.items() if question.endswith("1:00.0/config"))
    assert reads == 8 * 4, "planned, looked at before the write and after it, and once more in the end"
