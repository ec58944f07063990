# SPDX-License-Identifier: Apache-2.0
"""Is each device node there, is it a device, and has it the number that the driver has now?

Nodes whose driver is not loaded are not judged: the module probe names that cause. A node is never mended by chmod: an
empty file in its place stays an empty file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional, Sequence

from ..catalogue import finding
from ..doctor.survey import NODES, UVM_TOOLS, Machine, Node
from ..lxc.facts import ContainerFacts
from ..model import ERROR, FAIL, FITS, OK, PROVED, SKIP, WARN, Finding, Hint, Probe
from . import given
from .heal import RESTART_COSTS, remake, restart, together
from .scene import Machines, below, ct_id, facts_of, fold_alike, host_node, host_of, majors_line, whole


def run(machines: Machines) -> List[Finding]:
    """HT403, HT404, HT405, HT406, HT410."""
    machines = whole(machines)
    found = []
    for machine in machines.values():
        if machine.majors is None:
            continue  # the module probe says so
        if given.nothing(machines, machine):
            found.append(given.judge(machines, machine))
            continue
        judged = [f for f in (_judge(machines, machine, node) for node in machine.nodes.values()) if f]
        judged = fold_alike(judged, lambda f: f.proof, _mends_all) + _unasked(machine)
        if machine.nodes and not judged and machine.has_nvidia:
            judged = [
                finding(
                    "HT403",
                    OK,
                    "nodes",
                    "%d device nodes are there with the driver's numbers" % len(machine.nodes),
                    machine=machine.key,
                )
            ]
        found += judged
    return found


def _mends_all(alike: Sequence[Finding]) -> Hint:
    return replace(alike[0].hint, command=together([f.hint.command for f in alike]))


def sound(machine: Machine, node: Node) -> bool:
    """Whether a node is what it should be, so that access and open say something about permission."""
    return node.type == "char" and node.rdev == machine.number_of(node.path)


def not_asked(node: Node) -> bool:
    """Whether access(2) gave no answer: nothing inside could ask it with its errno (no ctypes), or nobody asked."""
    return node.access == "" or node.access.startswith("error")


def _unasked(machine: Machine) -> List[Finding]:
    out = []
    for question, reason in machine.unknowns:
        if question == NODES or question.startswith(("/dev/", "container ", "nodes of container ")):
            told = "%s could not be looked at: %s" % (question, reason)
            owner = "ct:" + question.rpartition(" ")[2] if "container " in question else machine.key
            out.append(finding("HT903", ERROR, question, told, machine=owner))
    return out


def _judge(machines: Machines, machine: Machine, node: Node) -> Optional[Finding]:
    want = machine.number_of(node.path)
    if not want or sound(machine, node) or node.errno and _others_count(machine, node):
        return None
    if node.errno not in ("", "ENOENT", "ENOTDIR"):
        return finding(
            "HT903", ERROR, node.path, "%s could not be looked at: %s" % (node.path, node.errno), machine=machine.key
        )
    if node.errno:
        return _absent(machines, machine, node, want)
    if node.type != "char":
        return _placeholder(machines, machine, node, want)
    if node.nlink == 0:
        return _stale_inode(machines, machine, node, want)
    return _stale_number(machines, machine, node, want)


def _others_count(machine: Machine, node: Node) -> bool:
    """A GPU that is kept from a container which has as many as it is declared to have."""
    gpus = [other for path, other in machine.nodes.items() if path[len("/dev/nvidia") :].isdigit()]
    there = sum(not other.errno for other in gpus)
    return machine.kind != "host" and node in gpus and machine.declared_gpus is not None and there >= machine.declared_gpus > 0


def _restart(machines: Machines, machine: Machine) -> str:
    return restart(machine, facts_of(machines, machine))


def _status(node: Node) -> str:
    """nvidia-uvm-tools is for profilers: no fault of it has an effect on CUDA (measured)."""
    return WARN if node.path == UVM_TOOLS else FAIL


def _same_below(machines: Machines, machine: Machine, node: Node, id: str, what: str) -> Optional[Finding]:
    """The host's own node has the fault: the container only shows it."""
    other = host_node(machines, machine, node.path)
    host = host_of(machines)
    if other is None or host is None or sound(host, other):
        return None
    # The cause is whichever fault the host's node has, which need not be the same one.
    cause = "HT403" if other.errno else "HT404" if other.type != "char" else "HT405"
    return finding(id, SKIP, node.path, "%s %s" % (node.path, what), because=(cause,), machine=machine.key)


