# SPDX-License-Identifier: Apache-2.0
"""What survived a reboot and what is gone: settings, device nodes, containers' rules, models, hosttune's own units, each with the
change that mends it. What the engines do is added by whoever knows them (serve/standing.py). Asks only."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from . import engine, journal
from .catalogue import finding
from .door.glance import Glance
from .door.host import Host, Unrecorded, errname, read_or_none
from .gpu import gpus
from .knobs import boot_units
from .lxc import outlook, promise, store, sync
from .lxc.needs import Wanted
from .machine import container
from .machine.devices import NVIDIA_STATIC_MAJOR, UVM, device_table
from .model import ERROR, FAIL, OK, WARN, Action, Finding, Hint, Refused, Report, Step
from .pci import bus
from .settings import wants
from .stage import declared as models
from .unattended import bound
from .wanted.profile import Profile

OWN_UNIT = "HT911"
SETTINGS, NODES, RULES, MODELS, SERVICES, OWN = "settings", "nodes", "rules", "models", "services", "hosttune"
SECTIONS = (SETTINGS, NODES, RULES, MODELS, SERVICES, OWN)
_OWN_IDS = ("HT102", OWN_UNIT)
_NODE_IDS = ("HT302", "HT303", "HT403", "HT404", "HT405")
MAKE_NODES = "for n in %s; do nvidia-modprobe -c=$n; done; nvidia-modprobe -u -c=0"
"""One call a GPU: nvidia-modprobe takes one kind of node a call."""


def section(f: Finding) -> str:
    """Which part of the screen a finding belongs to."""
    if f.id in _OWN_IDS or f.id.startswith("HT9"):
        return OWN
    if f.id in _NODE_IDS and f.machine == "host":
        return NODES
    return {"1": SETTINGS, "2": SETTINGS, "3": SETTINGS, "4": RULES, "5": MODELS}.get(f.id[2], SERVICES)


def status(host: Host, profile: Profile, caches: Sequence[str] = (), services: Sequence[Finding] = ()) -> Report:
    """The whole, for the profile (without one: what is recommended, and every container that has NVIDIA devices in its config).

    caches: where model hubs keep what was downloaded. services: what is known of the engines. A part that could not be looked
    at is an error of its own, and keeps no other from being told.
    """
    findings: List[Finding] = []
    steps: List[Step] = []
    actions: List[Action] = []
    parts: Tuple[Tuple[str, Callable[[], Report]], ...] = (
        (SETTINGS, lambda: _settings(host, profile)),
        (NODES, lambda: Report(NODES, findings=tuple(nodes(host)))),
        (RULES, lambda: _rules(host, profile)),
        (MODELS, lambda: _models(host, profile, caches)),
        (OWN, lambda: Report(OWN, findings=(*own_units(host), *_cut_short(host)))),
    )
    for name, part in parts:
        try:
            report = part()
        except Refused as e:
            findings.append(
                finding(
                    "HT903", ERROR, name, e.what, hint=Hint(e.way_out, "host"), evidence=(e.where,)[: bool(e.where)]
                )
            )
            continue
        except (OSError, Unrecorded) as e:
            why = "%s: %s" % (e.filename or name, errname(e)) if isinstance(e, OSError) else str(e)
            findings.append(finding("HT903", ERROR, name, "could not be looked at: " + why))
            continue
        findings += report.findings
        steps += report.steps
        actions += report.actions
    return Report(
        "status",
        host.uname()[0],
        _facts(host, profile),
        tuple(dict.fromkeys([*findings, *services])),  # two parts may find one and the same
        tuple(steps),
        tuple(actions),
        mode="plan",
    )


def _facts(host: Host, profile: Profile) -> Dict[str, str]:
    """up: since when this machine runs. mode: what the profile lets hosttune do; "" without one."""
    up = (read_or_none(host, "/proc/uptime") or "0").split()[0]
    return {"up": words_of(float(up)), "mode": profile.mode if profile.plain else ""}


def words_of(seconds: float) -> str:
    """12 min, 3 h, 9 days."""
    for limit, unit, word in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return "%d %s" % (seconds / unit, word)
    return "%d days" % (seconds / 86400)


def _settings(host: Host, profile: Profile) -> Report:
    by_name, _ = bound.with_profile(profile)
    look = Glance(host)
    planned = [engine.plan(by_name[name], look, want) for name, want in wants(profile, by_name).items()]
    return Report(
        SETTINGS,
        findings=tuple(f for found, _ in planned for f in found),
        steps=tuple(s for _, more in planned for s in more),
    )


def nodes(host: Host) -> List[Finding]:
    """Are the driver's modules loaded, and does every device node have the number that its driver has now?"""
    mine = [gpu for gpu in bus.gpus(host) if gpu.driver != "vfio-pci"]
    if not mine or container.inside(host):
        return []
    table = device_table(host.read("/proc/devices"))
    uvm = table.major(UVM)
    load = {"HT302": "modprobe nvidia", "HT303": "modprobe nvidia-uvm"}
    absent = [] if {"nvidia", "nvidia-frontend"} & set(table.majors) else ["HT302"]
    absent += [] if uvm is not None else ["HT303"]
    found = [
        finding(
            id,
            FAIL,
            "nvidia" if id == "HT302" else "nvidia-uvm",
            "the module is not loaded",
            hint=Hint(load[id], "host"),
        )
        for id in absent
    ]
    wanted = {"/dev/nvidia%d" % n: "%d:%d" % (NVIDIA_STATIC_MAJOR, n) for n in gpus.minors(host).values()}
    if "HT302" not in absent:
        wanted["/dev/nvidiactl"] = "%d:255" % NVIDIA_STATIC_MAJOR
    if uvm is not None:
        wanted.update({"/dev/nvidia-uvm": "%d:0" % uvm, "/dev/nvidia-uvm-tools": "%d:1" % uvm})
    make = MAKE_NODES % " ".join(str(n) for n in sorted(gpus.minors(host).values()) or [0])
    wrong = [f for f in (_node(host, path, number, make) for path, number in wanted.items()) if f]
    if wanted and not wrong:
        found.append(finding("HT403", OK, "/dev", "all %d device nodes have their driver's numbers" % len(wanted)))
    return found + wrong


