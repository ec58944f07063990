# SPDX-License-Identifier: Apache-2.0
"""Was a container given any GPU at all?"""

from __future__ import annotations

from ..catalogue import finding
from ..doctor.survey import Machine
from ..model import FAIL, FITS, PROVED, Finding, Hint
from .scene import Machines, below, host_of, majors_line


def nothing(machines: Machines, machine: Machine) -> bool:
    """A container without any node, seen from inside alone: nobody passed a GPU in. Where the host was asked, its config says
    more (HT403)."""
    inside = machine.kind not in ("host", "unknown") and host_of(machines) is None and machine.has_nvidia
    return inside and bool(machine.nodes) and all(node.errno == "ENOENT" for node in machine.nodes.values())


_PASS_IN = {
    "docker": "docker run --gpus all IMAGE",
    "podman": "podman run --device nvidia.com/gpu=all IMAGE",
    "kubernetes": "kubectl edit deployment NAME   # resources: limits: nvidia.com/gpu: 1",
    "lxc": "hosttune lxc sync CTID --gpus all",
}


def judge(machines: Machines, machine: Machine) -> Finding:
    """HT410: who has to pass one in, and how."""
    asked = machine.env.get("NVIDIA_VISIBLE_DEVICES")
    # LXC skips what was not there when it started (optional): only a runtime gives all that was asked for, or does not start.
    asked_for = machine.kind in ("docker", "podman", "kubernetes")
    said = ("NVIDIA_VISIBLE_DEVICES=%s, which means none" % asked,) if asked in ("", "void", "none") else ()
    return finding(
        "HT410",
        FAIL,
        "nodes",
        "this container has no GPU: none of %d device nodes is in it, though the driver below is loaded"
        % len(machine.nodes),
        have="none",
        want="at least one GPU",
        proof=PROVED if asked_for else FITS,
        decide=""
        if asked_for
        else "grep -n nvidia /etc/pve/lxc/CTID.conf   # on the host: lines are there? then start it anew",
        evidence=("%s and all the others: ENOENT" % next(iter(machine.nodes)), majors_line(machine, "195:255"), *said),
        hint=Hint(
            _PASS_IN.get(machine.kind, "ls -l /dev/nvidia*   # pass these in, where this container is made"),
            below(machines, machine),
            "the container is made, or started, anew",
            "reconfigure" if machine.kind in _PASS_IN else "look",
        ),
        machine=machine.key,
    )
