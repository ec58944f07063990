# SPDX-License-Identifier: Apache-2.0
"""What survived a reboot and what is gone: the knobs and the containers of a profile, each with the change that mends it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Callable, List, Mapping

from . import boot, container, engine, journal
from .catalogue import finding
from .host import Host, errname
from .lxc import outlook, store, sync
from .lxc.needs import Wanted
from .model import ERROR, WARN, Action, Finding, Hint, Refused, Report, Step
from .profile import Profile


def status(host: Host, profile: Profile) -> Report:
    """Knobs of the profile (all of them when it names none), then its containers, or else every container of this host that
    has NVIDIA devices in its config. Asks only; what would be done stands in steps and actions."""
    findings: List[Finding] = []
    steps: List[Step] = []
    actions: List[Action] = []
    by_name, _ = boot.with_profile(profile)
    for name, want in engine.wants_of((), profile.knobs or None, by_name).items():
        found, more = engine.plan(by_name[name], host, want)
        findings += found
        steps += more
    for ct_id, wanted in _containers(host, profile).items():
        try:
            report = sync.show(host, ct_id, wanted())
        except Refused as e:
            findings.append(sync.refused(ct_id, e))
            continue
        except OSError as e:
            why = "%s: %s" % (e.filename or "its config", errname(e))
            findings.append(finding("HT903", ERROR, "ct:" + ct_id, "could not be looked at: " + why))
            continue
        findings += [f if f.machine != "host" else replace(f, machine="ct:" + ct_id) for f in report.findings]
        steps += report.steps
        actions += report.actions
    findings += _cut_short(host)
    return Report(
        "status", host.uname()[0], findings=tuple(findings), steps=tuple(steps), actions=tuple(actions), mode="plan"
    )


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
    ]
