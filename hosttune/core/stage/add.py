# SPDX-License-Identifier: Apache-2.0
"""hosttune stage add: a model into memory, whole or not at all, and seen by the containers whose engines use it.

Order: sum -> what has to go -> mount -> reserve and copy under a temporary name, hashed (or not, if that shall come later; what
comes from another machine always is, for afterwards nobody could compare) -> rename -> manifest. Killed at any
point, the next run keeps the files that were whole, and the chunks of others (begun.py), and ends whole. On a model that is
whole already nothing is read and nothing is written.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from typing import Dict, Iterator, List, Sequence, Tuple

from .. import __version__
from ..door.host import Host, digest, read_or_none
from ..model import FAIL, Action, Finding, Refused, Report
from . import begun, copy, drop, findings, manifest, nodes, over_ssh, tmpfs, use
from . import plan as planned
from .findings import refused
from .manifest import Manifest, Record, Staged
from .nodes import Copy
from .plan import Plan, Wanted
from .progress import Meter, Progress, Told
from .source import NotWhole, hub_of

__all__ = ["Progress", "Told", "Wanted", "add", "refused"]


def add(host: Host, wanted: Wanted, dry_run: bool = False, told: Told = lambda progress: None, threads: int = 0) -> Report:
    """Stage one model, each of its copies. Raises Refused and OSError before anything is written; a copy that does not end is
    a finding."""
    try:
        first = planned.plan(host, wanted)
    except NotWhole as e:
        if not planned.may_fetch(wanted, e):
            raise
        if dry_run:
            return _would_fetch(host, wanted, e)
        _fetch(wanted)
        first = planned.plan(host, wanted)
    reports = []
    for number, one in enumerate(nodes.copies(host, wanted.name, wanted.placement)):
        seen = planned.plan(host, wanted, one) if number else first
        reports.append(_add(host, wanted, one, seen, dry_run, told, threads))
        if any(f.status == FAIL for f in reports[-1].findings) and not dry_run:
            break
    return replace(reports[0], findings=tuple(f for r in reports for f in r.findings),
                   actions=tuple(a for r in reports for a in r.actions), effects=tuple(host.effects),
                   changed=any(r.changed for r in reports))


def _would_fetch(host: Host, wanted: Wanted, e: NotWhole) -> Report:
    repository, revision = hub_of(wanted.spec) or ("", "")
    argv = ("hf", "download", repository, "--revision", revision)
    action = Action("download", wanted.name, argv, "%s: %s" % (e.where, e.what) if e.where else e.what)
    return Report("stage add", host.uname()[0], {"model": wanted.name}, (refused(wanted.name, e),), (), (action,), mode="plan")


def _fetch(wanted: Wanted) -> None:
    repository, revision = hub_of(wanted.spec) or ("", "")
    if wanted.fetch:
        wanted.fetch(repository, revision, wanted.caches)


def _add(host: Host, wanted: Wanted, one: Copy, seen: Plan, dry_run: bool, told: Told, threads: int) -> Report:
    facts = {"model": wanted.name, "source": seen.source.folder, "bytes": str(seen.source.size),
             "files": str(len(seen.source.files))}  # fmt: skip
    todo = planned.actions(seen)
    makes_room = bool(seen.too_much) and wanted.evict and bool(seen.evictable)
    if not todo or seen.too_much and not makes_room or dry_run:
        would = todo if not seen.too_much or makes_room else []
        return Report("stage add", host.uname()[0], facts, tuple(_judged(host, seen)), (), tuple(would),
                      mode="plan" if dry_run else "apply")  # fmt: skip
    if host.who().uid != 0:
        raise Refused("root is needed to stage a model", manifest.MOUNT, "sudo %s" % seen.command)
    with _turn(host, seen, told):
        seen = planned.plan(host, wanted, one)  # another run may have been here while this one waited
        todo = planned.actions(seen)
        if seen.too_much and wanted.evict and seen.evictable:
            for gone in seen.evictable:
                drop.remove(host, gone.name)
            seen = planned.plan(host, wanted, one)
        if seen.too_much:
            todo = [action for action in todo if action.name == "drop" and wanted.evict]
        found = [findings.does_not_fit(seen)] if seen.too_much else list(tmpfs.prepare(host, seen.place, seen.size))
        if not found and not seen.done:
            found += _stage(host, wanted, seen, told, threads or copy.threads_here())
    changed = any(effect["effect"] not in ("lock", "append") for effect in host.effects)
    if not any(f.status == FAIL for f in found):
        found += findings.well(replace(seen, staged=manifest.load(host, seen.name)))
    return Report("stage add", host.uname()[0], facts, tuple(found), (), tuple(todo), tuple(host.effects), changed, "apply")


@contextlib.contextmanager
def _turn(host: Host, seen: Plan, told: Told) -> Iterator[None]:
    """One run at a time. The other one may copy for minutes, at boot for one, and what it brings need not be copied again."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(host.lock(manifest.LOCK, 0))
        except Refused:
            Meter(host, seen, told).tell("wait")
            held.enter_context(host.lock(manifest.LOCK, manifest.TURN_SECONDS))
        yield


def _judged(host: Host, seen: Plan) -> List[Finding]:
    if seen.too_much:
        return [findings.does_not_fit(seen)]
    return findings.well(seen) if seen.done else findings.missing(host, seen)


