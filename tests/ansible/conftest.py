# SPDX-License-Identifier: Apache-2.0
"""The real ansible-playbook against this machine, whose /proc, /sys, /etc/sysctl.d and journal are private to the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from hosttune.core import journal
from tests.kernel import mission, view
from tests.kernel.conftest import _cannot, _need_tools, fake, lxc, standin
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import Mission
from tests.kernel.standin import StandIn

__all__ = ["fake", "founding", "lxc", "machine", "private_namespace", "standin"]

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
class Ansible:
    """The real programs, on this machine through a local connection."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    enter: tuple[str, ...] = ()
    """Words in front of a program that has to reach its target."""

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

    def _run(self, program: str, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")}
        env |= {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), **self.env}
        argv = (*self.enter, str(BIN / program), *argv)
        return subprocess.run(argv, env=env, cwd=self.folder, capture_output=True, text=True)


@dataclass
class Machine(Ansible):
    """Two GPUs, no containers, and what a test has done to it."""

    fake: FakeTrees = field(default_factory=FakeTrees)
    numa_balancing: Path = Path()
    """The file behind /proc/sys/kernel/numa_balancing."""

    def snapshot(self) -> dict[str, bytes]:
        """Every file that hosttune may write to, with its content."""
        places = [self.numa_balancing, *Path("/sys/bus/pci/devices").glob("*/config")]
        for folder in ("/etc/sysctl.d", str(STATE), "/run/lock"):
            places += [p for p in Path(folder).rglob("*") if p.is_file()]
        return {str(p): p.read_bytes() for p in places}


@dataclass
class FoundingHost:
    """The founding host of tests/kernel, and Ansible on it."""

    host: Mission
    ansible: Ansible

    @property
    def ct(self) -> str:
        """Name of its container."""
        return self.host.ct

    def profile(self, mode: str, **container: Any) -> dict[str, Any]:
        """Its variable `hosttune`."""
        return {"mode": mode, "knobs": {"profile": "pcie-inference"}, "containers": {self.ct: {"gpus": "all", **container}}}


@pytest.fixture
def founding(lxc: None, standin: StandIn, tmp_path: Path) -> Iterator[FoundingHost]:
    """Eight GPUs, nvidia-uvm moved from 509 to 511, the container's config still with 509."""
    made = mission.broken(standin)
    # Only the modules may see the played driver: they run on "the host".
    yield FoundingHost(made, Ansible(tmp_path, made.env))
    made.undo()


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
    yield Machine(tmp_path, fake=fake, numa_balancing=fake.file("/proc/sys/kernel/numa_balancing", "1\n"))
    fake.undo()
    if not was_there:
        shutil.rmtree(STATE)
