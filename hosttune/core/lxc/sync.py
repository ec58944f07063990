# SPDX-License-Identifier: Apache-2.0
"""hosttune lxc show, preview, sync, live: what the command line and the Ansible module call.

Order of a sync: the file (under Proxmox VE's lock, journalled, read back, with what the running container has to be told in the
journal before it), then live rules, then a restart if the policy lets it, then every node is opened inside again. Where all is
well nothing is written and nothing is run that changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, List, Optional, Sequence, Tuple

from .. import engine, journal
from ..catalogue import finding
from ..door.host import Host
from ..machine.devices import DeviceTable
from ..model import ERROR, FAIL, SKIP, WARN, Action, Finding, Hint, Refused, Report, Step
from . import opening, promise, store
from .document import parse
from .entries import entries
from .foresee import foresee
from .gets import gets
from .needs import Wanted
from .outlook import ALWAYS, IDLE, NEVER, Outlook, outlook, refused
from .patience import Patience
from .repair import plan
from .restart import carry_out

__all__ = ["ALWAYS", "IDLE", "NEVER", "Prove", "preview", "show", "sync", "live", "code", "refused"]

Prove = Callable[[Host, store.Config, int], List[Finding]]
"""Asks the container for the last proof: CUDA starts, and counts so many GPUs (proof.py)."""


def preview(data: bytes, path: str, wanted: Wanted, devices: DeviceTable, subject: str = "container") -> Tuple[Report, bytes]:
    """What sync would make of any copy of a config, on the host that `devices` describes. Touches nothing.

    Returns the report (its one step holds before and after) and the new bytes. Raises Refused.
    """
    document = parse(data, store.guess_dialect(path, data), store.pve_major(devices.pve_container), path)
    planned = plan(document, wanted, devices, subject)
    steps: Tuple[Step, ...] = ()
    if planned.changes:
        before, after = (part.decode("utf-8", "surrogateescape") for part in (data, planned.data))
        steps = (Step("HT421", subject, "replace", path, before, after),)
    given = "\n".join("\t".join(one) for one in gets(document, devices))
    facts = {"dialect": document.dialect, "gets": given, "changes": "\n".join(planned.changes),
             "file": planned.data.decode("utf-8", "surrogateescape")}
    more = foresee(document, wanted, devices, planned, subject)
    return Report("lxc preview", facts=facts, findings=planned.findings + more, steps=steps, mode="plan"), planned.data


def show(host: Host, ct_id: str, wanted: Wanted) -> Report:
    """One container as it is: findings, the step that would heal its file, and actions that would heal it now."""
    return _report("lxc show", host, outlook(host, ct_id, wanted))


def sync(host: Host, ct_id: str, wanted: Wanted, restart: str = NEVER, dry_run: bool = False,
         devices: Optional[DeviceTable] = None, prove: Optional[Prove] = None, quorum: Optional[Patience] = None) -> Report:
    """Make the container as wanted. restart: never, idle (only if nothing would be lost), always.

    devices: the host's device table, where several containers are gone through. prove: asked last where something was
    changed and the container runs. quorum: how long /etc/pve is waited for, if there is something to write.
    The report holds what was done (dry_run: what would be); a restart that is pending is a finding, HT402.

    Raises Refused before anything is written; later failures are findings, and what was done stands in `effects`.
    """
    if restart not in (NEVER, IDLE, ALWAYS):
        raise Refused("restart %r is not one of never, idle, always" % restart, "container " + ct_id)
    before = outlook(host, ct_id, wanted, devices)
    if dry_run:
        return _report("lxc sync", host, before)
    if before.edit.refusal:
        raise before.edit.refusal
    failed: List[Finding] = []
    done: List[Action] = []
    if before.step:
        if quorum and before.config.lock:
            quorum.wait(host)
        store.refuse_unwritable(host, before.config, before.edit.data)
        from ..knobs import BY_ID  # only a change needs every setting, and most runs find none to make

        promises = promise.steps(before.config, before.edit.closings) if before.pid else ()
        failed += engine.apply(host, [before.step], BY_ID, promises)
    wrote = bool(before.step) and not failed
    if not failed:
        failed += _run(host, before.rules + before.closing, done)
        failed += _settled(host, before.config, done)
        if before.restart and not failed and (restart == ALWAYS or restart == IDLE and not before.losses):
            failed += carry_out(host, before.config, before.restart, done)
    if not wrote and not done and not failed:
        return _report("lxc sync", host, before, mode="apply")
    after = outlook(host, ct_id, wanted, devices)
    proof = _proved(host, after, prove) if prove and after.pid and after.gpus and not failed else ()
    facts = {"changes": "\n".join(before.edit.changes), "restore": _restore_line(host, before.step) if wrote else ""}
    return Report("lxc sync", host.uname()[0], facts,
                  tuple(failed) + after.findings + proof, (before.step,) if before.step and wrote else (), tuple(done),
                  tuple(host.effects), wrote or bool(done), "apply")


def _settled(host: Host, config: store.Config, done: Sequence[Action]) -> List[Finding]:
    """End what the journal holds open about this container: promises that were kept now, and what a killed run left."""
    if not promise.is_open(host, config) or host.who().uid != 0:
        return []
    from ..knobs import BY_ID  # as above

    with host.lock(journal.LOCK):
        promise.end(host, config, done)
        return engine.recover(host, BY_ID)


def _proved(host: Host, after: Outlook, prove: Prove) -> Tuple[Finding, ...]:
    """The last proof. Where a node does not open, that is why it fails, and it is told already."""
    closed = next((f.because for f in after.findings if f.id == opening.COUNT), ())
    found = prove(host, after.config, len(after.gpus))
    return tuple(replace(f, status=SKIP, because=closed) if closed and f.status == FAIL else f for f in found)


def _restore_line(host: Host, step: Optional[Step]) -> str:
    """The shell line that puts the file back as it was, without hosttune; "" where the journal does not tell."""
    made = [e for e in journal.entries(host) if step and e.step.target == step.target and e.backup]
    return journal.restore_line(made[-1]) if made else ""


def live(host: Host, ct_id: str, wanted: Wanted, dry_run: bool = False) -> Report:
    """Give the running container the rules it lacks, at once. Its file is left alone. Raises Refused when it does not run."""
    before = outlook(host, ct_id, wanted)
    if not before.pid:
        raise Refused("the container does not run", before.config.subject, "pct start %s" % ct_id if before.config.lock else
                      "lxc-start -n %s" % ct_id)
    before = replace(before, step=None, closing=(), restart=())
    if dry_run or not before.rules:
        return _report("lxc live", host, before, mode="plan" if dry_run else "apply")
    done: List[Action] = []
    failed = _run(host, before.rules, done)
    after = outlook(host, ct_id, wanted)
    return Report("lxc live", host.uname()[0], {}, tuple(failed) + after.findings, (), tuple(done), tuple(host.effects),
                  bool(done), "apply")


def code(report: Report) -> int:
    """Exit code of show and preview: 0 nothing to do and nothing to say, 1 something. (Refused is 2.)"""
    told = any(f.status in (WARN, FAIL, ERROR) and not f.ignored for f in report.findings)
    return 1 if told or report.steps or report.actions else 0


def _report(command: str, host: Host, seen: Outlook, mode: str = "plan") -> Report:
    steps = (seen.step,) if seen.step else ()
    actions = seen.rules + seen.closing + seen.restart if mode == "plan" else ()
    given = "\n".join("\t".join(one) for one in gets(seen.config.document, seen.devices))
    facts = {"config": seen.config.path, "running": "pid %d" % seen.pid if seen.pid else "no",
             "kind": "unprivileged" if entries(seen.config.document, seen.config.document.judged).access.free else "privileged",
             "gets": given, "changes": "\n".join(seen.edit.changes)}
    return Report(command, host.uname()[0], facts, seen.findings, steps, actions, tuple(host.effects), False, mode)


def _run(host: Host, actions: Sequence[Action], done: List[Action]) -> List[Finding]:
    """Run actions in order and stop at the first that fails."""
    for action in actions:
        ran = host.execute(list(action.argv))
        if ran.rc:
            text = (ran.err or ran.out).strip().splitlines() or ["exit code %d" % ran.rc]
            return [finding("HT402", FAIL, action.subject, "%s failed: %s" % (" ".join(action.argv), text[-1]),
                            hint=Hint(" ".join(action.argv), "host", action.costs, "apply"))]
        done.append(action)
    return []
