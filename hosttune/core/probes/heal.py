# SPDX-License-Identifier: Apache-2.0
"""Commands that mend a node or a container, and what they cost. Text for a person: nothing here is run."""

from __future__ import annotations

from typing import Optional, Sequence

from ..doctor.survey import Machine
from ..lxc.document import LXC
from ..lxc.facts import ContainerFacts
from ..lxc.restart import costs
from .scene import ct_id

RESTART_COSTS = costs()


def remake(path: str) -> str:
    """nvidia-modprobe loads the module, and removes and remakes a node whose number is wrong. Its modes exclude each
    other: -u for the uvm pair, -c for one GPU, or nvidiactl by its minor 255."""
    name = path.rpartition("/")[2]
    if name.startswith("nvidia-uvm"):
        return "nvidia-modprobe -u -c=0"
    return "nvidia-modprobe -c=%s" % (name[len("nvidia") :] if name[len("nvidia") :].isdigit() else "255")


def together(commands: Sequence[str]) -> str:
    """One line for several nodes: what each needs, once, and the restart, which counts for all of them, last."""
    parts = list(dict.fromkeys(part for command in commands for part in command.split(" && ")))
    last = [part for part in parts if part.startswith(_RESTARTS)]
    return " && ".join([part for part in parts if part not in last] + last)


_RESTARTS = ("pct reboot", "lxc-stop", "lxc-start", "docker restart", "podman restart", "kubectl delete", "# start")


def restart(machine: Machine, facts: Optional[ContainerFacts] = None) -> str:
    """The command that starts a container anew, for its kind. facts: its config, which tells Proxmox VE from plain LXC."""
    name = ct_id(machine)
    if facts is not None and facts.dialect == LXC:
        return "lxc-stop -n %s -t 60 && lxc-start -n %s -d" % (name, name)  # lxc-stop -r does not read the file again
    if machine.kind in ("docker", "podman"):
        return "%s restart %s" % (machine.kind, name if name != "CTID" else "CONTAINER")
    if machine.kind == "kubernetes":
        return "kubectl delete pod %s" % (name if name != "CTID" else "POD")
    if machine.kind != "lxc":
        return "# start this container anew (its make could not be told)"
    return "pct reboot %s" % name


def live_rules(machine: Machine, rules: Sequence[str]) -> str:
    """Opens devices in the running container at once (lxc-cgroup, measured)."""
    name = ct_id(machine)
    if machine.kind != "lxc":
        return "# allow `%s` for this container (its make could not be told)" % "`, `".join(rules)
    return " && ".join('lxc-cgroup -n %s devices.allow "%s"' % (name, rule) for rule in rules)


def live_and_kept(machine: Machine, rules: Sequence[str]) -> str:
    """The same, and in the config for the next start."""
    sync = " && hosttune lxc sync %s" % ct_id(machine) if machine.kind == "lxc" else ""
    return live_rules(machine, rules) + sync
