# SPDX-License-Identifier: Apache-2.0
"""The lab's hardware and driver behave as the real ones in what the other tests here rely on."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable

import pytest

from lab import deploy
from lab.machine import Machine
from tests.lab.hardware import DEVCTL, GPUS, device_control, device_controls, last_serial, majors, node, writes

GPU = GPUS[0]
OPEN = "import os,sys\ntry: os.close(os.open(sys.argv[1], os.O_RDWR)); print(0)\nexcept OSError as e: print(e.errno)"


def attribute(machine: Machine, bdf: str, name: str) -> str:
    return machine.read(f"/sys/bus/pci/devices/{bdf}/{name}").strip()


def open_errno(machine: Machine, path: str) -> int:
    return int(machine.run("python3", "-c", OPEN, path, check=True).stdout)


def test_eight_gpus_hang_on_two_numa_nodes(module_guest: Machine) -> None:
    listed = module_guest.run("lspci", "-D", "-n", "-d", "10de:", check=True).stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(GPUS)
    assert [attribute(module_guest, bdf, "numa_node") for bdf in GPUS] == ["0"] * 4 + ["1"] * 4
    assert [attribute(module_guest, bdf, "local_cpulist") for bdf in GPUS] == ["0"] * 4 + ["1"] * 4
    assert attribute(module_guest, GPU, "current_link_width") == "16"
    assert attribute(module_guest, GPU, "current_link_speed") == "32.0 GT/s PCIe"


def test_the_first_boot_has_the_defaults_of_hardware_and_kernel(module_guest: Machine) -> None:
    assert device_controls(module_guest) == {"293f"}
    assert "MaxReadReq 512 bytes" in module_guest.run("lspci", "-vv", "-s", GPU).stdout
    assert module_guest.read("/proc/sys/kernel/numa_balancing") == "1\n"
    assert majors(module_guest)["nvidia-uvm"] == 509
    assert node(module_guest, "/dev/nvidia-uvm") == "509:0 666"
    assert node(module_guest, "/dev/nvidia7") == "195:7 666"


def test_a_masked_write_sticks_and_leaves_the_neighbouring_bits(guest: Machine) -> None:
    before = last_serial(guest)
    guest.run("setpci", "-s", GPU, "CAP_EXP+8.w=5000:7000", check=True)
    assert device_control(guest, GPU) == "593f"
    assert device_control(guest, GPUS[1]) == "293f"
    seen = [(write.bdf, write.register, write.old, write.value, write.by) for write in writes(guest, before)]
    assert seen == [(GPU, DEVCTL, 0x293F, 0x593F, "setpci")]


def test_an_unmasked_write_does_the_damage_that_it_does_on_hardware(guest: Machine) -> None:
    guest.run("setpci", "-s", GPU, "CAP_EXP+8.w=5000", check=True)
    assert device_control(guest, GPU) == "5000"
    text = guest.run("lspci", "-vv", "-s", GPU).stdout
    assert "MaxPayload 128 bytes, MaxReadReq 4096 bytes" in text
    assert "CorrErr- NonFatalErr- FatalErr-" in text


def test_reading_is_no_write(module_guest: Machine) -> None:
    before = last_serial(module_guest)
    module_guest.run("lspci", "-vvv", check=True)
    device_control(module_guest, GPU)
    assert writes(module_guest, before) == []


def test_no_device_of_qemu_keeps_a_max_read_request(module_guest: Machine) -> None:
    bdf = "0000:01:00.0"
    assert attribute(module_guest, bdf, "vendor") == "0x1af4"
    before = device_control(module_guest, bdf)
    assert module_guest.run("setpci", "-s", bdf, "CAP_EXP+8.w=5000:7000").returncode == 0
    assert device_control(module_guest, bdf) == before
    assert int(before, 16) & 0x7000 == 0


def test_a_link_can_lose_lanes_while_it_runs(guest: Machine) -> None:
    guest.run("sh", "-c", "echo 16,8 >/sys/module/labhw/parameters/cur_width", check=True)
    assert [attribute(guest, bdf, "current_link_width") for bdf in GPUS[:3]] == ["16", "8", "16"]
    assert attribute(guest, GPUS[1], "max_link_width") == "16"
    assert "Width x8 (downgraded)" in guest.run("lspci", "-vv", "-s", GPUS[1]).stdout


def test_hosttune_tells_a_lost_lane_and_a_lost_gpu_apart_from_healthy_ones(guest: Machine) -> None:
    deploy.hosttune(guest)
    guest.run("sh", "-c", "echo 16,8 >/sys/module/labhw/parameters/cur_width", check=True)
    guest.run("sh", "-c", "echo 4 >/sys/module/labhw/parameters/gone", check=True)
    asked = ["pcie-link-width", "pcie-max-read-request", "pcie-max-payload", "pcie-acs", "iommu-mode"]
    done = guest.run("hosttune", "check", *asked, "-o", "json")
    found = {(f["id"], f["subject"]): f for f in json.loads(done.stdout)["hosts"][0]["findings"]}
    assert [found["HT209", bdf]["have"] for bdf in GPUS[:2]] == ["x16 of x16", "x8 of x16"]
    assert [found["HT209", bdf]["status"] for bdf in GPUS[:2]] == ["ok", "fail"]
    assert found["HT201", GPUS[2]]["status"] == "error" and "fell off the bus" in found["HT201", GPUS[2]]["summary"]
    assert [found["HT201", GPUS[n]]["have"] for n in (0, 1, 3, 7)] == ["512"] * 4
    assert found["HT202", GPUS[0]]["status"] == "ok"
    assert {f["status"] for (id, _), f in found.items() if id in ("HT208", "HT210")} == {"skip"}, "no ACS, no IOMMU here"


def test_a_removed_gpu_comes_back_with_a_rescan(guest: Machine) -> None:
    guest.run("sh", "-c", f"echo 1 >/sys/bus/pci/devices/{GPUS[3]}/remove", check=True)
    assert len(guest.run("lspci", "-d", "10de:").stdout.splitlines()) == 7
    assert open_errno(guest, "/dev/nvidia3") == errno.ENODEV
    guest.run("sh", "-c", "echo 1 >/sys/bus/pci/rescan && udevadm settle", check=True)
    assert len(guest.run("lspci", "-d", "10de:").stdout.splitlines()) == 8
    assert open_errno(guest, "/dev/nvidia3") == 0


def test_a_gpu_off_the_bus_reads_as_ones_and_takes_no_write(guest: Machine) -> None:
    guest.run("sh", "-c", "echo 1 >/sys/module/labhw/parameters/gone", check=True)
    assert device_control(guest, GPUS[1]) == "293f"
    raw = guest.run("python3", "-c", f"print(open('/sys/bus/pci/devices/{GPU}/config','rb').read(4).hex())", check=True)
    assert raw.stdout.strip() == "ffffffff"


@pytest.mark.parametrize(
    "parameter, value, path, seen",
    [
        ("nvidia/parameters/ctl_errno", errno.EIO, "/dev/nvidiactl", errno.EIO),
        ("nvidia/parameters/sick", 4, "/dev/nvidia2", errno.EIO),
        ("nvidia_uvm/parameters/open_errno", errno.EBUSY, "/dev/nvidia-uvm", errno.EBUSY),
    ],
)
def test_a_driver_fails_on_demand(module_guest: Machine, parameter: str, value: int, path: str, seen: int) -> None:
    assert open_errno(module_guest, path) == 0
    module_guest.run("sh", "-c", f"echo {value} >/sys/module/{parameter}", check=True)
    assert open_errno(module_guest, path) == seen
    module_guest.run("sh", "-c", f"echo 0 >/sys/module/{parameter}", check=True)
    assert open_errno(module_guest, path) == 0


def test_nvidia_uvm_takes_the_number_that_is_asked_for_or_left_over(guest: Machine) -> None:
    guest.run("pct", "stop", "200", check=True)
    guest.run("modprobe", "-r", "nvidia-uvm", check=True)
    assert "nvidia-uvm" not in majors(guest)
    guest.run("modprobe", "nvidia-uvm", "major=0", check=True)
    chosen = majors(guest)["nvidia-uvm"]
    guest.run("modprobe", "-r", "nvidia-uvm", check=True)
    guest.run("modprobe", "nvidia-uvm", "major=0", "burn=2", check=True)
    assert majors(guest)["nvidia-uvm"] not in (chosen, 509)
    guest.run("udevadm", "settle", check=True)
    assert node(guest, "/dev/nvidia-uvm") == "%d:0 666" % majors(guest)["nvidia-uvm"]


def test_modes_of_nvidia_modprobe_exclude_each_other(guest: Machine) -> None:
    guest.run("pct", "stop", "200", check=True)

    def nodes_after(*argv: str) -> set[str]:
        guest.run("sh", "-c", "rm -rf /dev/nvidia*", check=True)
        assert guest.run("nvidia-modprobe", *argv).returncode == 0
        return set(guest.run("sh", "-c", "cd /dev && ls -d nvidia* 2>/dev/null").stdout.split())

    uvm, gpus = {"nvidia-uvm", "nvidia-uvm-tools"}, {f"nvidia{n}" for n in range(8)}
    assert nodes_after("-u", "-c=0") == uvm
    assert nodes_after("-c0", "-u") == uvm
    assert nodes_after("-u") == set()
    assert nodes_after("-u", "-m", "-s", "-l", "-c", "0") == {"nvidia-modeset"}
    assert nodes_after(*[f"-c={n}" for n in range(8)], "-c=255") == {*gpus, "nvidiactl"}
    assert nodes_after("-f", "/proc/driver/nvidia/capabilities/mig/monitor") == {"nvidia-caps"}
    assert node(guest, "/dev/nvidia-caps/nvidia-cap2").endswith(":2 444")


def test_a_wrong_node_is_made_anew_by_nvidia_modprobe(guest: Machine) -> None:
    guest.run("sh", "-c", "rm /dev/nvidia-uvm && mknod -m 600 /dev/nvidia-uvm c 508 0", check=True)
    assert guest.run("nvidia-modprobe", "-u", "-c=0").returncode == 0
    assert node(guest, "/dev/nvidia-uvm") == "509:0 666"


def test_words_for_the_kernel_reach_its_command_line(boot: Callable[[str], Machine]) -> None:
    machine = boot("hosttune=off")
    assert "hosttune=off" in machine.read("/proc/cmdline").split()


def test_a_reboot_resets_what_nobody_keeps_and_moves_the_major(guest: Machine) -> None:
    guest.run("setpci", "-d", "10de:", "CAP_EXP+8.w=5000:7000", check=True)
    guest.run("sysctl", "--write", "kernel.numa_balancing=0", check=True)
    guest.write("/root/kept", "over the reboot\n")
    for major in (511, 509):
        before = guest.boot_id()
        guest.reboot()
        guest.settle()
        assert guest.boot_id() != before
        assert majors(guest)["nvidia-uvm"] == major
        assert node(guest, "/dev/nvidia-uvm") == f"{major}:0 666"
        assert device_controls(guest) == {"293f"}
        assert guest.read("/proc/sys/kernel/numa_balancing") == "1\n"
        assert guest.read("/root/kept") == "over the reboot\n"
