# SPDX-License-Identifier: Apache-2.0
"""A whole check of an eight-GPU host: files alone. What starts a process may load a driver, and a look changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.view import unmount

WRITES = (
    *("fork(", "clone", "connect(", "libnvidia", "libcuda"),
    *("O_WRONLY", "O_RDWR", "O_CREAT", "creat(", "rename", "unlink", "mkdir"),
)
PROFILE = {"mode": "apply", "knobs": {"profile": "pcie-inference"}}


@pytest.fixture
def host(fake: FakeTrees) -> Iterator[None]:
    fake.gpu_host(8)
    fake.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    mounted = private_state()
    yield
    for folder in mounted:
        unmount(folder)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "recommended"])
@pytest.mark.parametrize("command", ["check", "topo"])
def test_no_process_is_started_no_library_loaded_and_nothing_written(
    host: None, command: str, declared: bool, tmp_path: Path
) -> None:
    """By strace: every program that is run, every file that is opened to be written, every library of NVIDIA's."""
    assert shutil.which("strace"), "scripts/setup installs it"
    if declared:
        Path("/etc/hosttune/profile.json").write_text(json.dumps(PROFILE))
    log = tmp_path / "strace"
    calls = "trace=execve,fork,vfork,clone,clone3,open,openat,creat,rename,unlink,mkdir,connect"
    argv = ["strace", "-f", "-o", str(log), "-e", calls, sys.executable, "-m", "hosttune", command, "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
    told = json.loads(done.stdout)
    seen = told["hosts"][0]["findings"] if command == "check" else told["devices"]
    assert len([f for f in seen if f.get("id", "HT201") == "HT201"]) == 8
    rows = log.read_text().splitlines()
    assert len([row for row in rows if "execve(" in row]) == 1, [row for row in rows if "execve(" in row]
    wrong = [row for row in rows if any(call in row for call in WRITES) and "ENOENT" not in row]
    assert wrong == []
