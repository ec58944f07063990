# SPDX-License-Identifier: Apache-2.0
"""The real ansible-playbook against this machine, whose /proc, /sys, /etc/sysctl.d and journal are private to the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hosttune.core import journal
from tests.kernel import view
from tests.kernel.conftest import _cannot, _need_tools, fake, lxc, make_container, nodes
from tests.kernel.fake_tree import FakeTrees

__all__ = ["fake", "lxc", "machine", "make_container", "nodes", "private_namespace"]

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
STATE = Path(journal.STATE)


@pytest.fixture(scope="session", autouse=True)
def private_namespace() -> None:
    """Enter the namespace of tests/kernel, once a run."""
    reason = view.obstacle()
    if reason is not None:
        _cannot(reason)
    if not view.SCRATCH.is_mount():
        view.enter()


@dataclass
class Machine:
    """This machine as a test has arranged it, and Ansible on it."""

    fake: FakeTrees
    folder: Path
    numa_balancing: Path
    """The file behind /proc/sys/kernel/numa_balancing."""

    def module(self, name: str, *flags: str, **options: Any) -> dict[str, Any]:
        """Return values of one task, run on its own. `rc` is the exit code of ansible."""
        argv = ["ansible", "-i", self.inventory({}), "here", "-o", "-m", "hosttune.hosttune." + name]
        done = self._run(*argv, *(("-a", json.dumps(options)) if options else ()), *flags)
        told: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return {**told, "rc": done.returncode}

    def play(self, playbook: str, hosttune: dict[str, Any], *flags: str) -> subprocess.CompletedProcess[str]:
        """A whole playbook of the collection, for a machine with this variable."""
        return self._run("ansible-playbook", "-i", self.inventory(hosttune), "hosttune.hosttune." + playbook, *flags)

    def inventory(self, hosttune: dict[str, Any]) -> str:
        """An inventory of this machine alone."""
        here: dict[str, Any] = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
        if hosttune:
            here["hosttune"] = hosttune
        path = self.folder / "hosts.yml"
        path.write_text(yaml.safe_dump({"all": {"hosts": {"here": here}}}))
        return str(path)

    def snapshot(self) -> dict[str, bytes]:
        """Every file that hosttune may write to, with its content."""
        places = [self.numa_balancing, *Path("/sys/bus/pci/devices").glob("*/config")]
        for folder in ("/etc/sysctl.d", str(STATE), "/run/lock"):
            places += [p for p in Path(folder).rglob("*") if p.is_file()]
        return {str(p): p.read_bytes() for p in places}

    def _run(self, program: str, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")}
        env["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
        return subprocess.run([str(BIN / program), *argv], env=env, cwd=self.folder, capture_output=True, text=True)


@pytest.fixture
def machine(fake: FakeTrees, tmp_path: Path) -> Iterator[Machine]:
    """Two GPUs with MaxReadReq 512, NUMA balancing on, nothing set for the next boot, nothing done by hosttune yet."""
    _need_tools("setpci")
    fake.gpu_host(gpus=2)
    for folder in ("/etc/sysctl.d", "/run/lock"):
        fake.folder(folder, {})
    if Path("/etc/sysctl.conf").exists():
        fake.file("/etc/sysctl.conf", "")
    was_there = STATE.exists()
    STATE.mkdir(mode=0o700, parents=True, exist_ok=True)
    fake.folder(str(STATE), {})
    yield Machine(fake, tmp_path, fake.file("/proc/sys/kernel/numa_balancing", "1\n"))
    fake.undo()
    if not was_there:
        shutil.rmtree(STATE)