def _absent(machines: Machines, machine: Machine, node: Node, want: str) -> Finding:
    symptom = _same_below(machines, machine, node, "HT403", "is absent, as it is on the host")
    if symptom:
        return symptom
    evidence = ["%s: ENOENT" % node.path, majors_line(machine, want)]
    if machine.kind == "host":
        return finding(
            "HT403",
            _status(node),
            node.path,
            "%s is absent; its driver has %s" % (node.path, want),
            have="ENOENT",
            want=want,
            proof=PROVED,
            evidence=tuple(evidence),
            machine=machine.key,
            hint=Hint(
                remake(node.path),
                "host",
                "nothing is restarted; containers see it after their next start. For each boot: hosttune doctor --next-boot",
                "apply",
            ),
        )
    facts = facts_of(machines, machine)
    other = host_node(machines, machine, node.path)
    if facts is None or other is None:
        return finding(
            "HT403",
            _status(node),
            node.path,
            "%s is absent in this container; its driver has %s on the host" % (node.path, want),
            have="ENOENT",
            want=want,
            proof=FITS,
            evidence=tuple(evidence),
            decide="ls -l %s   # on the host: there too, or only here?" % node.path,
            hint=Hint(
                "hosttune lxc sync %s" % ct_id(machine) if machine.kind == "lxc" else _restart(machines, machine),
                below(machines, machine),
                "the container sees a new node after its next start",
                "reconfigure",
            ),
            machine=machine.key,
        )
    evidence.append("host: %s is there (%s)" % (node.path, other.rdev))
    place = facts.passing(node.path)
    if place:
        evidence[-1] += ", and %s passes it in" % place
        return finding(
            "HT403",
            _status(node),
            node.path,
            "%s is absent in this container, which was started before the host had it" % node.path,
            have="ENOENT",
            want=want,
            proof=PROVED,
            evidence=tuple(evidence),
            hint=Hint(_restart(machines, machine), "host", RESTART_COSTS, "restart"),
            machine=machine.key,
        )
    evidence[-1] += ", and no line of %s passes it in" % facts.path
    return finding(
        "HT403",
        _status(node),
        node.path,
        "%s is not passed into the container" % node.path,
        have="ENOENT",
        want=want,
        proof=PROVED,
        evidence=tuple(evidence),
        machine=machine.key,
        hint=Hint(_anew(machines, machine, _unnamed(machine, facts)), "host", RESTART_COSTS, "restart"),
    )


def _placeholder(machines: Machines, machine: Machine, node: Node, want: str) -> Finding:
    what = "an empty file" if node.type == "file" and not node.size else "a %s" % node.type
    have = "%s, mode %s, %d bytes" % (node.type, node.mode, node.size)
    evidence = ["%s: %s" % (node.path, have), majors_line(machine, want)]
    summary = "%s is %s, not a device; no mode makes it one" % (node.path, what)
    if machine.kind == "host":
        hint = Hint("rm %s && %s" % (node.path, remake(node.path)), "host", "nothing is restarted", "apply")
        return finding(
            "HT404",
            _status(node),
            node.path,
            summary,
            have=have,
            want="char " + want,
            proof=PROVED,
            evidence=tuple(evidence),
            hint=hint,
            machine=machine.key,
        )
    symptom = _same_below(machines, machine, node, "HT404", "is %s, and the host has no right node for a start to take" % what)
    if symptom:
        return symptom
    other = host_node(machines, machine, node.path)
    facts = facts_of(machines, machine)
    place = facts.passing(node.path) if facts else ""
    first = "" if other is not None and other.type == "char" else remake(node.path) + " && "
    if other is not None:
        evidence.append("host: %s" % (other.errno or "%s %s" % (other.type, other.rdev)))
        if place:
            evidence[-1] += "; %s made the file when the node was missing" % place
    proved = bool(place and other is not None)
    return finding(
        "HT404",
        _status(node),
        node.path,
        summary + "; the host had no node when the container started",
        have=have,
        want="char " + want,
        proof=PROVED if proved else FITS,
        evidence=tuple(evidence),
        decide=""
        if proved
        else "grep -n %s /etc/pve/lxc/%s.conf   # on the host: optional,create=file?"
        % (node.path.rpartition("/")[2], ct_id(machine)),
        hint=Hint(first + _restart(machines, machine), below(machines, machine), RESTART_COSTS, "restart"),
        machine=machine.key,
    )


