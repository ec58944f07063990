# SPDX-License-Identifier: Apache-2.0
"""What the owner of the lab's host does and sees: site.yml from outside, CUDA in a container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from lab import deploy
from lab.image.build import REPOSITORY
from lab.machine import Machine

CU_INIT = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"


def cu_init(guest: Machine, vmid: int = 200) -> int:
    """CUDA's own answer inside a container: 0, or 999 where nvidia-uvm cannot be used."""
    return int(guest.run("pct", "exec", str(vmid), "--", "python3", "-c", CU_INIT, check=True).stdout)


def site(guest: Machine, tags: str, inventory: Path | None = None) -> dict[str, int]:
    """Run these plays of site.yml with the owner's word (mode: apply); the counters of its recap. It must end well."""
    inventory = inventory or deploy.inventory(guest, mode="apply")
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run([playbook, "-i", inventory, "site.yml", "--tags", tags], cwd=REPOSITORY, text=True, timeout=600,
                          capture_output=True, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    recap = re.search(r"^lab +: (.*)$", done.stdout, re.MULTILINE)
    assert recap is not None, done.stdout
    return {key: int(number) for key, number in (word.split("=") for word in recap[1].split())}


def said(guest: Machine, unit: str) -> str:
    """What a unit told the journal since this boot."""
    return guest.run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", unit, check=True).stdout
