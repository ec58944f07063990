# SPDX-License-Identifier: Apache-2.0
"""Does the device cgroup let the caller open each node?

Measured on cgroup v1 and v2: mode and nodev are checked first (EACCES), the device cgroup second (EPERM), the driver last,
and faccessat() does not ask the driver. So EPERM from it proves that the mode is fine and that a device program says no.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..catalogue import finding
from ..doctor import cgroup
from ..doctor.survey import CONTROL, UVM_NODE, UVM_TOOLS, Machine, Node
from ..lxc.facts import ContainerFacts
from ..model import FAIL, FITS, OK, PROVED, WARN, Finding, Hint, Probe
from .heal import live_and_kept, live_rules, restart
from .nodes import not_asked, sound
from .scene import Machines, below, ct_id, facts_of, host_of, whole


def run(machines: Machines) -> List[Finding]:
    """HT401, HT402."""
    machines = whole(machines)
    found: List[Finding] = []
    for machine in machines.values():
        fit = [node for node in machine.nodes.values() if sound(machine, node)]
        refused = [node for node in fit if node.access == "EPERM" or (not_asked(node) and node.open == "EPERM")]
        judged = [_refused(machines, machine, group) for group in _by_major(refused)]
        if fit and not judged:
            told = "no device program refuses a node (%d asked)" % len(fit)
            judged = [finding("HT401", OK, "nodes", told, machine=machine.key)]
        found += judged
    return found + _from_configs(machines)


def _by_major(nodes: List[Node]) -> List[List[Node]]:
    """One finding for each driver: nvidia-uvm and nvidia-uvm-tools are opened by one rule."""
    groups: Dict[str, List[Node]] = {}
    for node in nodes:
        groups.setdefault(node.rdev.partition(":")[0], []).append(node)
    return list(groups.values())


def _refused(machines: Machines, machine: Machine, group: List[Node]) -> Finding:
    node, number = group[0], group[0].rdev
    status = WARN if all(n.path == UVM_TOOLS for n in group) or _spare(machine, group) else FAIL
    rules = cgroup.wanted_rules(group, machine)
    rest = "" if len(group) == 1 else " with %d more of its driver's nodes" % (len(group) - 1)
    control = machine.nodes.get(CONTROL)
    others = control is not None and sound(machine, control) and control.open == "ok"
    facts = facts_of(machines, machine)
    reason = cgroup.why(node, number, facts, host_of(machines) or machine)
    seen = "%s: %s, mode %s, access says %s, open says %s%s" % (
        node.path,
        number,
        node.mode,
        node.access or "nothing",
        node.open or "nothing",
        "; %s opens" % CONTROL if others else "",
    )
    evidence = [
        seen,
        "/proc/devices: %s is %s" % (number.partition(":")[0], machine.owner(int(number.partition(":")[0]))),
    ]
    allowed = machine.calls.get("allowlist")
    if facts is None and isinstance(allowed, Mapping) and "allowed" in allowed:
        evidence.append(
            "the device program here lets open: %s" % (str(allowed["allowed"]) or "none of NVIDIA's numbers")
        )
    evidence += [reason.text] if reason.text else []
    if reason.kind == cgroup.PENDING:
        return finding(
            "HT402",
            status,
            node.path,
            "%s (%s)%s is refused with EPERM: the config allows it, but the running "
            "container was started before" % (node.path, number, rest),
            have="EPERM",
            want="opens",
            proof=PROVED,
            evidence=tuple(evidence),
            machine=machine.key,
            hint=Hint(
                live_rules(machine, rules),
                "host",
                "nothing is lost, nothing is restarted; the next start takes the rule from the config",
                "apply",
            ),
        )
    proof, decide = _proof(machine, node, reason, others, facts)
    return finding(
        "HT401",
        status,
        node.path,
        _says(machine, "%s (%s)%s" % (node.path, number, rest), rules, reason),
        have="EPERM",
        want=", ".join(rules),
        proof=proof,
        evidence=tuple(evidence[:3]),
        decide=decide,
        hint=_hint(machines, machine, rules, others, reason),
        machine=machine.key,
    )


def _spare(machine: Machine, group: List[Node]) -> bool:
    """Other GPUs open, and as many as are declared count: then this one is kept from the container on purpose."""
    gpus = [node for node in machine.nodes.values() if node.path[len("/dev/nvidia") :].isdigit()]
    if not all(node in gpus for node in group) or len(group) == len(gpus):
        return False
    return machine.calls.get("cuInit") == 0 and machine.declared_gpus in (None, machine.calls.get("cuDeviceGetCount"))


def _says(machine: Machine, what: str, rules: Sequence[str], reason: cgroup.Reason) -> str:
    text = what + " is refused with EPERM by the device cgroup"
    if machine.userns:
        return (
            text
            + "; an unprivileged container needs no rule on Proxmox VE, so something else attached a device program"
        )
    if reason.kind == cgroup.ELSEWHERE:
        return (
            text
            + ", though the config allows it: another device program refuses (a unit's DeviceAllow, a nested runtime)"
        )
    if machine.kind == "host":
        return text + " of the unit or slice that this process runs in"
    return text + ": no rule `%s`" % "`, `".join(rules)


def _proof(
    machine: Machine, node: Node, reason: cgroup.Reason, others: bool, facts: Optional[ContainerFacts]
) -> Tuple[str, str]:
    """(proof, the command that would decide). From inside, EPERM with the right number beside a node that opens is proof."""
    attached = "bpftool cgroup show /sys/fs/cgroup/lxc/%s effective   # on the host" % ct_id(machine)
    if machine.userns or reason.kind == cgroup.ELSEWHERE:
        return FITS, attached
    if node.access != "EPERM":
        return FITS, "faccessat(%s) could not be asked; %s" % (node.path, attached)
    if reason.kind == cgroup.MISSING and reason.certain or facts is None and (others or _lacks(machine, node)):
        return PROVED, ""
    if machine.kind == "host":
        return FITS, "systemctl show --property=DevicePolicy,DeviceAllow UNIT   # the unit that this process runs in"
    return FITS, "grep -n devices /etc/pve/lxc/%s.conf   # on the host" % ct_id(machine)


def _lacks(machine: Machine, node: Node) -> bool:
    """The numbers that the device program lets open are known, and this one is not among them."""
    told = machine.calls.get("allowlist")
    if not isinstance(told, Mapping) or "allowed" not in told:
        return False
    return not {node.rdev, node.rdev.partition(":")[0] + ":*"} & set(str(told["allowed"]).split())


def _hint(machines: Machines, machine: Machine, rules: Sequence[str], others: bool, reason: cgroup.Reason) -> Hint:
    where = below(machines, machine)
    if machine.userns:
        return Hint("grep -n 'devices.deny' /etc/pve/lxc/%s.conf" % ct_id(machine), where, "", "look")
    if machine.kind == "host":
        return Hint(
            "systemctl show --property=DevicePolicy,DeviceAllow UNIT",
            "host",
            "a unit needs DeviceAllow=char-nvidia, char-nvidiactl and char-nvidia-uvm, then its restart",
            "look",
        )
    if machine.kind == "kubernetes":
        return Hint(
            "helm upgrade nvidia-device-plugin nvdp/nvidia-device-plugin --reuse-values --set passDeviceSpecs=true",
            where,
            "new pods get it; this one needs a restart. cpu-manager-policy=static rewrites the rules of running pods",
            "reconfigure",
        )
    if machine.kind in ("docker", "podman"):
        if others:
            return Hint(
                "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                where,
                "then make the container anew",
                "reconfigure",
            )
        return Hint(
            "nvidia-ctk system create-dev-char-symlinks --create-all && " + restart(machine),
            where,
            "restarts the container; `systemctl daemon-reload` takes the devices away again without these links",
            "restart",
        )
    if reason.kind == cgroup.ELSEWHERE:
        return Hint("bpftool cgroup show /sys/fs/cgroup/lxc/%s effective" % ct_id(machine), where, "", "look")
    return Hint(
        live_and_kept(machine, rules),
        where,
        "nothing is lost, nothing is restarted: the live rule acts at once, the sync keeps it for the next start",
        "apply",
    )


def _from_configs(machines: Machines) -> List[Finding]:
    """Containers that the host knows by their config alone: what their next start, or this one, must refuse."""
    host = host_of(machines)
    if host is None or host.majors is None:
        return []
    return [
        f for ct, facts in host.containers.items() if "ct:" + ct not in machines for f in _config_alone(host, ct, facts)
    ]


def _config_alone(host: Machine, ct: str, facts: ContainerFacts) -> List[Finding]:
    if facts.unprivileged:
        return []
    container = Machine("ct:" + ct, "lxc")
    out = []
    for path in (CONTROL, UVM_NODE):
        number = host.number_of(path)
        if not number or not facts.passing(path) or facts.allowing(path, number):
            continue
        reason = cgroup.why(Node(path), number, facts, host)
        when = "is" if facts.pid else "will be, at the next start,"
        passing = "%s passes %s in" % (facts.passing(path), path)
        out.append(
            finding(
                "HT401",
                FAIL,
                path,
                "%s (%s) %s refused by the device cgroup: no rule `%s`"
                % (path, number, when, cgroup.wanted_rule(number)),
                have="no rule",
                want=cgroup.wanted_rule(number),
                proof=FITS,
                evidence=(
                    "/proc/devices: %s is %s" % (number.partition(":")[0], host.owner(int(number.partition(":")[0]))),
                    passing,
                    reason.text,
                ),
                decide="hosttune doctor --ct %s   # opens the node inside" % ct,
                hint=Hint(
                    live_and_kept(container, (cgroup.wanted_rule(number),))
                    if facts.pid
                    else "hosttune lxc sync %s" % ct,
                    "host",
                    "nothing is lost, nothing is restarted",
                    "apply",
                ),
                machine="ct:" + ct,
            )
        )
    return out


PROBE = Probe("permission", ("unit", "gpu"), run)
