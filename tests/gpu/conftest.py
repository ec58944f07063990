# SPDX-License-Identifier: Apache-2.0
"""Tests on a real NVIDIA GPU: `pytest tests/gpu` as root on a machine that has one. Nothing of the GPU is changed.

Device nodes are broken in a private /dev of this process alone, as in tests/kernel; the machine's own stay as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.gpu import nodes
from tests.kernel import view

Ran = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session", autouse=True)
def gpu_machine() -> None:
    """A GPU, root, and a private mount namespace."""
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("no NVIDIA driver is loaded here")
    reason = view.obstacle()
    if reason:
        pytest.skip(reason)
    view.enter()


@pytest.fixture
def real_dev(gpu_machine: None) -> Iterator[Path]:
    """The private /dev with copies of the machine's NVIDIA nodes, made anew for each test."""
    made = nodes.copy()
    yield Path("/dev")
    for path in made:
        if path.is_file() or path.is_char_device():
            path.unlink()


@pytest.fixture
def doctor() -> Callable[..., Ran]:
    """Runs `hosttune doctor` with these words; `wrap` goes before, `env` on top."""

    def run(*words: str, wrap: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> Ran:
        argv = [*wrap, sys.executable, "-m", "hosttune", "doctor", *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=180, env={**os.environ, **(env or {})})

    return run


@pytest.fixture(scope="session")
def gpu_count(gpu_machine: None) -> int:
    """As the driver's own tool says."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("nvidia-smi is not installed")
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
