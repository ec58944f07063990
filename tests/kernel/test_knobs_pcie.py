# SPDX-License-Identifier: Apache-2.0
"""The PCIe and NVIDIA settings with the real setpci, lspci and modprobe, on a switch with two GPUs made of plain files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosttune.core.configured import module_options
from hosttune.core.door.live import LiveHost
from hosttune.core.knobs import KNOBS
from hosttune.core.pci import express
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.pci_tree import DOWNSTREAM_PORT, UPSTREAM_PORT, PciFunction, port
from tests.kernel.view import mount, scratch, unmount

ROOT, UP, LEFT, RIGHT = "0000:40:01.1", "0000:41:00.0", "0000:42:00.0", "0000:42:01.0"
GPUS = ("0000:43:00.0", "0000:44:00.0")
NIC = "0000:45:00.0"
ACS_CONTROL = 0x148 + 6


def switch(**of_a_gpu: Any) -> list[PciFunction]:
    """A root port, a switch with two ports that redirect, and a GPU below each."""
    below = f"{ROOT}/{UP}"
    return [
        port(ROOT),
        port(UP, kind=UPSTREAM_PORT, below=ROOT, acs=None),
        port(LEFT, kind=DOWNSTREAM_PORT, below=below),
        port(RIGHT, kind=DOWNSTREAM_PORT, below=below, acs=0x005F),
        PciFunction(GPUS[0], below=f"{below}/{LEFT}", **of_a_gpu),
        PciFunction(GPUS[1], below=f"{below}/{RIGHT}", **of_a_gpu),
    ]


def neighbour(driver: str) -> PciFunction:
    """A network card below the same switch."""
    where = f"{ROOT}/{UP}/{RIGHT}"
    return PciFunction(NIC, vendor=0x15B3, device=0x1017, class_code=0x020000, driver=driver, below=where)


@pytest.fixture
def machine(fake: FakeTrees) -> Iterator[FakeTrees]:
    """A GPU host of which nothing of this machine is seen; hosttune's state and modprobe.d are private."""
    fake.gpu_host(1)
    fake.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    mounted = private_state()
    Path("/etc/modprobe.d").mkdir(exist_ok=True)
    mount("--bind", str(scratch("modprobe.d")), "/etc/modprobe.d")
    yield fake
    for folder in [*mounted, "/etc/modprobe.d"]:
        unmount(folder)


