# SPDX-License-Identifier: Apache-2.0
"""Real tools on the faked /proc and /sys: what they read, what a write leaves, and that the machine's own stay as they are."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.kernel.fake_tree import VERSION, FakeTrees
from tests.kernel.pci_tree import DEVICE_CONTROL, PciFunction
from tests.kernel.view import outside

BDF = "0000:11:00.0"


def tool(*argv: str) -> str:
    environment = {**os.environ, "PATH": os.environ["PATH"] + ":/sbin:/usr/sbin"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def device_control(bus: Path, bdf: str = BDF) -> int:
    config = (bus / "devices" / bdf / "config").read_bytes()
    assert len(config) == 4096
    return int.from_bytes(config[DEVICE_CONTROL : DEVICE_CONTROL + 2], "little")


def test_lspci_reads_the_registers(fake: FakeTrees) -> None:
    fake.pci([PciFunction(BDF), PciFunction("0000:21:00.0", now_generation=1, now_width=8, driver="vfio-pci")])
    assert tool("lspci", "-Dn").splitlines() == [
        f"{BDF} 0302: 10de:2bb5 (rev a1)",
        "0000:21:00.0 0302: 10de:2bb5 (rev a1)",
    ]
    healthy, degraded = tool("lspci", "-Dnvvk").split("\n\n")[:2]
    assert re.search(r"Capabilities: \[60\] Express \(v2\) Endpoint", healthy)
    assert re.search(r"MaxPayload 256 bytes, MaxReadReq 512 bytes", healthy)
    assert re.search(r"LnkSta:\s+Speed 32GT/s.*Width x16", healthy)
    assert "Kernel driver in use: nvidia" in healthy
    assert re.search(r"LnkSta:\s+Speed 2.5GT/s \(downgraded\), Width x8 \(downgraded\)", degraded)
    assert "Kernel driver in use: vfio-pci" in degraded


def test_a_masked_write_keeps_the_other_bits_and_an_unmasked_one_is_seen(fake: FakeTrees) -> None:
    bus = fake.pci([PciFunction(BDF)])
    assert tool("setpci", "-s", "11:00.0", "CAP_EXP+8.w") == "293f\n"
    tool("setpci", "-s", "11:00.0", "CAP_EXP+8.w=5000:7000")
    assert device_control(bus) == 0x593F
    tool("setpci", "-s", "11:00.0", "CAP_EXP+8.w=5000")
    assert device_control(bus) == 0x5000


def test_only_the_addressed_function_is_written(fake: FakeTrees) -> None:
    bus = fake.pci([PciFunction(BDF), PciFunction("0000:11:00.1", device=0x22E8, class_code=0x040300, driver=None)])
    before = (bus / "devices/0000:11:00.1/config").read_bytes()
    tool("setpci", "-s", BDF, "CAP_EXP+8.w=5000:7000")
    assert (bus / "devices/0000:11:00.1/config").read_bytes() == before
    assert device_control(bus) == 0x593F


def test_a_short_read_is_what_a_caller_without_rights_gets(fake: FakeTrees) -> None:
    fake.pci([PciFunction(BDF, readable=64)])
    assert len(Path("/sys/bus/pci/devices", BDF, "config").read_bytes()) == 64


def test_sysfs_attributes_and_the_driver_link(fake: FakeTrees) -> None:
    fake.pci([PciFunction(BDF, numa_node=1)])
    device = Path("/sys/bus/pci/devices", BDF)
    assert (device / "numa_node").read_text() == "1\n"
    assert (device / "current_link_speed").read_text() == "32.0 GT/s PCIe\n"
    assert (device / "driver").resolve() == Path("/sys/bus/pci/drivers/nvidia")
    assert (device / "driver" / BDF).resolve() == device.resolve()


def test_sysctl_writes_the_faked_value_only(fake: FakeTrees) -> None:
    path = "/proc/sys/kernel/numa_balancing"
    if not Path(path).exists():
        pytest.skip("this kernel has no NUMA balancing")
    own = outside("cat", path).stdout
    behind = fake.file(path, "1\n")
    assert tool("sysctl", "-n", "kernel.numa_balancing") == "1\n"
    tool("sysctl", "-q", "-w", "kernel.numa_balancing=0")
    assert behind.read_text() == "0\n"
    behind.write_text("1\n")
    assert outside("cat", path).stdout == own != ""


def test_proc_devices_can_change_under_a_running_test(fake: FakeTrees) -> None:
    fake.proc_devices(uvm=509)
    assert "509 nvidia-uvm\n" in Path("/proc/devices").read_text()
    fake.proc_devices(uvm=511)
    assert re.findall(r"^\s*(\d+) nvidia-uvm$", Path("/proc/devices").read_text(), re.M) == ["511"]
    fake.proc_devices(uvm=None)
    assert "nvidia-uvm" not in Path("/proc/devices").read_text()
    assert "195 nvidia\n" in Path("/proc/devices").read_text()


def test_modules_and_driver_appear_and_go(fake: FakeTrees) -> None:
    real = set(os.listdir("/sys/module"))
    fake.gpu_host(gpus=8)
    assert Path("/sys/module/nvidia/version").read_text() == VERSION + "\n"
    assert set(os.listdir("/sys/module")) == real | {"nvidia", "nvidia_uvm"}
    assert VERSION in Path("/proc/driver/nvidia/version").read_text()
    assert len(os.listdir("/proc/driver/nvidia/gpus")) == len(os.listdir("/sys/bus/pci/devices")) == 8
    fake.driver(version=None)
    assert not Path("/proc/driver/nvidia").exists()
    fake.undo()
    assert set(os.listdir("/sys/module")) == real
    assert Path("/proc/devices").read_text() == outside("cat", "/proc/devices").stdout
    assert os.listdir("/sys/bus/pci/devices") == outside("ls", "-U", "/sys/bus/pci/devices").stdout.split()


def test_the_kernel_command_line(fake: FakeTrees) -> None:
    fake.file("/proc/cmdline", "root=/dev/sda1 pci=pcie_bus_perf quiet\n")
    assert "pcie_bus_perf" in Path("/proc/cmdline").read_text()


def test_a_missing_target_is_named(fake: FakeTrees) -> None:
    with pytest.raises(FileNotFoundError, match="/proc/no-such-file"):
        fake.file("/proc/no-such-file", "")
