# SPDX-License-Identifier: Apache-2.0
"""Fixtures on the real kernel. Run as root: `pytest tests/kernel`; see view.py for what is private to the run.

Where something is missing a test is skipped with the reason. With HOSTTUNE_KERNEL=required in the environment, as `make
test` sets it for root, the same reason is a failure: nothing drops out unseen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, Protocol

import pytest

from tests.kernel import sshd, view
from tests.kernel import standin as standin_libraries
from tests.kernel.cgroup_device import DeviceCgroup
from tests.kernel.container import Container, rootfs
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.nodes import GpuNodes
from tests.kernel.proxmox import Proxmox
from tests.kernel.sshd import SshTarget
from tests.kernel.standin import StandIn


def _cannot(reason: str) -> NoReturn:
    if os.environ.get("HOSTTUNE_KERNEL") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _need_tools(*names: str) -> None:
    absent = [name for name in names if shutil.which(name) is None]
    if absent:
        _cannot(f"not installed: {', '.join(absent)}; scripts/setup installs them")


@pytest.fixture(scope="session", autouse=True)
def private_namespace() -> None:
    """Every test here runs in the private mount namespace."""
    reason = view.obstacle()
    if reason is not None:
        _cannot(reason)
    view.enter()


@pytest.fixture
def fake() -> Iterator[FakeTrees]:
    """/proc and /sys of a GPU host, by bind mounts; the machine's own are back after the test."""
    trees = FakeTrees()
    yield trees
    trees.undo()


@pytest.fixture
def nodes() -> Iterator[GpuNodes]:
    """Makes /dev/nvidia* nodes in the private /dev; none is left after the test."""
    made = GpuNodes()
    yield made
    made.clear()


@pytest.fixture(scope="session")
def device_programs(private_namespace: None) -> type[DeviceCgroup]:
    """The DeviceCgroup class, once the kernel has taken one program."""
    try:
        with DeviceCgroup():
            pass
    except OSError as refusal:
        _cannot(f"the kernel takes no device cgroup program here: {refusal}")
    return DeviceCgroup


class MakeContainer(Protocol):
    """`make_container(config text, unprivileged=False, root=None, name=None)` -> a Container that is not started yet."""

    def __call__(
        self, config: str = "", unprivileged: bool = False, root: str | None = None, name: str | None = None
    ) -> Container: ...


@pytest.fixture(scope="session")
def lxc(private_namespace: None) -> None:
    """LXC's tools and the cached roots are there."""
    _need_tools("lxc-start", "lxc-attach", "mmdebstrap")
    try:
        for name in ("ct", "ct-shifted", "old"):
            rootfs(name)
    except subprocess.CalledProcessError:
        _cannot("the container roots could not be built: run scripts/rootfs to see why")


@pytest.fixture
def make_container(lxc: None) -> Iterator[MakeContainer]:
    """Makes containers; each has its own root and is destroyed after the test."""
    made: list[Container] = []

    def make(
        config: str = "", unprivileged: bool = False, root: str | None = None, name: str | None = None
    ) -> Container:
        made.append(Container(config, unprivileged, root, name))
        return made[-1]

    yield make
    for container in made:
        container.destroy()


@pytest.fixture
def old_target(lxc: None, tmp_path: Path) -> Iterator[SshTarget]:
    """Python 3.9 behind ssh on loopback; `.container` is the same target by a container's stdin."""
    _need_tools("ssh", "ssh-keygen")
    target = sshd.ssh_target(tmp_path)
    yield target
    target.container.destroy()


@pytest.fixture(scope="session")
def standin(private_namespace: None) -> StandIn:
    """Stand-in libcuda.so.1 and libnvidia-ml.so.1 of the version that FakeTrees.driver() shows."""
    _need_tools("make", "cc")
    return standin_libraries.build(view.scratch("standin"))


@pytest.fixture(scope="module")
def proxmox_node(lxc: None) -> Iterator[Proxmox]:
    """A Proxmox node as the lab plays it, for one module: /etc/pve and pct are there."""
    if not Path("/dev/fuse").exists():
        _cannot("/dev/fuse is missing: /etc/pve cannot be mounted")
    if not Path("/usr/lib/python3/dist-packages/fusepy.py").exists():
        _cannot("not installed: python3-fusepy; scripts/setup installs it")
    node = Proxmox()
    yield node
    node.undo()


@pytest.fixture
def proxmox(proxmox_node: Proxmox) -> Iterator[Proxmox]:
    """The node, without the containers of other tests."""
    yield proxmox_node
    proxmox_node.reset()