def hosttune(*argv: str, code: int = 0) -> Any:
    done = subprocess.run([sys.executable, "-m", "hosttune", *argv, "-o", "json"], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def findings(report: Any, id: str) -> dict[str, dict[str, Any]]:
    return {f["subject"]: f for f in report["hosts"][0]["findings"] if f["id"] == id}


def spaces(bus: Path) -> dict[str, bytes]:
    """Config space of every function."""
    return {folder.name: (folder / "config").read_bytes() for folder in (bus / "devices").iterdir()}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> dict[tuple[str, int], tuple[int, int]]:
    """{(bdf, offset): (old, new)} of each byte that differs."""
    return {
        (bdf, at): (old, new)
        for bdf, space in before.items()
        for at, (old, new) in enumerate(zip(space, after[bdf], strict=True))
        if old != new
    }


def lspci(bdf: str) -> str:
    return subprocess.run(["lspci", "-vv", "-s", bdf], capture_output=True, text=True, check=True).stdout


def test_three_bits_of_acs_are_cleared_at_the_ports_that_redirect_and_come_back_bit_for_bit(machine: FakeTrees) -> None:
    bus = machine.pci([*switch(), neighbour("mlx5_core")])
    before = spaces(bus)
    assert "ReqRedir+ CmpltRedir+" in lspci(LEFT)
    report = hosttune("apply", "pcie-acs")
    assert report["changed"] and report["ok"], report
    assert changed(before, spaces(bus)) == {
        (ROOT, ACS_CONTROL): (0x1D, 0x11),
        (LEFT, ACS_CONTROL): (0x1D, 0x11),
        (RIGHT, ACS_CONTROL): (0x5F, 0x53),
    }
    assert "SrcValid+" in lspci(LEFT) and "ReqRedir- CmpltRedir-" in lspci(LEFT)
    again = hosttune("apply", "pcie-acs")
    assert not again["changed"] and again["hosts"][0]["effects"] == []
    hosttune("revert")
    assert spaces(bus) == before


@pytest.mark.parametrize("vm", ["vfio", "hostpci"])
def test_nothing_is_written_where_a_virtual_machine_has_a_device_below_the_switch(machine: FakeTrees, vm: str) -> None:
    bus = machine.pci([*switch(), neighbour("vfio-pci" if vm == "vfio" else "mlx5_core")])
    config = Path("/etc/pve/qemu-server/100.conf")
    made = [folder for folder in (config.parents[1], config.parent) if not folder.exists()]
    config.parent.mkdir(parents=True, exist_ok=True)
    if vm == "hostpci":
        config.write_text(f"cores: 8\nhostpci0: {NIC},pcie=1\n")
    before = spaces(bus)
    try:
        report = hosttune("apply", "pcie-acs", code=1)
    finally:
        config.unlink(missing_ok=True)
        for folder in reversed(made):  # a folder /etc/pve that stays makes a Proxmox host of this machine
            folder.rmdir()
    assert spaces(bus) == before and report["hosts"][0]["effects"] == []
    for found in (findings(report, "HT208")[bdf] for bdf in (ROOT, LEFT, RIGHT)):
        assert NIC in found["summary"] and "IOMMU group" in found["summary"]


WORDS = {
    "pcie-max-read-request": r"DevCtl:.*\n(?:.*\n){0,3}?.*MaxReadReq (\d+) bytes",
    "pcie-max-payload": r"DevCtl:.*\n(?:.*\n){0,3}?.*MaxPayload (\d+) bytes",
    "pcie-relaxed-ordering": r"RlxdOrd([+-])",
    "pcie-extended-tags": r"RlxdOrd[+-] ExtTag([+-])",
    "pcie-link-width": r"LnkSta:.*Width x(\d+)",
    "pcie-link-speed": r"LnkSta:\s*Speed ([\d.]+)GT/s",
}


@pytest.mark.parametrize("devctl", [0x293F, 0x5134, 0x0810, 0x2110, 0x4000, 0x1057, 0x3000])
def test_registers_are_read_as_lspci_reads_them(machine: FakeTrees, devctl: int) -> None:
    """Values of real GPUs (0x5134: an H200) and each field at another one."""
    ports = [port(ROOT, devctl=devctl), PciFunction(GPUS[0], devctl=devctl, below=ROOT, now_width=8, now_generation=4)]
    machine.pci(ports)
    words, host = lspci(GPUS[0]), LiveHost()
    for name, pattern in WORDS.items():
        told = re.search(pattern, words)
        assert told, name
        reading = KNOBS[name].read(host)[GPUS[0]]
        have = {"+": "on", "-": "off"}.get(told.group(1), told.group(1))
        assert reading.have.lstrip("x").split()[0] == have, name


def test_the_masked_write_of_acs_is_the_one_that_setpci_understands(machine: FakeTrees) -> None:
    bus = machine.pci(switch())
    subprocess.run(express.setpci(RIGHT, "ECAP_ACS+6", 0, express.ACS_REDIRECT), check=True)
    assert spaces(bus)[RIGHT][ACS_CONTROL] == 0x53


def test_a_port_that_may_not_be_written_is_a_failure(machine: FakeTrees) -> None:
    machine.pci([port(ROOT), PciFunction(GPUS[0], below=ROOT)])
    target = f"/sys/bus/pci/devices/{ROOT}/config"
    mount("--bind", target, target)
    mount("-o", "remount,bind,ro", target)
    try:
        report = hosttune("apply", "pcie-acs", code=1)
    finally:
        unmount(str(Path(target).resolve()))
    found = findings(report, "HT208")[ROOT]
    assert found["status"] == "fail" and "was not written" in found["summary"], found


def test_power_and_link_states_are_written_and_taken_back(machine: FakeTrees) -> None:
    bus = machine.pci(switch(power_control="auto", aspm={"l0s_aspm": "0", "l1_aspm": "1"}))
    report = hosttune("apply", "pcie-power-control")
    assert report["changed"], report
    device = bus / "devices" / GPUS[0]
    assert (device / "power/control").read_text() == "on\n"
    assert KNOBS["pcie-aspm"].read(LiveHost())[f"{GPUS[0]} l1_aspm"].have == "on"
    hosttune("revert")
    assert (device / "power/control").read_text() == "auto\n"


def test_without_root_what_config_space_hides_is_an_error_and_what_files_tell_is_told(machine: FakeTrees) -> None:
    """The kernel shows 64 bytes without CAP_SYS_ADMIN: not "no such capability"."""
    machine.pci([port(ROOT, readable=64), PciFunction(GPUS[0], below=ROOT, readable=64, now_width=4)])
    asked = ["pcie-acs", "pcie-max-payload", "pcie-relaxed-ordering", "pcie-link-width", "pcie-errors"]
    argv = [
        "setpriv",
        "--reuid",
        "65534",
        "--clear-groups",
        sys.executable,
        "-m",
        "hosttune",
        "check",
        *asked,
        "-o",
        "json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    report = json.loads(done.stdout)
    for id in ("HT208", "HT202", "HT206"):
        (found,) = findings(report, id).values()
        assert found["status"] == "error" and "run it as root" in found["summary"], found
    assert findings(report, "HT209")[GPUS[0]]["have"] == "x4 of x16"
    assert {f["status"] for f in findings(report, "HT205").values()} == {"ok"}


def test_modprobe_itself_takes_the_option_that_hosttune_writes_and_the_command_line_over_it(machine: FakeTrees) -> None:
    machine.pci([port(ROOT), PciFunction(GPUS[0], below=ROOT)])
    report = hosttune("apply", "nvidia-hmm", code=1)  # now it is still on: a reboot is due
    assert (
        findings(report, "HT332")["boot"]["status"] == "ok"
        and "reboot" in findings(report, "HT332")["now"]["hint"]["command"]
    )
    Path("/etc/modprobe.d/a.conf").write_text("options nvidia-uvm \\\n uvm_disable_hmm=0\n")
    machine.file("/proc/cmdline", "ro nvidia_uvm.uvm_disable_hmm=0\n")
    said = subprocess.run(["modprobe", "--showconfig"], capture_output=True, text=True, check=True).stdout
    told = re.findall(r"(?m)^options nvidia_uvm\s+uvm_disable_hmm=(\d)", said)
    assert told == ["0", "1", "0"], "a.conf, hosttune's, the command line"
    ours = [option.value for option in module_options.options(LiveHost(), "nvidia-uvm")]
    assert ours == told
    Path("/etc/modprobe.d/a.conf").unlink()
    hosttune("revert")
    assert os.listdir("/etc/modprobe.d") == []


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("nvidia-hmm", "nvidia_uvm uvm_disable_hmm=1"),
        ("nvidia-resizable-bar", "nvidia NVreg_EnableResizableBar=1"),
        ("nvidia-relaxed-ordering", "nvidia NVreg_EnablePCIERelaxedOrderingMode=1"),
        ("nvidia-dynamic-power", "nvidia NVreg_DynamicPowerManagement=0"),
    ],
)
def test_the_next_load_of_the_module_has_the_option_and_a_revert_takes_it_away(
    machine: FakeTrees, name: str, option: str
) -> None:
    machine.pci([port(ROOT), PciFunction(GPUS[0], below=ROOT)])
    hosttune("apply", name, code=1)  # now it is as it was loaded
    again = hosttune("apply", name, code=1)
    assert again["hosts"][0]["effects"] == []
    said = subprocess.run(["modprobe", "--showconfig"], capture_output=True, text=True, check=True).stdout
    assert f"options {option}\n" in said
    hosttune("revert")
    assert os.listdir("/etc/modprobe.d") == []
