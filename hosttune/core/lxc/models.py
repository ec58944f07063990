# SPDX-License-Identifier: Apache-2.0
"""The one mount entry by which a container sees the host's staged models, read-only at /srv/models.

Not below the container's /dev/shm: its systemd mounts a tmpfs of its own over that, and the bind would be hidden. With
`optional` the container starts even where the host has no such mount; create=dir makes the mount point. A mount entry
counts at the next start: until then a restart is pending, with all that it would destroy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Tuple

from .. import engine
from ..catalogue import finding
from ..host import Host, errname
from ..model import ERROR, FAIL, OK, PROVED, SKIP, Action, Finding, Hint, Refused, Report, Step
from ..recording import Unrecorded
from ..stage import tmpfs
from ..stage.manifest import MOUNT
from . import document as doc
from . import outlook, see, store
from . import restart as again
from .document import KEY, RAW, Document
from .edit import refuse
from .entries import MOUNT as ENTRY
from .entries import entries
from .store import Config

TARGET = "/srv/models"
VALUE = "%s %s none bind,ro,optional,create=dir" % (MOUNT, TARGET[1:])
FINDING = "HT505"


@dataclass(frozen=True)
class Sight:
    """Whether a container sees the models. step: the change of its file, None if the entry is there. pending: it runs, and
    only a restart shows them. restart: that restart, with its losses."""

    config: Config
    step: Optional[Step]
    pid: int
    pending: bool
    restart: Tuple[Action, ...]
    losses: Tuple[str, ...]
    ha: bool
    findings: Tuple[Finding, ...]


def look(host: Host, ct_id: str) -> Sight:
    """See and judge one container. Refused for one that is not here, or whose file must be and cannot be edited now."""
    config = store.find(host, ct_id)
    step = _step(config)
    pid = see.running_pid(host, config)
    shown: Optional[bool] = None
    findings: List[Finding] = []
    if pid:
        try:
            shown = _shown(host, pid)
        except (OSError, Unrecorded) as e:
            why = errname(e) if isinstance(e, OSError) else str(e)
            findings.append(finding(FINDING, ERROR, config.subject, "its mounts could not be looked at: " + why))
    pending = shown is False
    lost: Tuple[str, ...] = ()
    restart: Tuple[Action, ...] = ()
    if pending:
        lost = see.losses(host, config, pid, see.devices_for(host, config))
    ha = pending and store.is_ha_managed(host, ct_id)
    if pending:
        restart = again.actions(config, "%s is not there inside, and only a start mounts it" % TARGET, lost, ha)
    if step:
        findings.append(finding(FINDING, FAIL, config.subject, "its config does not show it the models at %s" % TARGET,
                                have="no entry", want=VALUE, evidence=(config.path,),
                                hint=Hint("hosttune stage add MODEL", "host", "nothing is restarted", "apply")))
    if pending:
        command = again.command(config, restart, ha)
        cost = "a restart; it destroys: " + ("; ".join(lost) or "nothing that can be seen")
        words = "a restart is pending: %s is not the host's %s inside" % (TARGET, MOUNT)
        findings.append(finding(FINDING, FAIL, config.subject, words, want="a read-only bind", proof=PROVED,
                                hint=Hint(command, "host", cost, "restart"), evidence=lost[:3]))
    elif not step and not findings:
        words = "the models are at %s" % TARGET if pid else "it does not run; it will see the models at its next start"
        findings.append(finding(FINDING, OK if pid else SKIP, config.subject, words))
    return Sight(config, step, pid, pending, restart, lost, ha, tuple(findings))


def _step(config: Config) -> Optional[Step]:
    """The change that adds the entry to main, None where one shows it already."""
    document = config.document
    for line, mount in entries(document, document.main).mounts:
        if mount.target != TARGET or mount.bad:
            continue
        if mount.source == MOUNT and mount.is_bind and "ro" in mount.options:
            return None
        raise Refused("another entry fills %s: %s" % (TARGET, line.text), document.place(line),
                      "remove that line, or give it another target")
    for line in document.main:
        if line.kind == KEY and line.key.startswith("mp") and "mp=%s" % TARGET in line.value.replace("/,", ",").split(","):
            raise Refused("a mount point fills %s: %s" % (TARGET, line.text), document.place(line), "give it another path")
    refuse(document)
    at = doc.after_last(document, RAW, (ENTRY, "lxc."))
    new = doc.rewrite(document, (), {at: [doc.format_line(document, ENTRY, VALUE)]})
    _prove(document, new)
    before, after = (part.decode("utf-8", "surrogateescape") for part in (config.data, doc.render(new)))
    return Step(FINDING, config.subject, "replace", config.path, before, after, lock=config.lock)


def _prove(old: Document, new: Document) -> None:
    """One line of main more, and nothing else: anything else is a mistake of ours, and then no file is written."""
    texts = [line.text for line in new.main]
    texts.remove(doc.format_line(old, ENTRY, VALUE))
    if texts != [line.text for line in old.main]:
        raise AssertionError("an edit changed more than it said in %s" % old.path)
    if [line.raw for line in old.lines if line.part] != [line.raw for line in new.lines if line.part]:
        raise AssertionError("an edit of main reached another section of %s" % old.path)


def _shown(host: Host, pid: int) -> bool:
    """Whether the container's init has the host's tmpfs of now (the same device number) at TARGET."""
    here = tmpfs.mounted_at(host, host.read("/proc/self/mountinfo"), MOUNT)
    inside = tmpfs.mounted_at(host, host.read("/proc/%d/mountinfo" % pid), TARGET, "/proc/%d/root" % pid)
    return here is not None and inside is not None and inside.device == here.device


def show(host: Host, ct_id: str, restart: str = outlook.NEVER, dry_run: bool = False) -> Report:
    """Make the container see the models: the file (locked, backed up, journalled, read back), then a restart if the policy
    lets it. Raises Refused before anything is written; what goes wrong later is a finding."""
    before = look(host, ct_id)
    steps = (before.step,) if before.step else ()
    may = before.pending and (restart == outlook.ALWAYS or restart == outlook.IDLE and not before.losses)
    actions = before.restart if may else ()
    if dry_run or not (steps or actions):
        mode = "plan" if dry_run else "apply"
        return Report("stage add", host.uname()[0], {}, before.findings, steps, actions, tuple(host.effects), False, mode)
    failed: List[Finding] = []
    if before.step:
        store.refuse_unwritable(host, before.config, (before.step.after or "").encode("utf-8", "surrogateescape"))
        from ..knobs import BY_ID  # only a change needs every setting, and most runs find none to make

        failed += engine.apply(host, [before.step], BY_ID)
    done: List[Action] = []
    if not failed:
        failed += again.carry_out(host, before.config, actions, done, FINDING)
    after = look(host, ct_id)
    return Report("stage add", host.uname()[0], {}, tuple(failed) + after.findings, steps if not failed else (), tuple(done),
                  tuple(host.effects), True, "apply")

