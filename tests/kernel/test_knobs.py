# SPDX-License-Identifier: Apache-2.0
"""The two knobs through the command line, with the real setpci on a config space that takes every bit that is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.pci_tree import PciFunction
from tests.kernel.view import mount, unmount

GPU, AUDIO, NIC, VM_GPU = "0000:11:00.0", "0000:11:00.1", "0000:21:00.0", "0000:31:00.0"
MISSION = ("numa-balancing", "pcie-max-read-request")


@pytest.fixture
def bus(fake: FakeTrees) -> Iterator[Path]:
    """A GPU, its audio function, a NIC and a GPU of a virtual machine; NUMA balancing on; hosttune's state is private."""
    fake.gpu_host(1)
    fake.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    fake.file("/proc/sys/kernel/numa_balancing", "1\n")
    mounted = private_state()
    yield fake.pci(
        [
            PciFunction(GPU),
            PciFunction(AUDIO, device=0x22E8, class_code=0x040300, driver="snd_hda_intel"),
            PciFunction(NIC, vendor=0x15B3, device=0x1017, class_code=0x020000, driver="mlx5_core"),
            PciFunction(VM_GPU, driver="vfio-pci"),
        ]
    )
    for folder in mounted:
        unmount(folder)


def hosttune(*argv: str, code: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "hosttune", *argv], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def config(bus: Path, bdf: str) -> bytes:
    return (bus / "devices" / bdf / "config").read_bytes()


def devctl(bus: Path, bdf: str) -> int:
    return int.from_bytes(config(bus, bdf)[0x68:0x6A], "little")


def test_only_the_three_bits_of_only_the_gpu_are_written(bus: Path) -> None:
    before = {bdf: config(bus, bdf) for bdf in (GPU, AUDIO, NIC, VM_GPU)}
    report = hosttune("apply", *MISSION, "-o", "json")
    assert report["changed"] and report["ok"]
    assert devctl(bus, GPU) == 0x593F, "MaxReadReq 4096; MaxPayload, ordering, tags and error reporting as they were"
    changed = [at for at, (old, new) in enumerate(zip(before[GPU], config(bus, GPU), strict=True)) if old != new]
    assert changed == [0x69], "one byte of 4096, and not Device Status behind it"
    for bdf in (AUDIO, NIC, VM_GPU):
        assert config(bus, bdf) == before[bdf]


def test_an_unmasked_write_would_have_been_seen(bus: Path) -> None:
    """The founding machine's raw write: that the test above can fail is shown here."""
    subprocess.run(["setpci", "-s", GPU, "CAP_EXP+8.w=5000"], check=True)
    assert devctl(bus, GPU) == 0x5000, "MaxPayload back to 128, error reporting and extended tags lost"


def test_now_and_over_a_reboot(bus: Path) -> None:
    hosttune("apply", "numa-balancing", "-o", "json")
    assert Path("/proc/sys/kernel/numa_balancing").read_text() == "0\n"
    applied = subprocess.run(["sysctl", "--system"], capture_output=True, text=True)
    assert "kernel.numa_balancing = 0" in applied.stdout


def test_a_second_run_writes_nothing_at_all(bus: Path) -> None:
    hosttune("apply", *MISSION, "-o", "json")
    report = hosttune("apply", *MISSION, "-o", "json")
    assert not report["changed"] and report["hosts"][0]["effects"] == []


def test_revert_gives_every_bit_back(bus: Path) -> None:
    before = config(bus, GPU)
    hosttune("apply", *MISSION, "-o", "json")
    hosttune("revert", "-o", "json")
    assert config(bus, GPU) == before
    assert Path("/proc/sys/kernel/numa_balancing").read_text() == "1\n"
    assert os.listdir("/etc/sysctl.d") == []


def test_a_register_that_may_not_be_written_is_a_failure(bus: Path) -> None:
    target = f"/sys/bus/pci/devices/{GPU}/config"
    mount("--bind", target, target)
    mount("-o", "remount,bind,ro", target)
    try:
        report = hosttune("apply", "pcie-max-read-request", "-o", "json", code=1)
        found = [f for f in report["hosts"][0]["findings"] if f["subject"] == GPU]
        assert found[0]["status"] == "fail" and "was not written: setpci exited 1" in found[0]["summary"], found
        assert found[0]["summary"].count("Cannot open") == 1, "it says so once for each of its tries"
    finally:
        unmount(target)


def test_a_user_is_told_that_root_is_needed_not_that_there_is_no_gpu(bus: Path) -> None:
    (bus / "devices" / GPU / "config").write_bytes(config(bus, GPU)[:64])  # what the kernel shows without CAP_SYS_ADMIN
    report = hosttune("check", "pcie-max-read-request", "-o", "json", code=1)
    (found,) = [f for f in report["hosts"][0]["findings"] if f["subject"] == GPU]
    assert found["status"] == "error" and "run it as root" in found["summary"]
