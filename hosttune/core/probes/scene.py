# SPDX-License-Identifier: Apache-2.0
"""Who stands below whom: the machine that owns the kernel, and what it knows of a container; what is one fault of many nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, List, Mapping, Optional, Sequence

from ..doctor.survey import Machine, Node
from ..lxc.facts import ContainerFacts
from ..model import FAIL, SKIP, WARN, Finding, Hint

Machines = Mapping[str, Machine]


def host_of(machines: Machines) -> Optional[Machine]:
    """The machine below the containers, if it was asked. A container that asks about itself is not one."""
    host = machines.get("host")
    return host if host is not None and host.kind == "host" else None


def whole(machines: Machines) -> Machines:
    """With the containers that only the host could look at: their nodes are known, no library was asked."""
    host = host_of(machines)
    if host is None:
        return machines
    seen = dict(machines)
    for ct, nodes in host.outside.items():
        facts = host.containers[ct]
        seen.setdefault(
            "ct:" + ct,
            Machine(
                "ct:" + ct,
                "lxc",
                facts.unprivileged,
                majors=host.majors,
                owners=host.owners,
                gpus=host.gpus,
                minors=host.minors,
                module=host.module,
                nodes=nodes,
            ),
        )
    return seen


def kernels(machines: Machines) -> List[Machine]:
    """One machine for each kernel: PCI, modules and /proc/devices are the same in a container and below it."""
    host = host_of(machines)
    return [host] if host else list(machines.values())


def facts_of(machines: Machines, machine: Machine) -> Optional[ContainerFacts]:
    """What the host's config says of a container, if the host was asked."""
    host = host_of(machines)
    return host.containers.get(machine.key.partition(":")[2]) if host and machine is not host else None


def host_node(machines: Machines, machine: Machine, path: str) -> Optional[Node]:
    """The same node as the host has it; None where the host was not asked, or is the machine itself."""
    host = host_of(machines)
    return host.nodes.get(path) if host and machine is not host else None


def ct_id(machine: Machine) -> str:
    """The container's number for a command line; CTID where it cannot be known (from inside)."""
    return machine.key.partition(":")[2] or "CTID"


def below(machines: Machines, machine: Machine) -> str:
    """Where a command for the owner of a container has to run."""
    if machine.kind == "host" or host_of(machines):
        return "host"
    return "the host of this container, as root (CTID is the container's number there)"


def majors_line(machine: Machine, number: str) -> str:
    """Who has a number's major, as evidence."""
    major = int(number.partition(":")[0])
    return "/proc/devices: %d is %s" % (major, machine.owner(major) or "nobody's")


def fold_alike(
    judged: Sequence[Finding],
    key: Callable[[Finding], object],
    hint: Callable[[Sequence[Finding]], Hint] = lambda alike: alike[0].hint,
) -> List[Finding]:
    """Nodes of one machine with one id and one key are one cause: the first tells the others, and `hint` what mends them all.
    One that nothing misses (nvidia-uvm-tools, a warning) is told by itself only where it is alone."""
    out: List[Finding] = []
    for f in judged:
        alike = [g for g in judged if g.status in (FAIL, WARN) and (g.id, g.machine, key(g)) == (f.id, f.machine, key(f))]
        alike.sort(key=lambda g: g.status == WARN)
        if f not in alike or len(alike) < 2 or alike[0].status == WARN:
            out.append(f)
        elif f is alike[0]:
            names = ", ".join(g.subject.rpartition("/")[2] for g in alike[1:])
            more = "%s; so %s %d more: %s" % (f.summary, "is" if len(alike) == 2 else "are", len(alike) - 1, names)
            out.append(replace(f, summary=more, hint=hint(alike)))
        else:
            out.append(replace(f, status=SKIP, because=(f.id,)))
    return out
