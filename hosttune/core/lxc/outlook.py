# SPDX-License-Identifier: Apache-2.0
"""One container, seen and judged: its config, its host, what opens inside, and what would be done about it. Changes nothing."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from .. import gpus, profile
from ..catalogue import finding
from ..child import NOT_TRIED
from ..devices import DeviceTable
from ..host import Host, errname
from ..model import ERROR, FAIL, OK, PROVED, SKIP, Action, Finding, Hint, Step
from ..recording import Unrecorded
from . import see, store
from .edit import Edit, edit
from .needs import Need, Wanted
from .store import Config

STEP = "HT421"
"""The finding that a changed config mends; it names the step in the journal and in messages."""

NEVER, IDLE, ALWAYS = "never", "idle", "always"
_IDS = {see.DENIED: "HT401", see.ABSENT: "HT403", see.PLACEHOLDER: "HT404", see.STALE: "HT405", see.REPLACED: "HT406",
        see.MODE: "HT407", see.OTHER: "HT409"}
_SAYS = {see.DENIED: "the device cgroup of the running container refuses it (EPERM)", see.ABSENT: "it is not there inside",
         see.MODE: "its mode or owner refuses it (EACCES)", see.OTHER: "it does not open"}


@dataclass(frozen=True)
class Outlook:
    """What is known and what would be done. pid: 0 when the container does not run. step: the change of the file, None
    when there is none. rules: live heals. restart: what would make the wrong nodes inside right, with all it destroys;
    empty when none is needed. findings: the config's, then those of the running container."""

    config: Config
    devices: DeviceTable
    edit: Edit
    pid: int
    step: Optional[Step]
    rules: Tuple[Action, ...]
    restart: Tuple[Action, ...]
    losses: Tuple[str, ...]
    findings: Tuple[Finding, ...]
    ha: bool = False


def wanted_of(host: Host, declared: profile.Container, drop: Tuple[int, ...] = ()) -> Wanted:
    """A profile's declaration of one container, with GPUs as minors of this host."""
    return Wanted(gpus.chosen(host, declared.gpus), declared.gpu == "required", declared.form, declared.caps, drop)


def outlook(host: Host, ct_id: str, wanted: Wanted) -> Outlook:
    """See and judge one container. Raises Refused for one that is not here or must not be edited now, and OSError."""
    config = store.find(host, ct_id)
    devices = see.devices_for(host, config)
    planned = edit(config.document, wanted, devices, config.subject)
    step = None
    if planned.changes:
        step = Step(STEP, config.subject, "replace", config.path, _text(config.data), _text(planned.data), lock=config.lock)
    pid = see.running_pid(host, config)
    seen: Tuple[see.Inside, ...] = ()
    more: List[Finding] = []
    if not pid:
        more.append(finding("HT430", SKIP, config.subject, "the container does not run: its config counts at the next start"))
    elif planned.needs:
        try:
            seen = see.look_inside(host, pid, planned.needs)
            more += _inside_findings(config, seen, devices, planned)
        except (OSError, Unrecorded) as e:
            why = errname(e) if isinstance(e, OSError) else str(e)
            more.append(finding("HT903", ERROR, config.subject, "could not look into the container: " + why,
                                hint=Hint("sudo hosttune lxc show %s" % ct_id, "host", "nothing", "none")))
    rules = _live_rules(config, seen, planned.live)
    stuck = [one for one in seen if one.state in see.NEEDS_RESTART and _host_has(devices, one.need)]
    restart: Tuple[Action, ...] = ()
    lost: Tuple[str, ...] = ()
    if stuck:
        lost = see.losses(host, config, pid, devices)
        restart = _restart(config, stuck, lost)
    ha = bool(restart) and store.is_ha_managed(host, ct_id)
    if restart:
        more.append(_pending(config, stuck, restart, lost, ha))
    return Outlook(config, devices, planned, pid, step, rules, restart, lost, planned.findings + tuple(more), ha)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _host_has(devices: DeviceTable, need: Need) -> bool:
    """Whether a start would find the right node: else the node of the host is what has to be mended first."""
    node = (devices.nodes or {}).get(need.path)
    return node is not None and node.type == "char" and (need.major is None or node.major == need.major)


