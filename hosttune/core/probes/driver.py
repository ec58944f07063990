# SPDX-License-Identifier: Apache-2.0
"""The permission is there: does the driver itself let the node be opened?

Meanings of its errnos: NVIDIA open kernel modules, nv.c (nvidiaN) and uvm.c (nvidia-uvm).
"""

from __future__ import annotations

from typing import List, Mapping, Optional

from ..catalogue import finding
from ..doctor.survey import UVM_NODE, UVM_TOOLS, Machine, Node
from ..model import ERROR, FAIL, FITS, OK, SKIP, WARN, Finding, Hint, Probe
from . import log
from .nodes import not_asked, sound
from .scene import Machines, below, fold_alike, host_node, host_of, kernels, whole

_GPU = {
    "EIO": "the GPU did not start (firmware, power, BAR or interrupt)",
    "ENODEV": "the driver has no GPU with this number, or the GPU fell off the bus",
    "ENXIO": "the driver has no GPU with this number",
    "EBUSY": "its interrupt is taken, or the driver is going away",
    "EPERM": "the driver excludes this GPU (NVreg_ExcludedGpus)",
    "EINVAL": "its memory could not be brought online",
    "ENOMEM": "the kernel had no memory left for it",
}
_RELOAD = "rmmod nvidia_uvm && modprobe nvidia-uvm"


def run(machines: Machines) -> List[Finding]:
    """HT409."""
    machines = whole(machines)
    found = []
    for machine in machines.values():
        fit = [
            node for node in machine.nodes.values() if sound(machine, node) and (node.access == "ok" or passed(node))
        ]
        judged = [f for f in (_judge(machines, machine, node) for node in fit) if f]
        judged = fold_alike(judged, lambda f: (f.have, f.hint))
        if fit and not judged:
            opened = [node for node in fit if node.open == "ok"]
            judged = [finding("HT409", OK, "nodes", "%d device nodes open" % len(opened), machine=machine.key)]
        found += judged
    return found


def passed(node: Node) -> bool:
    """access(2) could not be asked, and what open(2) said is neither the mode's nor the device cgroup's."""
    return not_asked(node) and node.open not in ("", "EACCES", "EPERM")


def _judge(machines: Machines, machine: Machine, node: Node) -> Optional[Finding]:
    if node.open == "ok" or node.open == "EACCES":
        return None  # EACCES after a good access() is the permission probe's
    if not node.open or node.open.startswith(("not-tried", "error")):
        return finding(
            "HT903",
            ERROR,
            node.path,
            "%s was not opened: %s" % (node.path, node.open or "not asked"),
            machine=machine.key,
        )
    minor = node.path[len("/dev/nvidia") :]
    bdf = next((name for name, number in _by_bdf(machines, machine).items() if str(number) == minor), "")
    because = log.causes(machines, bdf) if bdf else ()
    what = "does not return from open()" if node.open == "timeout" else "is refused by its driver: %s" % node.open
    meaning = _GPU.get(node.open, "") if minor.isdigit() else ""
    status, tail = (WARN if node.path == UVM_TOOLS else FAIL), ""
    works = works_all_the_same(machine)
    if works:
        status, tail = WARN, "; CUDA starts and counts %s GPUs all the same" % machine.calls.get("cuDeviceGetCount")
    if because and status == FAIL:
        told = "%s %s" % (node.path, what)
        return finding("HT409", SKIP, node.path, told, have=node.open, because=because, machine=machine.key)
    below_it = _on_host(machines, machine, node)
    if below_it and (below_it.status != WARN or status == WARN):
        told = "%s %s, as on the host" % (node.path, what)
        cause = below_it.because or (below_it.id,)
        return finding(below_it.id, SKIP, node.path, told, have=node.open, because=cause, machine=machine.key)
    if node.path == UVM_NODE and status == FAIL and node.open != "ENXIO":
        return _uvm(machines, machine, node, what)
    # Nobody's programs are ended for a node that nothing misses.
    cure = _cure(node, bdf, works, below(machines, machine))
    if minor.isdigit() and not bdf and node.open in ("ENODEV", "ENXIO"):
        meaning = "the driver has no GPU %s: %s" % (minor, _on_bus(machines, machine))
    elif bdf:
        meaning = "GPU %s: %s" % (bdf, meaning)
    return finding(
        "HT409",
        status,
        node.path,
        "%s %s%s%s" % (node.path, what, " (%s)" % meaning if meaning else "", tail),
        have=node.open,
        want="opens",
        proof=FITS,
        machine=machine.key,
        decide="dmesg | grep -e NVRM -e Xid | tail",
        evidence=("%s: %s, access says ok, open says %s" % (node.path, node.rdev, node.open),),
        hint=cure,
    )


def _on_host(machines: Machines, machine: Machine, node: Node) -> Optional[Finding]:
    """What is told of the same node of the host: there is one driver, and a container only meets its refusal again."""
    host, other = host_of(machines), host_node(machines, machine, node.path)
    return _judge(machines, host, other) if host is not None and other is not None and sound(host, other) else None


def _cure(node: Node, bdf: str, works: bool, where: str) -> Hint:
    if node.path in (UVM_NODE, UVM_TOOLS) and not works:
        return Hint(_RELOAD, where, "every CUDA program on this host has to end first", "apply")
    if not bdf and node.open in ("ENODEV", "ENXIO") and node.path[len("/dev/nvidia") :].isdigit():
        costs = "nothing is restarted; it finds a card that answers again, else: power off and on, seat, riser"
        return Hint("echo 1 > /sys/bus/pci/rescan", where, costs, "hardware")
    return Hint(
        "dmesg | grep -e NVRM -e Xid | tail",
        where,
        "the log names the hardware's fault. No command is sure to heal it; a reset, power off and on, or another slot may "
        "(hosttune explain HT409). Until then leave it out of CUDA_VISIBLE_DEVICES (nvidia-smi -L)",
        "look",
    )


def _on_bus(machines: Machines, machine: Machine) -> str:
    seen = next((m.gpus for m in kernels(machines) if m.gpus is not None), machine.gpus)
    return "how many are on the PCI bus is not known" if seen is None else "%d are on the PCI bus" % len(seen)


def _by_bdf(machines: Machines, machine: Machine) -> Mapping[str, int]:
    return machine.by_bdf or next((m.by_bdf for m in machines.values() if m.by_bdf), {})


def _uvm(machines: Machines, machine: Machine, node: Node, what: str) -> Finding:
    return finding(
        "HT321",
        FAIL,
        node.path,
        "%s %s: nvidia-uvm is in an error state of its own" % (node.path, what),
        have=node.open,
        want="opens",
        proof=FITS,
        machine=machine.key,
        decide="dmesg | grep -e NVRM -e Xid | tail",
        evidence=("%s: %s, access says ok, open says %s" % (node.path, node.rdev, node.open),),
        hint=Hint(_RELOAD, below(machines, machine), "every CUDA program on this host has to end first", "apply"),
    )


def works_all_the_same(machine: Machine) -> bool:
    """CUDA started and counts a GPU for every node: then no node can be broken for it."""
    gpus = [path for path in machine.nodes if path[len("/dev/nvidia") :].isdigit()]
    return machine.calls.get("cuInit") == 0 and machine.calls.get("cuDeviceGetCount") == len(gpus) > 0


PROBE = Probe("driver", ("gpu",), run)
