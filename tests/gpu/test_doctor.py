# SPDX-License-Identifier: Apache-2.0
"""The doctor where a GPU is real: healthy, and each node refused, absent, stale, without touching the evidence."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import Ran
from tests.kernel.cgroup_device import DeviceCgroup, Rule

Doctor = Callable[..., Ran]


def uvm_major() -> int:
    for line in Path("/proc/devices").read_text().splitlines():
        if line.split()[1:] == ["nvidia-uvm"]:
            return int(line.split()[0])
    pytest.skip("nvidia-uvm is not loaded here")


def findings(done: Ran) -> dict[str, dict[str, Any]]:
    report = json.loads(done.stdout)
    return {f["id"]: f for f in report["hosts"][0]["findings"]}


def test_a_healthy_machine_is_green(real_dev: Path, doctor: Doctor, gpu_count: int) -> None:
    done = doctor("--gpus", str(gpu_count), "--deep", "-o", "json")
    found = findings(done)
    assert done.returncode == 0, done.stdout
    assert found["HT360"]["status"] == found["HT361"]["status"] == found["HT362"]["status"] == "ok"


@pytest.mark.parametrize(
    ("minor", "first"),
    [((None, 0), "HT401"), ((195, 255), "HT401"), ((195, 0), "HT401")],
    ids=["uvm", "nvidiactl", "nvidia0"],
)
def test_a_node_refused_by_the_device_cgroup(
    real_dev: Path, gpu_count: int, minor: tuple[int | None, int], first: str
) -> None:
    rule = Rule(minor[0] or uvm_major(), minor[1])
    with DeviceCgroup(refuse=[rule]) as group:
        done = group.run([sys.executable, "-m", "hosttune", "doctor", "--gpus", str(gpu_count), "-o", "json"])
    report = json.loads(done.stdout)
    assert report["first_cause"] == first, done.stdout
    cause = next(f for f in report["hosts"][0]["findings"] if f["id"] == first and f["status"] == "fail")
    assert "EPERM" in " ".join(cause["evidence"]) and str(rule.major) in cause["summary"] + " ".join(cause["evidence"])


def test_an_absent_uvm_node_is_named_and_not_made(real_dev: Path, doctor: Doctor) -> None:
    Path("/dev/nvidia-uvm").unlink()
    done = doctor("-o", "json")
    assert json.loads(done.stdout)["first_cause"] == "HT403", done.stdout
    assert not Path("/dev/nvidia-uvm").exists(), "asking CUDA made the node: the evidence is gone"


def test_a_stale_uvm_node_is_named_and_kept(real_dev: Path, doctor: Doctor) -> None:
    path = Path("/dev/nvidia-uvm")
    path.unlink()
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(509, 0))
    path.chmod(0o666)
    done = doctor("-o", "json")
    assert json.loads(done.stdout)["first_cause"] == "HT405", done.stdout
    assert path.lstat().st_rdev == os.makedev(509, 0)


def test_a_placeholder_is_named_and_kept(real_dev: Path, doctor: Doctor) -> None:
    path = Path("/dev/nvidia-uvm")
    path.unlink()
    path.touch(mode=0o000)
    done = doctor("-o", "json")
    assert json.loads(done.stdout)["first_cause"] == "HT404", done.stdout
    assert path.is_file() and path.stat().st_size == 0


def test_a_mode_that_shuts_users_out(real_dev: Path, doctor: Doctor) -> None:
    Path("/dev/nvidia-uvm").chmod(0o600)
    assert json.loads(doctor("-o", "json", "--as-user", "1000").stdout)["first_cause"] == "HT407"
    assert stat.S_IMODE(Path("/dev/nvidia-uvm").stat().st_mode) == 0o600


@pytest.mark.parametrize("value", ["", "-1", "99"])
def test_cuda_visible_devices(real_dev: Path, doctor: Doctor, value: str) -> None:
    done = doctor("-o", "json", env={"CUDA_VISIBLE_DEVICES": value})
    assert json.loads(done.stdout)["first_cause"] == "HT352", done.stdout


def test_a_recording_replays_to_the_same_verdict(real_dev: Path, doctor: Doctor, tmp_path: Path) -> None:
    Path("/dev/nvidia-uvm").unlink()
    file = tmp_path / "report.json"
    live = json.loads(doctor("--record", str(file), "-o", "json").stdout)
    again = json.loads(doctor("--replay", str(file), "-o", "json").stdout)
    assert again["first_cause"] == live["first_cause"] == "HT403"
    assert again["counts"] == live["counts"]


def test_deep_makes_contexts_and_runs_a_kernel(real_dev: Path, doctor: Doctor, gpu_count: int) -> None:
    done = doctor("--deep", "-v")
    assert done.returncode == 0, done.stdout
    assert f"contexts on {gpu_count} GPUs, and a kernel that ran" in done.stdout


def test_a_stub_library_first_on_the_path(real_dev: Path, doctor: Doctor, tmp_path: Path) -> None:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    source = tmp_path / "stub.c"
    source.write_text("int cuInit(unsigned flags) { return 34; }\n")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler is here to build a stub with")
    subprocess.run(["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", stubs / "libcuda.so.1", source], check=True)
    done = doctor("-o", "json", env={"LD_LIBRARY_PATH": str(stubs)})
    assert json.loads(done.stdout)["first_cause"] == "HT354", done.stdout


def test_a_limit_of_address_space(real_dev: Path, doctor: Doctor) -> None:
    done = doctor("-o", "json", wrap=("prlimit", "--as=4294967296"))
    assert json.loads(done.stdout)["first_cause"] == "HT365", done.stdout


def test_the_eyes_of_a_process_in_a_cgroup_that_refuses(real_dev: Path, doctor: Doctor) -> None:
    with DeviceCgroup(refuse=[Rule(uvm_major())]) as group:
        sleeper = subprocess.Popen(["sh", "-c", f"echo $$ > {group.path}/cgroup.procs; exec sleep 60"])
        try:
            time.sleep(0.5)
            done = doctor("-o", "json", "--pid", str(sleeper.pid))
        finally:
            sleeper.kill()
            sleeper.wait()
    assert json.loads(done.stdout)["first_cause"] == "HT401", done.stdout


def test_an_environment_as_a_unit_has_it(real_dev: Path, doctor: Doctor) -> None:
    done = doctor("-o", "json", wrap=("env", "-i", f"PATH={os.environ['PATH']}", "CUDA_VISIBLE_DEVICES=0"))
    assert done.returncode == 0, done.stdout


def test_what_pytorch_says(real_dev: Path, doctor: Doctor) -> None:
    python = next((path for path in (shutil.which("python3"), sys.executable) if path and has_torch(path)), None)
    if python is None:
        pytest.skip("no PyTorch is installed here")
    done = doctor("-o", "json", "--engine-python", python)
    assert findings(done)["HT359"]["status"] == "ok", done.stdout


def has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def test_the_register_is_read_right(gpu_count: int) -> None:
    from hosttune.core.door.live import LiveHost
    from hosttune.core.pci import bus
    from hosttune.core.pci import express as pci_express

    host = LiveHost()
    gpus = bus.gpus(host)
    assert len(gpus) >= gpu_count > 0
    for gpu in gpus:
        express = pci_express.express(pci_express.config(host, gpu.bdf))
        assert express and express.max_read_request in (
            128,
            256,
            512,
            1024,
            2048,
            4096,
        )