def _inside_findings(config: Config, seen: Sequence[see.Inside], devices: DeviceTable, planned: Edit) -> List[Finding]:
    out: List[Finding] = []
    for one in seen:
        if one.state == see.OPENS:
            continue
        says = one.detail if one.state in (see.PLACEHOLDER, see.STALE, see.REPLACED) else "%s%s" % (
            _SAYS[one.state], ": " + one.detail if one.state == see.OTHER else "")
        rule = _rule_for(one.need, planned.live)
        hint = Hint()
        if one.state == see.DENIED and rule:
            hint = Hint("hosttune lxc live %s" % config.id, "host", "nothing is lost, nothing is restarted", "apply")
        elif one.state in see.NEEDS_RESTART and not _host_has(devices, one.need):
            hint = Hint("nvidia-modprobe -u -c=0" if "uvm" in one.need.path else "nvidia-modprobe -c=0", "host",
                        "the host's node is made first, then the container is restarted", "apply")
        status = ERROR if one.detail.startswith(NOT_TRIED) else FAIL
        out.append(finding(_IDS[one.state], status, one.need.path, "%s (%s): %s" % (one.need.path, one.need.numbers, says),
                           have=one.detail or one.state, want="opens", hint=hint, proof=PROVED, machine=config.subject))
    cards = [one for one in seen if one.need.driver == "nvidia" and one.need.path[-1:].isdigit()]
    opened = sum(one.state == see.OPENS for one in cards)
    count = "%d of %d nodes open, %d of %d GPUs" % (
        sum(one.state == see.OPENS for one in seen), len(seen), opened, len(cards))
    causes = tuple(sorted({f.id for f in out}))
    out.append(finding("HT429", FAIL if causes else OK, config.subject, count, have=count, want="all", because=causes,
                       proof=PROVED, machine=config.subject))
    return out


def _rule_for(need: Need, rules: Sequence[str]) -> str:
    """The numeric rule among `rules` that opens a node."""
    return next((rule for rule in rules if rule.split()[1] in (need.numbers, "%s:*" % need.major)), "")


def _live_rules(config: Config, seen: Sequence[see.Inside], rules: Sequence[str]) -> Tuple[Action, ...]:
    """lxc-cgroup reaches the running container at once (liblxc replaces its device program); it does not outlive it."""
    missing: List[str] = []
    for one in seen:
        rule = _rule_for(one.need, rules) if one.state == see.DENIED else ""
        if rule and rule not in missing:
            missing.append(rule)
    return tuple(Action("live-rule", config.subject, ("lxc-cgroup", *config.tool_options, "devices.allow", rule),
                        "the running container is refused what its config allows from the next start on",
                        costs="nothing is lost, nothing is restarted") for rule in missing)


def _restart(config: Config, stuck: Sequence[see.Inside], lost: Tuple[str, ...]) -> Tuple[Action, ...]:
    nodes = ", ".join(one.need.path for one in stuck)
    return restart_actions(config, "%s is wrong inside, and only a start makes it anew" % nodes, lost)


def restart_actions(config: Config, why: str, lost: Tuple[str, ...]) -> Tuple[Action, ...]:
    """What restarts a container, with all that it destroys. By Proxmox VE's own tool where the config is its."""
    if config.lock:
        argvs: Tuple[Tuple[str, ...], ...] = (("pct", "reboot", config.id),)
    else:
        argvs = (("lxc-stop", *config.tool_options, "-t", "60"), ("lxc-start", *config.tool_options, "-d"))
    return tuple(Action("restart", config.subject, argv, why, lost, "the container is down for as long as it boots")
                 for argv in argvs)


def restart_command(config: Config, restart: Sequence[Action], ha: bool) -> str:
    """The same as one line to paste. ha: the cluster's manager starts and stops it, and must be asked."""
    if ha:
        # A queued stop writes "stopped" when its round comes, over what was set meanwhile: wait before asking for the start.
        return ("ha-manager set ct:%s --state stopped; until pct status %s | grep -q stopped; do sleep 1; done; "
                "ha-manager set ct:%s --state started" % ((config.id,) * 3))
    return " && ".join(shlex.join(action.argv) for action in restart)


def _pending(config: Config, stuck: Sequence[see.Inside], restart: Sequence[Action], lost: Sequence[str], ha: bool) -> Finding:
    command = restart_command(config, restart, ha)
    return finding("HT402", FAIL, config.subject, "a restart is pending for %s" % ", ".join(one.need.path for one in stuck),
                   have=stuck[0].detail or stuck[0].state, want="the node that the host has", proof=PROVED,
                   hint=Hint(command, "host", "a restart; it destroys: " + ("; ".join(lost) or "nothing that can be seen"),
                             "restart"), evidence=tuple(lost[:3]))
