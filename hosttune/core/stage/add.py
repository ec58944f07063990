# SPDX-License-Identifier: Apache-2.0
"""hosttune stage add: a model into memory, whole or not at all, and seen by the containers whose engines use it.

Order: sum -> mount -> reserve and copy under a temporary name, hashed -> rename -> manifest. Killed at any point, the next
run keeps the files that were whole and ends whole. On a model that is whole already nothing is read and nothing is written.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .. import __version__, journal
from ..catalogue import finding
from ..host import Host, digest
from ..model import FAIL, OK, Action, Finding, Hint, Refused, Report
from . import copy, manifest, source, space, tmpfs, use, whole
from .manifest import Manifest, Staged
from .source import File, Source
from .tmpfs import Place

LOCK = journal.STATE + "/stage.lock"
RATE_OVER = 10.0
"""Seconds over which the rate is told."""


@dataclass(frozen=True)
class Progress:
    """event: start, bytes, file or end. rate: bytes a second. left: seconds, None if unknown. file: the last one that is
    whole, relative to the model."""

    event: str
    name: str
    bytes: int
    total: int
    files: int
    of: int
    rate: float = 0
    left: Optional[float] = None
    file: str = ""


Told = Callable[[Progress], None]


@dataclass(frozen=True)
class Plan:
    """What is there and what is to be done. kept: files of an earlier copy that are whole. jobs: what is missing.
    freed: bytes of an older copy that go first. size: of the mount."""

    name: str
    source: Source
    place: Place
    staged: Optional[Manifest]
    kept: Mapping[str, Staged]
    todo: Tuple[File, ...]
    freed: int
    size: int
    too_much: str

    @property
    def need(self) -> int:
        """Bytes to copy."""
        return sum(file.size for file in self.todo)

    @property
    def done(self) -> bool:
        """The model is staged, whole, and what its source holds now."""
        return self.staged is not None and not self.todo and len(self.kept) == len(self.staged.files)


def plan(host: Host, name: str, spec: str, caches: Sequence[str] = (), declared: int = 0) -> Plan:
    """Look at the source and at what is staged. declared: bytes of all other models that shall fit beside it.

    Raises Refused (a source that is no whole model, a place that is not ours) and OSError. Reads no weights. A source that
    cannot be read any more does not make a staged model less whole.
    """
    manifest.check_name(name)
    here = tmpfs.see(host)
    staged = manifest.load(host, name)
    try:
        given = source.read(host, spec, caches)
    except Refused:
        if staged is None or staged.source != spec or manifest.damage(host, manifest.folder_of(name), staged.files):
            raise
        given = Source(spec, staged.folder, staged.folder, tuple(
            File(f.path, "%s/%s" % (staged.folder, f.path), f.size, f.mtime, f.sha256) for f in staged.files))
    kept = _kept(host, name, staged, given)
    todo = tuple(file for file in given.files if file.path not in kept)
    if todo or staged is None:
        whole.refuse_unless_whole(host, given)
    freed, there = _freed(host, name, staged, kept), here.mounted.used if here.mounted else 0
    now = space.memory(host)
    need = sum(file.size for file in todo)
    after = there - freed + need
    size = tmpfs.size_for(max(after, given.size + declared), there + now.room)
    if here.mounted and (not need or here.mounted.size >= after + tmpfs.MARGIN_LEAST):
        size = here.mounted.size  # large enough: nothing is remounted for the sake of other numbers
    return Plan(name, given, here, staged, kept, todo, freed, size, space.fit(need, freed, there, now))


def _kept(host: Host, name: str, staged: Optional[Manifest], given: Source) -> Dict[str, Staged]:
    """Files of the staged or the partial copy that are whole and still what the source holds."""
    found, folder = manifest.done(host, name), manifest.partial_path(name)
    if staged:
        found, folder = {file.path: file for file in staged.files}, manifest.folder_of(name)
    elif found and not manifest.exists(host, folder):
        folder = manifest.folder_of(name)  # killed between the rename and the manifest
    wanted = {file.path: file for file in given.files}
    kept = {}
    for path, file in found.items():
        want = wanted.get(path)
        same = want is not None and (want.size, want.mtime) == (file.size, file.mtime)
        if want and same and want.sha256 == file.sha256 and not manifest.damage(host, folder, (file,)):
            kept[path] = file
    return kept


def _freed(host: Host, name: str, staged: Optional[Manifest], kept: Mapping[str, Staged]) -> int:
    """Bytes of files that go before the copy starts: of an older version, or of a copy that was cut short."""
    total = 0
    for folder in (manifest.folder_of(name), manifest.partial_path(name)):
        if manifest.exists(host, folder):
            total += _bytes_below(host, folder)
    return max(0, total - sum(file.size for file in kept.values()))


def _bytes_below(host: Host, folder: str) -> int:
    total = 0
    for entry in host.list(folder):
        stat = host.lstat("%s/%s" % (folder, entry))
        total += _bytes_below(host, "%s/%s" % (folder, entry)) if stat.type == "dir" else stat.size
    return total


def actions(seen: Plan) -> List[Action]:
    """What would be done, as data."""
    todo, argv, why = tmpfs.plan(seen.place, seen.size)
    out = [Action("mount", manifest.MOUNT, argv, why)] if todo else []
    if not seen.done:
        count = "%d of %d files, %s" % (len(seen.todo), len(seen.source.files), space.size_text(seen.need))
        out.append(Action("copy", seen.name, ("hosttune", "stage", "add", seen.name),
                          "%s from %s %s not in memory" % (count, seen.source.folder, "is" if len(seen.todo) == 1 else "are"),
                          costs="%s of memory" % space.size_text(seen.need)))
    return out


def add(host: Host, name: str, spec: str, caches: Sequence[str] = (), declared: int = 0, dry_run: bool = False,
        told: Told = lambda progress: None, threads: int = 0) -> Report:
    """Stage one model. Raises Refused and OSError before anything is written; a copy that does not end is a finding."""
    seen = plan(host, name, spec, caches, declared)
    facts = {"model": name, "source": seen.source.folder, "bytes": str(seen.source.size), "files": str(len(seen.source.files))}
    todo = actions(seen)
    if not todo or seen.too_much or dry_run:
        said = does_not_fit(name, seen.too_much) if seen.too_much else well(seen) if seen.done else missing(seen)
        would = () if seen.too_much else tuple(todo)
        return Report("stage add", host.uname()[0], facts, (said,), (), would, mode="plan" if dry_run else "apply")
    if host.who().uid != 0:
        raise Refused("root is needed to stage a model", manifest.MOUNT, "sudo hosttune stage add %s" % name)
    with host.lock(LOCK):
        seen = plan(host, name, spec, caches, declared)  # another run may have been here while this one waited
        found = [does_not_fit(name, seen.too_much)] if seen.too_much else list(tmpfs.prepare(host, seen.place, seen.size))
        if not found and not seen.done:
            found += _stage(host, seen, told, threads or copy.threads_here())
    changed = any(effect["effect"] not in ("lock", "append") for effect in host.effects)
    if not any(f.status == FAIL for f in found):
        found.append(well(seen))
    return Report("stage add", host.uname()[0], facts, tuple(found), (), tuple(todo), tuple(host.effects), changed, "apply")


def _stage(host: Host, seen: Plan, told: Told, threads: int) -> List[Finding]:
    name, partial = seen.name, manifest.partial_path(seen.name)
    _open_again(host, seen)
    folders = {partial + "/" + f.path.rpartition("/")[0] for f in seen.source.files if "/" in f.path}
    copy.keep_only(partial, ["%s/%s" % (partial, path) for path in seen.kept])
    copy.make_folders(manifest.OWN, [partial, *folders])
    _record(host, name, list(seen.kept.values()), anew=True)
    files = dict(seen.kept)
    meter = _Meter(host, seen, told)
    jobs = {"%s/%s" % (partial, file.path): file for file in seen.todo}

    def is_whole(copied: copy.Copied) -> None:
        file = jobs[copied.job.target]
        files[file.path] = Staged(file.path, file.size, file.mtime, copied.sha256, copied.chunks)
        _record(host, name, [files[file.path]])
        meter.tell("file", file.path)

    meter.tell("start")
    try:
        copy.copy([copy.Job(f.source, target, seen.source.root, f.size, f.mtime, f.sha256) for target, f in jobs.items()],
                  threads, is_whole, meter.count)
    except (OSError, Refused) as e:
        copy.keep_only(partial, ["%s/%s" % (partial, path) for path in files])
        return [_failed(seen, e, len(files))]
    _seal(host, seen, tuple(files[file.path] for file in seen.source.files))
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
        _record(host, seen.name, list(seen.kept.values()), anew=True)
        host.remove(manifest.manifest_path(seen.name), digest(was))
    if manifest.exists(host, folder):
        copy.remove(partial)
        copy.move(folder, partial)


def _record(host: Host, name: str, files: Sequence[Staged], anew: bool = False) -> None:
    if anew:
        copy.remove(manifest.done_path(name))
    host.append(manifest.done_path(name), b"".join(manifest.line(file) for file in files))


def _seal(host: Host, seen: Plan, files: Tuple[Staged, ...]) -> None:
    """Rename, then the manifest: readers see all of the model or nothing, and trust it only with its manifest."""
    name, partial = seen.name, manifest.partial_path(seen.name)
    wrong = manifest.damage(host, partial, files)
    if wrong:
        raise Refused("the copy is not whole: " + wrong[0], partial, "hosttune stage add %s" % name)
    copy.move(partial, manifest.folder_of(name))
    given = seen.source
    made = Manifest(name, given.spec, given.folder, given.revision, host.clock(), __version__, copy.CHUNK, files)
    host.replace(manifest.manifest_path(name), manifest.dump(made), None)
    copy.remove(manifest.done_path(name))


class _Meter:
    """Bytes and seconds of one copy, told to a callback."""

    def __init__(self, host: Host, seen: Plan, told: Told) -> None:
        self.host, self.seen, self.told = host, seen, told
        self.bytes, self.files, self.whole = 0, 0, len(seen.kept)
        self.marks: List[Tuple[float, int]] = [(host.clock(), 0)]

    def count(self, done: int) -> None:
        """So many bytes so far."""
        self.bytes = done
        self.marks.append((self.host.clock(), done))
        while len(self.marks) > 2 and self.marks[-1][0] - self.marks[0][0] > RATE_OVER:
            del self.marks[0]
        self.tell("bytes")

    def tell(self, event: str, file: str = "") -> None:
        """Call the callback."""
        if event == "file":
            self.whole += 1
        seconds = self.marks[-1][0] - self.marks[0][0]
        rate = (self.marks[-1][1] - self.marks[0][1]) / seconds if seconds > 0 else 0.0
        need, of = self.seen.need, len(self.seen.source.files)
        left = (need - self.bytes) / rate if rate else None
        done = need if event == "end" else self.bytes
        self.told(Progress(event, self.seen.name, done, need, self.whole, of, rate, left, manifest.shown(file)))


def well(seen: Plan) -> Finding:
    """HT501: it is in memory and whole."""
    words = "%d files, %s" % (len(seen.source.files), space.size_text(seen.source.size))
    return finding("HT501", OK, seen.name, "%s in memory at %s" % (words, manifest.folder_of(seen.name)), have=words)


def missing(seen: Plan) -> Finding:
    """HT501 or HT502, with what is there."""
    hint = Hint("hosttune stage add %s" % seen.name, "host", "%s of memory" % space.size_text(seen.need), "apply")
    have = "%d of %d files" % (len(seen.kept), len(seen.source.files))
    what = "is not in memory" if not seen.kept else "is not whole in memory, or its source has changed since"
    return finding("HT501" if not seen.kept else "HT502", FAIL, seen.name, "%s %s" % (seen.name, what), have=have,
                   want="%d files, %s" % (len(seen.source.files), space.size_text(seen.source.size)), hint=hint)


def does_not_fit(name: str, why: str) -> Finding:
    """HT503 with the sum."""
    hint = Hint("hosttune stage status", "host", "shows what could be dropped to make room: hosttune stage drop MODEL", "none")
    return finding("HT503", FAIL, name, "%s does not fit: %s" % (name, why), hint=hint)


def _failed(seen: Plan, e: Exception, files: int) -> Finding:
    kept = "%d of %d files are whole and kept" % (files, len(seen.source.files))
    again = "hosttune stage add %s" % seen.name
    if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.ENOMEM):
        return replace(does_not_fit(seen.name, "the tmpfs was full before the copy began (%s); %s" % (e.strerror, kept)),
                       evidence=(str(e.filename or manifest.MOUNT),))
    if isinstance(e, Refused):
        return finding("HT506", FAIL, seen.name, "%s was not staged: %s; %s" % (seen.name, e.what, kept),
                       hint=Hint(again, "host", "", "apply"), evidence=(manifest.shown(e.where), e.way_out))
    said = getattr(e, "strerror", None) or str(e)
    return finding("HT502", FAIL, seen.name, "%s was not staged: %s; %s" % (seen.name, said, kept),
                   hint=Hint(again, "host", "", "apply"), evidence=(str(getattr(e, "filename", "") or ""),))


def refused(name: str, e: Exception) -> Finding:
    """A model that could not even be planned, as a finding, where several are gone through."""
    if isinstance(e, Refused):
        return finding("HT506", FAIL, name, "%s: %s" % (name, e.what), hint=Hint(e.way_out, "host", "", "reconfigure"),
                       evidence=(e.where,) if e.where else ())
    said = "%s: %s" % (getattr(e, "filename", "") or name, getattr(e, "strerror", "") or e)
    return finding("HT506", FAIL, name, "%s could not be looked at: %s" % (name, said))
