# SPDX-License-Identifier: Apache-2.0
"""One container, seen and judged: its config, its host, what opens inside, and what would be done about it. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from .. import journal
from ..catalogue import finding
from ..door.host import Host, Unrecorded, errname, list_or_empty
from ..gpu import gpus
from ..machine.devices import DeviceTable
from ..model import ERROR, FAIL, PROVED, SKIP, WARN, Action, Finding, Hint, Refused, Step
from ..pci import bus
from ..wanted import profile
from . import cpus, opening, promise, restart, see, store, vms
from .edit import Edit
from .entries import ALLOW
from .foresee import foresee
from .needs import Wanted
from .repair import plan
from .store import Config

NEVER, IDLE, ALWAYS = "never", "idle", "always"
SYNC_AND_RESTART = "hosttune lxc sync %s --restart always"
"""A start alone would be made from the file as it still is."""


@dataclass(frozen=True)
class Outlook:
    """What is known and what would be done. pid: 0 when the container does not run. step: the change of the file, None
    when there is none. rules: live heals. closing: what takes from the running container, too, what the step takes out of
    its file. restart: what would make the wrong nodes inside right, with all it destroys; empty when none is needed.
    findings: the config's, then those of the running container."""

    config: Config
    devices: DeviceTable
    edit: Edit
    pid: int
    step: Optional[Step]
    rules: Tuple[Action, ...]
    closing: Tuple[Action, ...]
    restart: Tuple[Action, ...]
    losses: Tuple[str, ...]
    findings: Tuple[Finding, ...]
    ha: bool = False

    @property
    def gpus(self) -> Tuple[int, ...]:
        """The GPUs that the container shall have, by number."""
        return tuple(need.minor for need in self.edit.needs if need.driver == "nvidia" and need.path[-1:].isdigit()
                     and need.minor is not None)


def wanted_of(host: Host, declared: Optional[profile.Container], drop: Tuple[int, ...] = (), prune: bool = False,
              serves: Tuple[Tuple[str, int], ...] = (), given: Optional[Mapping[int, str]] = None,
              repair: bool = False) -> Wanted:
    """A profile's declaration of one container, with GPUs as minors of this host. None: nobody declares anything of it.

    No word for gpus means those that its config names. serves: (engine, port) pairs that are served from it. given: GPUs
    of virtual machines (vms.assigned), where that was asked already. Refused for a GPU that is a virtual machine's.
    """
    given = vms.assigned(host) if given is None else given
    if declared is None:
        return Wanted(drop=drop, prune=prune, vms=given, repair=repair, serves=serves)
    chosen = gpus.chosen(host, declared.gpus) if declared.gpus else ()
    for number in chosen or ():
        if number in given:
            raise Refused("GPU %d is given to a virtual machine" % number, given[number],
                          "declare other GPUs, or take that hostpci line out: qm set VMID --delete hostpciN")
    return Wanted(chosen, declared.gpu == "required", declared.form, declared.caps, drop, prune,
                  dri_nodes(host, chosen) if declared.dri else (), cpus.wanted(host, declared.cpus, chosen), given,
                  repair=repair, serves=serves)


def dri_nodes(host: Host, minors: Optional[Sequence[int]]) -> Tuple[str, ...]:
    """The nodes of /dev/dri that belong to GPUs, by their minors (None: all that the nvidia driver has)."""
    out: List[str] = []
    for bdf, minor in sorted(gpus.minors(host).items()):
        if minors is None or minor in minors:
            names = list_or_empty(host, "%s/%s/drm" % (bus.DEVICES, bdf))
            out += ["/dev/dri/" + name for name in names if name.startswith(("card", "renderD"))]
    return tuple(out)


def serves(engines: Mapping[str, Any], ct_id: str) -> Tuple[Tuple[str, int], ...]:
    """(engine, port) of the profile's engines that run in a container."""
    return tuple((name, spec["port"]) for name, spec in engines.items() if spec.get("in") == "ct:" + ct_id)


