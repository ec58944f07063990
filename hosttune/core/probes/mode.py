# SPDX-License-Identifier: Apache-2.0
"""Do file mode and mount let the caller open each node? Both say EACCES; access(2) does not ask the mount.

A security module says EACCES too: that is what is left when mode and mount are right.
"""

from __future__ import annotations

from typing import List

from ..catalogue import finding
from ..doctor.survey import UVM_NODE, UVM_TOOLS, Machine, Node
from ..model import ERROR, FAIL, FITS, OK, PROVED, WARN, Finding, Hint, Probe
from .heal import RESTART_COSTS
from .nodes import not_asked, sound
from .scene import Machines, below, ct_id, whole

OVERFLOW_UID = 65534


def run(machines: Machines) -> List[Finding]:
    """HT407, HT408."""
    machines = whole(machines)
    found: List[Finding] = []
    for machine in machines.values():
        fit = [node for node in machine.nodes.values() if sound(machine, node)]
        judged = [f for node in fit for f in _judge(machines, machine, node)]
        if fit and not judged:
            told = "the modes of %d device nodes let uid %d open them" % (len(fit), machine.uid)
            judged = [finding("HT407", OK, "nodes", told, machine=machine.key)]
        found += judged
    return found


def _judge(machines: Machines, machine: Machine, node: Node) -> List[Finding]:
    if not_asked(node) and not node.open:
        told = "%s: neither access nor open was asked" % node.path
        return [finding("HT903", ERROR, node.path, told, machine=machine.key)]
    return _by_mode(machines, machine, node) + _by_mount(machine, node)


def _by_mode(machines: Machines, machine: Machine, node: Node) -> List[Finding]:
    bits = int(node.mode or "0", 8) & 0o006 == 0o006
    by_open = not_asked(node) and node.open == "EACCES" and not node.nodev
    if node.access != "EACCES" and not (by_open and not bits):
        return []
    status = WARN if node.path == UVM_TOOLS else FAIL
    seen = "%s: mode %s, owner %d:%d; access says EACCES to uid %d" % (
        node.path,
        node.mode,
        node.uid,
        node.gid,
        machine.uid,
    )
    if bits:
        return [
            finding(
                "HT407",
                status,
                node.path,
                "%s is refused with EACCES although its mode is %s: a security module "
                "(SELinux, AppArmor) refuses it" % (node.path, node.mode),
                have="EACCES",
                want="opens",
                proof=FITS,
                evidence=(seen,),
                decide="journalctl -k | grep -i -e apparmor -e avc   # on the host",
                hint=Hint("journalctl -k | grep -i -e apparmor -e avc", below(machines, machine), "", "look"),
                machine=machine.key,
            )
        ]
    owner = (
        " (it belongs to nobody here: an id that this container does not map)"
        if (machine.userns and node.uid == OVERFLOW_UID)
        else ""
    )
    if machine.kind == "lxc":
        hint = Hint(
            "pct set %s -dev0 %s,mode=0666" % (ct_id(machine), node.path),
            below(machines, machine),
            "devN with a free N makes the container's own node; " + RESTART_COSTS,
            "reconfigure",
        )
    elif node.path in (UVM_NODE, UVM_TOOLS):
        hint = Hint(
            "chmod 0666 %s" % node.path,
            below(machines, machine),
            "until the node is made anew; nvidia-modprobe makes it 0666",
            "apply",
        )
    else:
        hint = Hint(
            "cat /proc/driver/nvidia/params",
            below(machines, machine),
            "DeviceFileMode 432 is 0660 (438 is 0666): "
            "add the user to group %d, or set NVreg_DeviceFileMode=0666" % node.gid,
            "look",
        )
    return [
        finding(
            "HT407",
            status,
            node.path,
            "%s is refused with EACCES to uid %d: its mode is %s, owner %d:%d%s"
            % (node.path, machine.uid, node.mode, node.uid, node.gid, owner),
            have=node.mode,
            want="0666",
            proof=PROVED,
            evidence=(seen,),
            hint=hint,
            machine=machine.key,
        )
    ]


def _by_mount(machine: Machine, node: Node) -> List[Finding]:
    if node.open != "EACCES" or node.access == "EACCES":
        return []
    if not_asked(node) and not node.nodev:
        return []  # without access(2) an EACCES of open(2) may just as well come from the mode
    status = WARN if node.path == UVM_TOOLS else FAIL
    seen = "%s: access says %s, open says EACCES" % (node.path, node.access)
    if node.nodev is False:
        return [
            finding(
                "HT407",
                status,
                node.path,
                "%s is refused with EACCES on open only, and its mount has no nodev: a "
                "security module (SELinux, AppArmor) refuses it" % node.path,
                have="EACCES",
                want="opens",
                proof=FITS,
                evidence=(seen,),
                decide="journalctl -k | grep -i -e apparmor -e avc   # on the host",
                hint=Hint("journalctl -k | grep -i -e apparmor -e avc", "host", "", "look"),
                machine=machine.key,
            )
        ]
    told = ("/proc/self/mountinfo: its mount has nodev",) if node.nodev else ()
    point = "/dev" if node.path.count("/") == 2 else node.path.rpartition("/")[0]
    return [
        finding(
            "HT408",
            status,
            node.path,
            "%s lies on a nodev mount: no device there can be opened" % node.path,
            have="nodev",
            want="dev",
            proof=PROVED if node.nodev else FITS,
            evidence=(seen,) + told,
            decide="" if node.nodev else "findmnt -T %s -o TARGET,OPTIONS" % node.path,
            hint=Hint(
                "mount -o remount,bind,dev %s" % point,
                "where %s is mounted, as root" % point,
                "until the next mount: take nodev out of the entry that mounts it",
                "reconfigure",
            ),
            machine=machine.key,
        )
    ]


PROBE = Probe("mode", ("gpu",), run)
