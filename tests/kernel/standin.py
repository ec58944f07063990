# SPDX-License-Identifier: Apache-2.0
"""The stand-in libcuda and libnvidia-ml: build them, put them into a container, ask them.

What they answer, and what of it was measured, is in standin/README.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.fake_tree import VERSION

SOURCES = Path(__file__).with_name("standin")
SWITCH = {"STANDIN_ENXIO_IS_OK": "1"}

ASK = """\
import ctypes, json
answer = {}
nvml, number = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_int(-1)
answer["nvml"] = nvml.nvmlInit_v2()
if answer["nvml"] == 0:
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(number))
    answer["nvml_devices"] = number.value
cuda = ctypes.CDLL("libcuda.so.1")
answer["cuda"] = cuda.cuInit(0)
if answer["cuda"] == 0:
    cuda.cuDeviceGetCount(ctypes.byref(number))
    answer["cuda_devices"] = number.value
print(json.dumps(answer))
"""
"""A Python program that prints what both libraries say, NVML first (it never opens nvidia-uvm)."""


@dataclass(frozen=True)
class Codes:
    """What both libraries said; a device count is None where the library did not start."""

    cuda: int
    nvml: int
    cuda_devices: int | None = None
    nvml_devices: int | None = None


@dataclass(frozen=True)
class StandIn:
    """Built libraries in `folder`: libcuda.so.1 and libnvidia-ml.so.1, links to files named by `version`."""

    folder: Path
    version: str

    @property
    def env(self) -> dict[str, str]:
        """For processes on this machine: finds the libraries, and takes ENXIO of a right node for success."""
        return {**SWITCH, "LD_LIBRARY_PATH": str(self.folder)}

    def install(self, rootfs: Path) -> None:
        """Copy them to where a container's dynamic linker looks by default, as a driver installed in it would be."""
        target = rootfs / "usr" / "lib" / str(sysconfig.get_config_var("MULTIARCH"))
        for path in self.folder.glob("lib*.so.*"):
            shutil.copy2(path, target / path.name, follow_symlinks=False)


def build(folder: Path, version: str = VERSION) -> StandIn:
    """Compile both into `folder`. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["make", "-s", "-C", SOURCES, f"OUT={folder}", f"VERSION={version}"], check=True)
    return StandIn(folder, version)


def codes(run: Callable[[list[str]], subprocess.CompletedProcess[str]]) -> Codes:
    """Ask both libraries; `run` carries an argv to where the question is put. Raises RuntimeError with the errors seen."""
    done = run(["python3", "-c", ASK])
    if done.returncode != 0:
        raise RuntimeError(f"the libraries could not be asked: {done.stderr}")
    return Codes(**json.loads(done.stdout))


def here(standin: StandIn, env: Mapping[str, str] | None = None, user: int | None = None) -> Codes:
    """Ask on this machine, as root or as another user id."""
    settings = {**os.environ, **standin.env, **(env or {})}
    return codes(lambda argv: subprocess.run(argv, env=settings, user=user, capture_output=True, text=True))