def outlook(host: Host, ct_id: str, wanted: Wanted, devices: Optional[DeviceTable] = None) -> Outlook:
    """See and judge one container. Raises Refused for one that is not here, and OSError.

    devices: the host's device table of a moment ago, where several containers are gone through.
    """
    config = store.find(host, ct_id, (devices.pve_container or ()) if devices else None)
    devices = see.devices_for(host, config, devices)
    planned = _planned(config, wanted, devices)
    if planned.free and _was_refused(host, config):
        wanted = replace(wanted, refused=True)
        planned = _planned(config, wanted, devices)
    pid = see.running_pid(host, config)
    seen: Tuple[see.Inside, ...] = ()
    more: List[Finding] = []
    if not pid:
        more.append(finding("HT430", SKIP, config.subject, "the container does not run: its config counts at the next start"))
    elif planned.needs:
        try:
            seen = see.look_inside(host, pid, planned.needs)
        except (OSError, Unrecorded) as e:
            why = errname(e) if isinstance(e, OSError) else str(e)
            more.append(finding("HT903", ERROR, config.subject, "could not look into the container: " + why,
                                hint=Hint("sudo hosttune lxc show %s" % ct_id, "host", "", "look")))
        denied = [one for one in seen if one.state == see.DENIED]
        if denied and planned.free:
            wanted = replace(wanted, refused=True)
            planned = _planned(config, wanted, devices)
            more.append(_refused_without_reason(config, denied))
    before = planned.findings + foresee(config.document, wanted, devices, planned, config.subject)
    if planned.refusal:
        before += (refused(ct_id, planned.refusal),)
    step = None
    if planned.changes:
        name = opening.REFUSED if wanted.refused else opening.STEP
        step = Step(name, config.subject, "replace", config.path, _text(config.data), _text(planned.data), lock=config.lock)
    rules = _live_rules(config, seen, planned.live)
    stuck = [one for one in seen if one.state in see.NEEDS_RESTART and opening.host_has(devices, one.need)]
    again: Tuple[Action, ...] = ()
    lost: Tuple[str, ...] = ()
    ha = bool(stuck) and store.is_ha_managed(host, ct_id)
    if stuck:
        lost = see.losses(host, config, pid, devices, wanted.serves)
        nodes = ", ".join(one.need.path for one in stuck)
        why = "%s is wrong inside, and only a start makes it anew" if len(stuck) == 1 else (
            "%s are wrong inside, and only a start makes them anew")
        again = restart.actions(config, why % nodes, lost, ha)
    if seen:
        command = SYNC_AND_RESTART % ct_id if planned.changes else restart.command(config, again, ha)
        pending = _pending(config, stuck, command, lost) if stuck else None
        more += opening.judge(config, seen, devices, planned, pending)
    promised = promise.left(host, config, pid)
    more += promise.judge(config, promised)
    shown = Outlook(config, devices, planned, pid, step, rules, (), again, lost, before + tuple(more), ha)
    closing: Tuple[Action, ...] = ()
    if pid:
        closing = tuple(dict.fromkeys(promise.unkept(promised) + promise.actions(config, planned.closings)))
        closing += cpus.live(host, config, wanted.cpus)
    placed = cpus.judge(host, config, shown.gpus) if shown.gpus else []
    return replace(shown, closing=closing, findings=shown.findings + tuple(placed))


def _planned(config: Config, wanted: Wanted, devices: DeviceTable) -> Edit:
    """The edit of a container's config; lines are mended first, if that is wanted."""
    return plan(config.document, wanted, devices, config.subject, raising=False)


def refused(ct_id: str, e: Refused) -> Finding:
    """A container that must not be edited now, or cannot be looked at, as a finding."""
    return finding("HT428", FAIL, "ct:" + ct_id, e.what, evidence=(e.where,) if e.where else (),
                   hint=Hint(e.way_out, "host", "", "reconfigure"))


def _was_refused(host: Host, config: Config) -> bool:
    """Whether hosttune once saw EPERM inside this container and wrote rules for it: without them it would be seen again."""
    if not any(line.key == ALLOW for line in config.document.judged):
        return False
    try:
        mine = [e for e in journal.entries(host) if e.step.target == config.path and e.state == "done"]
        return any(e.step.knob == opening.REFUSED for e in mine)
    except (OSError, Refused, Unrecorded):
        return False


def _refused_without_reason(config: Config, denied: Sequence[see.Inside]) -> Finding:
    nodes = ", ".join(one.need.path for one in denied)
    summary = "it is unprivileged, where every device is open by default; this host refuses %s all the same (EPERM), so it " \
              "gets rules like any other" % nodes
    return finding(opening.REFUSED, WARN, config.subject, summary, have="EPERM", want="opens", proof=PROVED,
                   evidence=("open(2) inside: EPERM",),
                   hint=Hint("hosttune lxc sync " + config.id, "host", "nothing is restarted", "apply"))


def _cgroup(config: Config, verb: str, rule: str, why: str, costs: str) -> Action:
    return Action("live-rule" if verb == "allow" else "live-deny", config.subject,
                  ("lxc-cgroup", *config.tool_options, "devices." + verb, rule), why, costs=costs)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _live_rules(config: Config, seen: Sequence[see.Inside], rules: Sequence[str]) -> Tuple[Action, ...]:
    """lxc-cgroup reaches the running container at once (liblxc replaces its device program); it does not outlive it."""
    missing: List[str] = []
    for one in seen:
        rule = opening.rule_for(one.need, rules) if one.state == see.DENIED else ""
        if rule and rule not in missing:
            missing.append(rule)
    return tuple(_cgroup(config, "allow", rule, "the running container is refused what its config allows from the next start on",
                         "nothing is lost, nothing is restarted; it ends with the next start") for rule in missing)


def _pending(config: Config, stuck: Sequence[see.Inside], command: str, lost: Sequence[str]) -> Finding:
    return finding("HT402", FAIL, config.subject, "a restart is pending for %s" % ", ".join(one.need.path for one in stuck),
                   have=stuck[0].detail or stuck[0].state, want="the node that the host has", proof=PROVED,
                   hint=Hint(command, "host", restart.costs(lost), "restart"), evidence=tuple(lost[:3]))