def _stage(host: Host, wanted: Wanted, seen: Plan, told: Told, threads: int) -> List[Finding]:
    name, partial = seen.name, manifest.partial_path(seen.name)
    hashed = wanted.hashed or bool(seen.source.machine)
    _open_again(host, seen)
    folders = {partial + "/" + f.path.rpartition("/")[0] for f in seen.source.files if "/" in f.path}
    copy.keep_only(partial, ["%s/%s" % (partial, path) for path in (*seen.kept, *seen.parts)])
    copy.make_folders(manifest.OWN, [partial, *folders])
    _record(host, name, list(seen.kept.values()), seen.node, anew=True)
    notes = begun.Notes(name, seen.node, seen.todo, seen.parts)
    files: Dict[str, Staged] = dict(seen.kept)
    meter = Meter(host, seen, told, hashed)
    jobs = {"%s/%s" % (partial, file.path): file for file in seen.todo}

    def is_whole(copied: copy.Copied) -> None:
        file = jobs[copied.job.target]
        files[file.path] = Staged(file.path, file.size, file.mtime, file.sha256, copied.chunks, hashed or not file.size)
        _record(host, name, [files[file.path]])
        meter.tell("file", file.path)

    def is_there(job: copy.Job, number: int, digest: str) -> None:
        notes.add(jobs[job.target].path, number, digest)

    meter.tell("start")
    root = seen.source.root
    todo = [copy.Job(f.source, target, root, f.size, f.mtime, f.sha256, seen.node, seen.parts.get(f.path, {}))
            for target, f in jobs.items()]  # fmt: skip
    try:
        with contextlib.closing(notes):
            if seen.source.machine:
                over_ssh.copy(seen.source.machine, todo, is_whole, meter.count, wanted.pace, is_there)
            else:
                copy.copy(todo, threads, is_whole, meter.count, hashed, wanted.pace, noted=is_there)
        made = _seal(host, seen, tuple(files[file.path] for file in seen.source.files), meter.seconds)
    except (OSError, Refused) as e:
        left = begun.left(host, Copy(name, seen.node), [file for file in seen.todo if file.path not in files], hashed)
        copy.keep_only(partial, ["%s/%s" % (partial, path) for path in (*files, *left)])
        return [findings.failed(seen, e, len(files), left)]
    _remember(host, made)
    host.effects.append({"effect": "copy", "target": manifest.folder_of(name), "bytes": seen.need, "files": len(seen.todo)})
    meter.tell("end")
    return []


def _open_again(host: Host, seen: Plan) -> None:
    """Take the name away from a model that is not what it shall be: the manifest first, so that nobody trusts it."""
    folder, partial = manifest.folder_of(seen.name), manifest.partial_path(seen.name)
    if not manifest.exists(host, folder) and seen.staged is None:
        return
    used = use.users(host, seen.place, seen.name)
    if used:
        raise Refused("it is in use by %s, and has to be replaced" % use.words(used), folder, "stop the engine first")
    if seen.staged is None and not manifest.exists(host, manifest.done_path(seen.name)):
        raise Refused("hosttune did not make this folder", folder, "mv %s elsewhere, or rm -r it" % folder)
    was = manifest.raw(host, seen.name)
    if was is not None:
        copy.remove(partial)
        _record(host, seen.name, list(seen.kept.values()), seen.node, anew=True)
        host.remove(manifest.manifest_path(seen.name), digest(was))
    if manifest.exists(host, folder):
        copy.remove(partial)
        copy.move(folder, partial)


def _record(host: Host, name: str, files: Sequence[Staged], node: str = "", anew: bool = False) -> None:
    lines = [manifest.line(file) for file in files]
    if anew:
        copy.remove(manifest.done_path(name))
        lines.insert(0, manifest.header(node))
    host.append(manifest.done_path(name), b"".join(lines))


def _seal(host: Host, seen: Plan, files: Tuple[Staged, ...], seconds: float) -> Manifest:
    """Rename, then the manifest: readers see all of the model or nothing, and trust it only with its manifest."""
    name, partial = seen.name, manifest.partial_path(seen.name)
    wrong = manifest.damage(host, partial, files)
    if wrong:
        raise Refused("the copy is not whole: " + wrong[0], partial, seen.command)
    copy.move(partial, manifest.folder_of(name))
    copy.remove(manifest.chunks_path(name))  # before the manifest: no note outlives the copy that it is of
    given = seen.source
    doubts = tuple((doubt.code, doubt.what, doubt.where) for doubt in seen.doubts if doubt.code != planned.PIN)
    made = Manifest(name, given.spec, given.folder, given.revision, host.clock(), __version__, copy.CHUNK, files, seen.node,
                    round(seconds, 3), seen.need, doubts)
    host.replace(manifest.manifest_path(name), manifest.dump(made), None)
    copy.remove(manifest.done_path(name))
    return made


def _remember(host: Host, made: Manifest) -> None:
    """That it was staged, where a reboot does not take it away."""
    boot = (read_or_none(host, findings.BOOT_ID) or "").strip()
    note = json.dumps(asdict(Record(made.at, boot, made.seconds, made.source)), sort_keys=True).encode("ascii") + b"\n"
    was = manifest.bytes_of(host, manifest.record_path(made.name))
    host.replace(manifest.record_path(made.name), note, None if was is None else digest(was), 0o600)
