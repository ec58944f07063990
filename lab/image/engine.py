# SPDX-License-Identifier: Apache-2.0
"""What an engine needs where nothing can be downloaded: llama.cpp's own server from the xllamacpp wheel that scripts/setup has
installed here, and a model of random numbers on the host's disk. Both are real; they only are small."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from lab import LabError
from tests.bench import tiny_gguf

PACKAGE = "xllamacpp"
VENV = "opt/hosttune-engine"
"""Below a container's root. A virtual environment of the container's own Python."""
MODEL = "srv/models/tiny"
"""Below the host's root: a model directory, as a download leaves one."""
BLOCKS = 1
"""Fewer than natively: an emulated processor multiplies some fifty times as slowly."""


def recipe() -> bytes:
    """Changes with what this module puts into an image."""
    return ("%s %s %d\n" % (PACKAGE, _installed().version, BLOCKS)).encode() + Path(tiny_gguf.__file__).read_bytes()


def install(root: Path) -> None:
    """Make the virtual environment below a container's root, without the symbols, which are three quarters of the library."""
    subprocess.run(["chroot", root, "python3", "-m", "venv", "--without-pip", "/" + VENV], check=True)
    (site,) = (root / VENV).glob("lib/python3*/site-packages")
    for file in _installed().files or ():
        if file.parts[0] != ".." and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)
            if file.name.endswith(".abi3.so"):
                subprocess.run(["strip", "--strip-unneeded", target], check=True)


def model(root: Path) -> None:
    """Write the model below the host's root."""
    (root / MODEL).mkdir(parents=True, exist_ok=True)
    tiny_gguf.write(root / MODEL / "tiny.gguf", BLOCKS)


def _installed() -> Distribution:
    try:
        return distribution(PACKAGE)
    except PackageNotFoundError:
        where = "%s, which %s does not have" % (PACKAGE, sys.executable)
        raise LabError("the lab's engine is %s: 'scripts/setup --venv-only' installs it into .venv" % where) from None
