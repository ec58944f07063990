# SPDX-License-Identifier: Apache-2.0
"""The founding host, as far as a machine without GPUs can be one: eight GPUs on two NUMA nodes, nvidia-uvm moved from 509
to 511 at the last reboot, and container 200 whose config still says 509.

Real: the kernel, the device cgroup, LXC, systemd inside, setpci. Played: /proc and /sys of the GPU driver, its two
libraries, and its open(2), each with measured behaviour (standin/README.md, standin/opens.c).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernel.container import SEARCH_PATH as SEARCH_PATH
from tests.kernel.container import Container
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.standin import StandIn
from tests.kernel.view import mount, scratch, unmount

RULES = "".join(f"lxc.cgroup2.devices.allow = c {major}:* rwm\n" for major in (195, 509, 226, 234))
"""What the founding container allowed."""
PRELOAD = "/usr/local/lib/hosttune-test-driver.so"
HOSTTUNE = [sys.executable, "-m", "hosttune"]


@dataclass
class Mission:
    """The host's trees and nodes, and its container. `env`: for a hosttune that runs on the host."""

    trees: FakeTrees
    nodes: GpuNodes
    libraries: StandIn
    container: Container
    env: dict[str, str] = field(default_factory=dict)
    numa_balancing: Path = Path()
    bus: Path = Path()
    mounted: list[str] = field(default_factory=list)

    def hosttune(self, *argv: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run hosttune on the host; the output is text."""
        return subprocess.run([*HOSTTUNE, *argv], env={**os.environ, **self.env}, input=input, capture_output=True, text=True,
                              timeout=120)  # fmt: skip

    @property
    def ct(self) -> str:
        return self.container.name

    def hold_old_node(self) -> None:
        """The container, started anew, holds the node of nvidia-uvm as it was before its number moved, and the host has made a
        new one since: what `nvidia-modprobe` does when it finds a wrong number."""
        now = self.nodes.number("nvidia-uvm")
        self.container.stop()
        self.nodes.make("nvidia-uvm", 509, now.minor)
        self.container.start(booted=True)
        self.nodes.make("nvidia-uvm", now.major, now.minor)

    def devctl(self, bdf: str) -> int:
        """Device Control of a GPU, from its config space."""
        data = (self.bus / "devices" / bdf / "config").read_bytes()
        return int.from_bytes(data[0x68:0x6A], "little")

    def undo(self) -> None:
        self.container.destroy()
        self.nodes.clear()
        self.trees.undo()
        for folder in self.mounted:
            unmount(folder)


def broken(libraries: StandIn, gpus: int = 8, uvm: int = 511, name: str | None = None, rules: str = RULES,
           entries: Sequence[Path] | None = None, unprivileged: bool = False) -> Mission:  # fmt: skip
    """The host after the reboot, with the container started and its systemd up. Everything is undone by `undo()`.

    entries: the host nodes that the config binds in; default: all of them.
    """
    trees, nodes = FakeTrees(), GpuNodes()
    trees.gpu_host(gpus, uvm)
    bus = trees.pci(trees.functions(gpus))
    trees.file("/proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz root=/dev/mapper/pve-root ro quiet\n")
    numa = trees.file("/proc/sys/kernel/numa_balancing", "1\n")
    made = nodes.make_all(gpus, uvm)
    config = (
        rules + bind_entries(list(entries) if entries is not None else made, optional=True) + trees.container_entries()
    )
    container = Container(config, unprivileged, name=name)
    libraries.install(container.rootfs)
    shutil.copy(libraries.folder / "driver-opens.so", container.rootfs / PRELOAD.lstrip("/"))
    (container.rootfs / "etc/ld.so.preload").write_text(PRELOAD + "\n")
    env = {"LD_LIBRARY_PATH": str(libraries.folder), "LD_PRELOAD": str(libraries.folder / "driver-opens.so")}
    host = Mission(trees, nodes, libraries, container, env, numa, bus, private_state())
    try:
        container.start(booted=True)
    except RuntimeError:
        host.undo()
        raise
    return host


def private_state() -> list[str]:
    """Put empty folders over /etc/sysctl.d, /etc/tmpfiles.d, hosttune's own and, where it is, the CPUs' frequencies, for the
    test alone; returns them, to be unmounted."""
    folders = ["/etc/sysctl.d", "/etc/tmpfiles.d", "/var/lib/hosttune", "/etc/hosttune", "/run/lock"]
    folders += [folder for folder in ("/sys/devices/system/cpu/cpufreq",) if Path(folder).is_dir()]
    for folder in folders:
        if not folder.startswith("/sys"):
            Path(folder).mkdir(parents=True, exist_ok=True)
        mount("--bind", str(scratch(folder.strip("/").replace("/", "-"))), folder)
    return folders
