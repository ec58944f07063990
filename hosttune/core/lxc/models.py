# SPDX-License-Identifier: Apache-2.0
"""The mount entries by which a container sees the host's staged models, read-only: at /srv/models, or at /dev/shm/models
for an engine that has that path built in.

A bind below the container's /dev/shm alone is hidden, for its systemd mounts a tmpfs over it; one that an entry before it has
mounted is kept, and the bind in it stays in sight (measured, LXC 5.0.2). With `optional` the container starts even where the
host has no such mount; create=dir makes the mount point. A mount entry counts at the next start: until then a restart is
pending, with all that it would destroy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from .. import engine
from ..catalogue import finding
from ..door.host import Host, Unrecorded, errname
from ..model import ERROR, FAIL, OK, PROVED, SKIP, Action, Finding, Hint, Refused, Report, Step
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
SHM = "/dev/shm"
OWN_SHM = "tmpfs dev/shm tmpfs rw,nosuid,nodev,mode=1777,create=dir"
"""As the container's own systemd would mount it; half of the host's memory, charged to the container."""


def value(target: str) -> str:
    """The entry of one target."""
    return "%s %s none bind,ro,optional,create=dir" % (MOUNT, target[1:])


VALUE = value(TARGET)
FINDING = "HT505"


Serves = Sequence[Tuple[str, int]]


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


def look(host: Host, ct_id: str, targets: Sequence[str] = (TARGET,), serves: Serves = ()) -> Sight:
    """See and judge one container. targets: where it shall see the models. serves: the (engine, port) pairs that are declared
    in it: their open connections are a loss. Refused for one that is not here, or whose file must be and cannot be edited now."""
    config, at = store.find(host, ct_id), " and ".join(targets)
    step = _step(config, targets)
    pid = see.running_pid(host, config)
    shown: Optional[bool] = None
    findings: List[Finding] = []
    if pid:
        try:
            shown = _shown(host, pid, targets)
        except (OSError, Unrecorded) as e:
            why = errname(e) if isinstance(e, OSError) else str(e)
            findings.append(finding(FINDING, ERROR, config.subject, "its mounts could not be looked at: " + why))
    pending = shown is False
    lost: Tuple[str, ...] = ()
    restart: Tuple[Action, ...] = ()
    if pending:
        lost = see.losses(host, config, pid, see.devices_for(host, config), serves)
    ha = pending and store.is_ha_managed(host, ct_id)
    if pending:
        restart = again.actions(config, "%s is not there inside, and only a start mounts it" % at, lost, ha)
    if step:
        findings.append(finding(FINDING, FAIL, config.subject, "its config does not show it the models at %s" % at,
                                have="no entry", want=value(targets[0]), evidence=(config.path,),
                                hint=Hint("hosttune stage add MODEL", "host", "nothing is restarted", "apply")))
    if pending:
        command = again.command(config, restart, ha)
        words = "a restart is pending: %s is not the host's %s inside" % (at, MOUNT)
        findings.append(finding(FINDING, FAIL, config.subject, words, want="a read-only bind", proof=PROVED,
                                hint=Hint(command, "host", again.costs(lost), "restart"), evidence=lost[:3]))
    elif not step and not findings:
        words = "the models are at %s" % at if pid else "it does not run; it will see the models at its next start"
        findings.append(finding(FINDING, OK if pid else SKIP, config.subject, words))
    return Sight(config, step, pid, pending, restart, lost, ha, tuple(findings))


def _step(config: Config, targets: Sequence[str]) -> Optional[Step]:
    """The change that adds what is missing to main, None where all is there."""
    document = config.document
    missing = [value(target) for target in targets if not _has(document, target)]
    if not missing:
        return None
    if value(SHM + "/models") in missing and not any(m.target == SHM for _, m in entries(document, document.judged).mounts):
        missing.insert(missing.index(value(SHM + "/models")), OWN_SHM)
    refuse(document)
    at = doc.after_last(document, RAW, (ENTRY, "lxc."))
    lines = [doc.format_line(document, ENTRY, entry) for entry in missing]
    new = doc.rewrite(document, (), {at: lines})
    _prove(document, new, lines)
    before, after = (part.decode("utf-8", "surrogateescape") for part in (config.data, doc.render(new)))
    return Step(FINDING, config.subject, "replace", config.path, before, after, lock=config.lock)


def _has(document: Document, target: str) -> bool:
    """Whether an entry of main shows the models there. Refused when something else fills that place."""
    for line, mount in entries(document, document.judged).mounts:
        if mount.target == target and not mount.bad:
            if mount.source == MOUNT and mount.is_bind and "ro" in mount.options:
                return True
            raise Refused("another entry fills %s: %s" % (target, line.text), document.place(line),
                          "remove that line, or give it another target")
    for line in document.main:
        if line.kind == KEY and line.key.startswith("mp") and "mp=%s" % target in line.value.replace("/,", ",").split(","):
            raise Refused("a mount point fills %s: %s" % (target, line.text), document.place(line), "give it another path")
    return False


def _prove(old: Document, new: Document, lines: Sequence[str]) -> None:
    """These lines of main more, and nothing else: anything else is a mistake of ours, and then no file is written."""
    texts = [line.text for line in new.main]
    for line in lines:
        texts.remove(line)
    if texts != [line.text for line in old.main]:
        raise AssertionError("an edit changed more than it said in %s" % old.path)
    if [line.raw for line in old.lines if line.part] != [line.raw for line in new.lines if line.part]:
        raise AssertionError("an edit of main reached another section of %s" % old.path)


def _shown(host: Host, pid: int, targets: Sequence[str]) -> bool:
    """Whether the container's init has the host's tmpfs of now (the same device number) at each target."""
    here = tmpfs.mounted_at(host, host.read("/proc/self/mountinfo"), MOUNT)
    text, root = host.read("/proc/%d/mountinfo" % pid), "/proc/%d/root" % pid
    inside = [tmpfs.mounted_at(host, text, target, root) for target in targets]
    return here is not None and all(seen is not None and seen.device == here.device for seen in inside)


def show(host: Host, ct_id: str, restart: str = outlook.NEVER, dry_run: bool = False,
         targets: Sequence[str] = (TARGET,), serves: Serves = ()) -> Report:
    """Make the container see the models: the file (locked, backed up, journalled, read back), then a restart if the policy
    lets it. Raises Refused before anything is written; what goes wrong later is a finding."""
    before = look(host, ct_id, targets, serves)
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
    after = look(host, ct_id, targets, serves)
    return Report("stage add", host.uname()[0], {}, tuple(failed) + after.findings, steps if not failed else (), tuple(done),
                  tuple(host.effects), True, "apply")

