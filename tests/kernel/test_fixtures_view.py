# SPDX-License-Identifier: Apache-2.0
"""What the private namespace promises, and that nothing of it shows outside."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from tests.kernel.nodes import GpuNodes
from tests.kernel.view import outside


def test_cgroup_is_pure_version_two() -> None:
    assert Path("/sys/fs/cgroup/cgroup.controllers").exists()
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    below = [(kind, where) for _, where, kind, *_ in mounts if where.startswith("/sys/fs/cgroup")]
    assert below == [("cgroup2", "/sys/fs/cgroup")]


def test_a_new_node_is_a_character_device_and_stays_private(nodes: GpuNodes) -> None:
    name = "nvidia-hosttune-test"  # no driver has such a node, so this holds on a machine with GPUs too
    path = nodes.make(name, 195, 0)
    seen = path.lstat()
    assert stat.S_ISCHR(seen.st_mode) and stat.S_IMODE(seen.st_mode) == 0o666 and seen.st_nlink == 1
    assert str(nodes.number(name)) == "195:0"
    assert "No such file" in outside("stat", f"/dev/{name}").stderr


def test_a_replaced_node_leaves_the_old_inode_without_links(nodes: GpuNodes) -> None:
    # What a container's bind mount still holds after the host has made its node again.
    path = nodes.make("nvidia-uvm", 509, 0)
    held = os.open(path, os.O_PATH)
    nodes.make("nvidia-uvm", 511, 0)
    try:
        assert os.fstat(held).st_nlink == 0
        assert str(nodes.number("nvidia-uvm")) == "511:0"
    finally:
        os.close(held)


def test_the_usual_devices_still_work() -> None:
    assert Path("/dev/urandom").open("rb").read(8) != bytes(8)
    assert subprocess.run(["script", "-qec", "tty", "/dev/null"], capture_output=True, text=True).stdout.startswith(
        "/dev/"
    )


def test_containers_of_the_machine_cannot_be_met() -> None:
    own = os.stat("/var/lib/lxc")
    other = outside("stat", "--format", "%d:%i", "/var/lib/lxc").stdout.strip()
    assert ":" in other
    assert other != f"{own.st_dev}:{own.st_ino}"


def test_no_mount_of_the_view_is_seen_outside() -> None:
    assert "hosttune-dev" in Path("/proc/self/mounts").read_text()
    seen = outside("cat", "/proc/self/mounts").stdout
    assert " / " in seen
    assert "hosttune-dev" not in seen