def _node(host: Host, path: str, number: str, make: str) -> "Finding | None":
    hint = Hint(make, "host", "nothing is restarted", "apply")
    try:
        seen = host.lstat(path)
    except OSError as e:
        if errname(e) != "ENOENT":
            return finding("HT403", ERROR, path, "could not be looked at: " + errname(e))
        return finding("HT403", FAIL, path, "there is no such node", hint=hint)
    if seen.type != "char":
        return finding("HT404", FAIL, path, "it is a %s, not a device" % seen.type, have=seen.type, want=number,
                       hint=Hint("rm %s; %s" % (path, make), "host", "nothing is restarted", "apply"))  # fmt: skip
    if seen.rdev != number:
        return finding("HT405", FAIL, path, "it has number %s, the driver has %s" % (seen.rdev, number), have=seen.rdev,
                       want=number, hint=hint)  # fmt: skip
    return None


def _rules(host: Host, profile: Profile) -> Report:
    findings: List[Finding] = []
    steps: List[Step] = []
    actions: List[Action] = []
    for ct_id, wanted in _containers(host, profile).items():
        try:
            report = sync.show(host, ct_id, wanted())
        except Refused as e:
            findings.append(sync.refused(ct_id, e))
            continue
        except OSError as e:
            why = "%s: %s" % (e.filename or "its config", errname(e))
            findings.append(finding("HT402", ERROR, "ct:" + ct_id, "could not be looked at: " + why))
            continue
        findings += [f if f.machine != "host" else replace(f, machine="ct:" + ct_id) for f in report.findings]
        steps += report.steps
        actions += report.actions
    return Report(RULES, findings=tuple(findings), steps=tuple(steps), actions=tuple(actions))


def _models(host: Host, profile: Profile, caches: Sequence[str]) -> Report:
    if not profile.models:
        return Report(MODELS)
    return models.overview(host, profile, caches)


def own_units(host: Host) -> List[Finding]:
    """What hosttune's own units did since the boot. Nothing is said of those that are not there: HT102 does."""
    if container.inside(host) or not _has_systemd(host):
        return []
    there = [name for name in boot_units.NAMES if read_or_none(host, "%s/%s" % (boot_units.UNITS, name)) is not None]
    if not there:
        return []
    ran = host.run(["systemctl", "show", *there, "-p", "Id,ActiveState,Result,ExecMainExitTimestamp,LastTriggerUSec"])
    if ran.rc:
        return [
            finding(OWN_UNIT, ERROR, "systemd", "does not answer: %s" % (ran.err.strip() or "exit code %d" % ran.rc))
        ]
    blocks = [dict(row.partition("=")[::2] for row in block.splitlines()) for block in ran.out.strip().split("\n\n")]
    return [_own_unit(block) for block in blocks if "Id" in block]


def _has_systemd(host: Host) -> bool:
    try:
        host.list("/run/systemd/system")
    except OSError:
        return False
    return True


def _own_unit(show: Mapping[str, str]) -> Finding:
    name, state, result = show["Id"], show.get("ActiveState", ""), show.get("Result", "")
    read = Hint("journalctl -b -u %s" % name, "host", "", "look")
    at = show.get("ExecMainExitTimestamp") or show.get("LastTriggerUSec") or ""
    if name == boot_units.RECHECK_UNIT and (state == "failed" or result != "success"):
        return finding(
            OWN_UNIT, WARN, name, "its last look found what is not as declared (%s)" % at, have=result, hint=read
        )
    if state == "failed" or result not in ("success", ""):
        return finding(OWN_UNIT, FAIL, name, "it failed (%s)" % (result or state), have=result or state, hint=read)
    if name in boot_units.AT_ONCE and state != "active":
        start = Hint("systemctl start %s" % name, "host", "nothing is restarted", "apply")
        return finding(OWN_UNIT, FAIL, name, "it does not run (%s)" % state, have=state, want="active", hint=start)
    return finding(OWN_UNIT, OK, name, "%s%s" % (state or "not run yet", ", last at " + at if at else ""), have=state)


def _containers(host: Host, profile: Profile) -> Mapping[str, Callable[[], Wanted]]:
    if profile.containers:
        return {
            ct_id: partial(outlook.wanted_of, host, declared, serves=outlook.serves(profile.engines, ct_id))
            for ct_id, declared in profile.containers.items()
        }
    if container.inside(host):
        return {}
    try:
        return dict.fromkeys(store.known_ids(host), Wanted)
    except OSError:
        return {}


def _cut_short(host: Host) -> List[Finding]:
    try:
        open_entries = [e for e in journal.entries(host) if e.state == "intent"]
    except OSError as e:
        if errname(e) == "EACCES":
            return []  # the journal is root's; a user's status is about the machine
        raise
    except Refused as e:  # a journal that cannot be believed hides nothing else
        return [finding("HT903", ERROR, e.where, e.what, hint=Hint(e.way_out, "host"))]
    return [
        finding(
            "HT906",
            WARN,
            e.step.target,
            "a run was cut short while it changed this; the next apply settles it",
            hint=Hint("hosttune apply", "host", "nothing", "apply"),
        )
        for e in open_entries
        if not promise.is_one(e.step)  # its container's own report tells it
    ]
