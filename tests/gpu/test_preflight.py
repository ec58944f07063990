# SPDX-License-Identifier: Apache-2.0
"""Preflight and NVML on a real GPU: idle is go, and a process that computes is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune import nvml, preflight
from hosttune.core.door.live import LiveHost
from hosttune.core.wanted.profile import Profile
from hosttune.serve import launch

COMPUTES = """\
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2 << 30)) == 0
print("computes", flush=True)
time.sleep(120)
"""


@pytest.fixture
def computing(gpu_machine: None) -> Iterator[int]:
    """Process id of one that holds 2 GiB of GPU 0."""
    process = subprocess.Popen([sys.executable, "-c", COMPUTES], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "computes\n"
    yield process.pid
    process.kill()
    process.wait()


def test_nvml_tells_what_nvidia_smi_and_sysfs_tell(gpu_count: int) -> None:
    told = nvml.ask()
    assert told.why == "" and len(told.gpus) == gpu_count
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    for gpu in told.gpus:
        assert gpu.uuid in listed and gpu.name in listed
        assert Path("/sys/bus/pci/devices", gpu.bdf, "vendor").read_text() == "0x10de\n"
        assert gpu.memory > gpu.used > 0 and gpu.temperature and gpu.power
    assert told.driver in Path("/proc/driver/nvidia/version").read_text()


def test_an_idle_machine_is_a_go_in_seconds(gpu_count: int) -> None:
    argv = [sys.executable, "-m", "hosttune", "preflight", "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    wrong = [f for f in told["hosts"][0]["findings"] if f["status"] in ("fail", "error")]
    assert done.returncode == 0 and told["hosts"][0]["facts"]["verdict"] == "go", wrong
    assert sum(f["id"] == "HT608" and f["status"] == "ok" for f in told["hosts"][0]["findings"]) == gpu_count


def test_a_process_that_computes_is_named_and_makes_it_a_no_go(computing: int) -> None:
    told = preflight.preflight(LiveHost(), Profile())
    (f,) = [f for f in told.findings if f.status == "fail"]
    assert f.id == "HT608" and told.facts["verdict"] == "no-go"
    bdf = nvml.ask().gpus[0].bdf
    assert f.subject == bdf and "%d" % computing in f.summary and "2." in f.summary, f
    assert (computing, os.path.basename(sys.executable)[:15]) in launch.busy_gpus(LiveHost(), (bdf,))
