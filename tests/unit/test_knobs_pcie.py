# SPDX-License-Identifier: Apache-2.0
"""What the cases in tests/cases/knobs do not say of the PCIe settings: writes that do not land, and the ways up a bus."""

from __future__ import annotations

from typing import Any

import pytest

from hosttune.core import engine
from hosttune.core.knobs import BY_ID, KNOBS
from hosttune.core.knobs.pcie_aspm import POLICY
from hosttune.core.pci import bus, express
from hosttune.core.pci import link as pci_link
from hosttune.core.recording.replay import ReplayHost
from tests.kernel.pci_tree import PciFunction
from tests.unit import gpu_host

PORT, GPU = "0000:10:00.0", "0000:11:00.0"
POWER = f"/sys/bus/pci/devices/{GPU}/power/control"
CLEAR_ACS = f"setpci -s {PORT} ECAP_ACS+6.w=0000:002c"
SET_SIZE = f"setpci -s {GPU} CAP_EXP+8.w=5000:7000"
JOURNAL = {"/var/lib/hosttune/journal.jsonl": {"errno": "ENOENT"}}
DEFAULT = {POLICY: "[default] performance powersave powersupersave\n"}


def host(gpu: dict[str, Any] | None = None, **more: Any) -> ReplayHost:
    """A GPU below a root port."""
    rows: list[dict[str, Any]] = [{"bdf": PORT, "port": True}, {"bdf": GPU, "below": PORT, **(gpu or {})}]
    more["files"] = {**JOURNAL, **more.get("files", {})}
    return ReplayHost(gpu_host.machine(rows, more))


@pytest.mark.parametrize(
    ("knob", "want", "machine", "words", "reason"),
    [
        ("pcie-max-read-request", "4096", {"commands": {SET_SIZE: {"rc": 0}}}, "wrote 4096, read back 512", "setpci exits 0"),
        ("pcie-acs", "off", {"commands": {CLEAR_ACS: {"rc": 0}}}, "wrote off, read back request+completion", "setpci exits 0"),
        ("pcie-acs", "off", {"commands": {CLEAR_ACS: {"rc": 127}}}, "setpci exited 127", "apt install pciutils"),
        ("pcie-aspm", "performance", {"files": DEFAULT, "writes": {POLICY: "ignored"}}, "read back default", "firmware"),
        ("pcie-aspm", "performance", {"files": DEFAULT, "writes": {POLICY: "EPERM"}}, "was not written: EPERM", "firmware"),
        ("pcie-power-control", "on", {"gpu": {"power_control": "auto"}, "writes": {POWER: "ignored"}}, "read back auto", "udev"),
    ],
    ids=["max-read-request", "acs", "no-setpci", "aspm", "aspm-refused", "power"],
)  # fmt: skip
def test_a_write_that_does_not_land_is_a_failure_with_the_likely_reason(
    knob: str, want: str, machine: dict[str, Any], words: str, reason: str
) -> None:
    done = engine.tune(host(**machine), {knob: want}, KNOBS, BY_ID, dry_run=False)
    (failed,) = [f for f in done.findings if f.status == "fail"]
    assert words in failed.summary and reason in failed.summary + failed.hint.command
    assert failed.subject not in [step.subject for step in done.steps]


def test_a_revert_waits_while_a_gpu_computes_as_the_write_did() -> None:
    after = {"files": {f"/sys/bus/pci/devices/{GPU}/config": {"hex": PciFunction(GPU, devctl=0x593F).config().hex()}}}
    back = f"setpci -s {GPU} CAP_EXP+8.w=2000:7000"
    machine = host(commands={SET_SIZE: {"rc": 0, "then": after}, back: {"rc": 0}})
    assert engine.tune(machine, {"pcie-max-read-request": "4096"}, KNOBS, BY_ID, dry_run=False).changed
    machine.view["holders"] = {"511:*": [[77, "vllm"]]}
    machine.view["files"][f"/proc/driver/nvidia/gpus/{GPU}/information"] = {"errno": "ENOENT"}
    before = len(machine.effects)
    steps, (waits,) = engine.revert(machine, BY_ID)
    assert steps == [] and "deferred: compute processes use this GPU (vllm 77)" in waits.summary
    assert [e for e in machine.effects[before:] if e["effect"] == "run"] == []
    assert waits.hint.command == "hosttune revert  # once that is over"


def test_the_way_up_is_told_nearest_first_and_a_switch_has_no_link_inside() -> None:
    root, up, down, gpu = "0000:40:01.1", "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
    rows: list[dict[str, Any]] = [
        {"bdf": root, "port": True},
        {"bdf": up, "port": True, "below": root},
        {"bdf": down, "port": True, "below": f"{root}/{up}"},
        {"bdf": gpu, "below": f"{root}/{up}/{down}"},
        {"bdf": GPU},
    ]
    machine = ReplayHost(gpu_host.machine(rows, {}))
    assert bus.ports_above(machine, gpu) == [down, up, root]
    assert [(link.bdf, link.port) for link in pci_link.links(machine, gpu)] == [(gpu, down), (up, root)]
    assert bus.ports_above(machine, GPU) == [], "on a root bus, as in a virtual machine"
    assert [(link.bdf, link.port) for link in pci_link.links(machine, GPU)] == [(GPU, "")]


@pytest.mark.parametrize(
    ("cmdline", "config", "policy"),
    [
        ("ro quiet", "CONFIG_PCIE_BUS_DEFAULT=y\n", "default"),
        ("ro quiet", "CONFIG_PCIE_BUS_PERFORMANCE=y\n", "perf"),
        ("ro pci=pcie_bus_safe", "CONFIG_PCIE_BUS_PERFORMANCE=y\n", "safe"),
        ("ro pci=noaer,pcie_bus_perf pci=pcie_bus_tune_off", "", "tune_off"),
    ],
)
def test_the_kernels_policy_for_max_payload(cmdline: str, config: str, policy: str) -> None:
    machine = host(files={"/proc/cmdline": cmdline, "/boot/config-6.14.11-4-pve": config})
    assert bus.bus_policy(machine) == policy


def test_lists_of_capabilities_that_never_end_or_lead_nowhere_are_no_capability() -> None:
    """A device that is broken, or plays tricks, must not keep a check busy."""
    space = bytearray(4096)
    space[0x06], space[0x34], space[0x40], space[0x41] = 0x10, 0x40, 0x01, 0x40  # points to itself
    assert express.express(bytes(space[:256])) is None
    space[0x41] = 0xFC  # beyond what can hold one
    assert express.express(bytes(space[:256])) is None
    space[0x100:0x104] = (0x0001 | 2 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert express.acs(bytes(space)) is None
    space[0x100:0x104] = (0x0001 | 2 << 16 | 0xFFC << 20).to_bytes(4, "little")
    assert express.acs(bytes(space)) is None


def test_the_mask_never_holds_the_bit_that_resets_a_gpu() -> None:
    for size in (128, 256, 512, 1024, 2048, 4096):
        *_, write = express.set_max_read_request(GPU, size)
        value, mask = (int(word, 16) for word in write.split("=")[1].split(":"))
        assert mask == 0x7000 and not value & ~mask and 128 << (value >> 12) == size
