# SPDX-License-Identifier: Apache-2.0
"""hosttune on the lab's /etc/pve: each refusal is one message with exit code 2, and no file anywhere has changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.nodes import GpuNodes
from tests.kernel.proxmox import PVE, Proxmox

RULES = "lxc.cgroup2.devices.allow: c 195:* rwm\nlxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\n"
WATCHED = (PVE, Path("/var/lib/hosttune"), Path("/etc/sysctl.d"), Path("/run/lock/lxc"))


def files() -> dict[str, str]:
    """Every file that hosttune may touch, with its content's digest; its own lock is no content."""
    found = (path for top in WATCHED for path in sorted(top.rglob("*")) if path.is_file())
    kept = (path for path in found if path.suffix != ".lock" and path.name not in ("lock", ".clusterlog"))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


CASES = {
    "locked": ("lock: backup\n", "the container is locked (backup)", ":6"),
    "template": ("template: 1\n", "this is a template", ":6"),
    "pending": ("\n[pve:pending]\ndev0: /dev/nvidia0\n", "a pending change would undo the edit", ":"),
    "no quorum": ("", "no quorum", "362.conf"),
    "virtual machine": ("", "is a virtual machine, not a container", "qemu-server/362.conf"),
    "unknown": ("", "there is no container 362", "/etc/pve/lxc"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_refusal_changes_no_file(proxmox: Proxmox, nodes: GpuNodes, case: str) -> None:
    lines, what, where = CASES[case]
    nodes.make_all(1)
    path = proxmox.container(362, RULES if case == "pending" else lines + RULES)
    if case == "pending":
        path.write_text(path.read_text() + lines)
    elif case == "no quorum":
        proxmox.lab("quorum", "off")
    elif case == "unknown":
        path.unlink()
    elif case == "virtual machine":
        path.unlink()
        (PVE / "qemu-server/362.conf").write_text("cores: 1\n")
    before = files()
    argv = [sys.executable, "-m", "hosttune", "lxc", "sync", "362", "--gpus", "0", "--form", "dev"]
    done = subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ), timeout=60)
    after = files()
    if case == "virtual machine":
        (PVE / "qemu-server/362.conf").unlink()
    assert done.returncode == 2 and done.stdout == "", (done.stdout, done.stderr)
    assert what in done.stderr and where in done.stderr and "way out: " in done.stderr and len(done.stderr.splitlines()) == 2
    assert after == before