def _opened(node: Node) -> str:
    return "open says %s" % node.open if node.open else "not opened"


def _stale_inode(machines: Machines, machine: Machine, node: Node, want: str) -> Finding:
    """The host removed this node, whose number had moved; the container holds it until it stops. One with the right number would
    be as good as the host's new one."""
    symptom = _same_below(machines, machine, node, "HT406", "is a node that the host removed, and its own is not right either")
    if symptom:
        return symptom
    other = host_node(machines, machine, node.path)
    evidence = ["%s: %s, link count 0, %s" % (node.path, node.rdev, _opened(node)), majors_line(machine, want)]
    if other is not None and other.rdev:
        evidence.append("host: %s is %s now" % (node.path, other.rdev))
    seen = node.open in ("ENXIO", "EPERM") or node.open.startswith("not-tried")
    return finding(
        "HT406",
        _status(node),
        node.path,
        "%s is the node that the host had before (%s); the host made a new one, "
        "and the container needs its rule and a start" % (node.path, node.rdev),
        have=node.rdev,
        want=want,
        proof=PROVED if seen else FITS,
        evidence=tuple(evidence),
        decide="" if seen else "stat -c '%%t:%%T %%h' %s   # here and on the host" % node.path,
        hint=Hint(_anew(machines, machine), below(machines, machine), RESTART_COSTS, "restart"),
        machine=machine.key,
    )


def _anew(machines: Machines, machine: Machine, gpus: str = "") -> str:
    """A new node may have a new number: its rule has to be there before the start. One command does both. gpus: what has to be
    said where the config names none."""
    if machine.kind != "lxc":
        return _restart(machines, machine)
    return "hosttune lxc sync %s%s --restart always" % (ct_id(machine), gpus)


def _unnamed(machine: Machine, facts: ContainerFacts) -> str:
    """sync heals what a config names, or a profile declares: where neither does, the owner has to say which GPUs."""
    named = any(facts.passing("/dev/nvidia%d" % minor) for minor in machine.minors)
    return "" if named or machine.declared_gpus not in (None, len(machine.minors)) else " --gpus all"


def _stale_number(machines: Machines, machine: Machine, node: Node, want: str) -> Finding:
    symptom = _same_below(machines, machine, node, "HT405", "has the number %s, as it has on the host" % node.rdev)
    if symptom:
        return symptom
    evidence = ["%s: %s, %s" % (node.path, node.rdev, _opened(node)), majors_line(machine, want)]
    if node.rdev.partition(":")[0] != want.partition(":")[0]:
        evidence.append(majors_line(machine, node.rdev))
    if machine.kind == "host":
        hint = Hint(
            remake(node.path),
            "host",
            "nothing is restarted; a running container keeps the old node until its next start",
            "apply",
        )
    elif machine.kind in ("docker", "podman", "kubernetes"):
        hint = Hint(
            "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            below(machines, machine),
            "then make the container anew: a CDI file that names the old number made this node",
            "reconfigure",
        )
    else:
        hint = Hint(_restart(machines, machine), below(machines, machine), RESTART_COSTS, "restart")
    return finding(
        "HT405",
        _status(node),
        node.path,
        "%s has the number %s, the driver has %s" % (node.path, node.rdev, want),
        have=node.rdev,
        want=want,
        proof=PROVED,
        evidence=tuple(evidence),
        hint=hint,
        machine=machine.key,
    )


PROBE = Probe(
    "nodes",
    (
        "unit",
        "gpu",
    ),
    run,
)
