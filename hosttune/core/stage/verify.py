# SPDX-License-Identifier: Apache-2.0
"""hosttune stage verify: every byte in memory against its digests, and with repair only the damaged chunks copied again.

A file whose digest is one for the whole (the hub's) tells that it is damaged and not where: then both sides are hashed chunk by
chunk, and the source itself against the hub's hash, before a byte of it is taken. What was not hashed when it was copied
(later.py) is made good here, and the manifest then says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Collection, Dict, List, Mapping, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host, digest, errname
from ..model import ERROR, FAIL, OK, Action, Finding, Hint, Refused, Report
from . import copy, findings, later, manifest, space, tmpfs
from . import source as sources
from .later import Origins
from .manifest import Manifest, Staged
from .pace import FREE, Pace

Ticked = Callable[[int, int], None]


@dataclass(frozen=True)
class _Read:
    """What is to be said of a model that was read. bad: what is wrong, by file. files: what is known of them now."""

    said: Finding
    bad: Mapping[str, str]
    files: Tuple[Staged, ...]


def verify(host: Host, names: Sequence[str], told: Ticked = lambda done, total: None, threads: int = 0,
           repair: bool = False, pace: Pace = FREE, declared: Collection[str] = ()) -> Report:
    """Read every byte of these models (of all that are staged, if none is named) and compare digests. Writes only to repair,
    and to note the digests of what was not hashed before.

    told(bytes read, bytes to read). pace: how hard the reading may work. declared: models whose name alone says where they come
    from.
    A model that is named and not staged is a failure. Raises Refused and OSError.
    """
    tmpfs.see(host)
    found: List[Finding] = []
    whole: List[Manifest] = []
    for name in _copies(host, names):
        have = manifest.load(host, name)
        if have is None:
            model = manifest.model_of(name)
            again = "hosttune stage add %s" % model if model in declared else findings.bring_back(host, model)
            found.append(finding("HT501", FAIL, name, "%s is not staged" % name, hint=Hint(again, "host", "", "apply")))
            continue
        wrong = manifest.damage(host, manifest.folder_of(name), have.files)
        if wrong:
            found.append(findings.damaged(have, wrong))
        else:
            whole.append(have)
    if repair and host.who().uid != 0:
        raise Refused("root is needed to repair a model", manifest.MOUNT, "sudo hosttune stage verify --repair")
    given = {have.name: later.origins(host, have) for have in whole}
    sizes = {have.name: have.size + sum(f.size for f in have.files if f.path in given[have.name].real) for have in whole}
    total, before = sum(sizes.values()), 0
    actions: List[Action] = []
    for have in whole:
        start = before

        def tick(done: int, start: int = start) -> None:
            told(start + done, total)

        read = _compare(host, have, given[have.name], threads or copy.threads_here(), tick, pace)
        if read.bad and repair:
            with host.lock(manifest.LOCK, manifest.TURN_SECONDS):
                read, action = _repair(host, have, read.bad, threads)
            actions.append(action)
        found.append(_noted(host, have, read) if read.files != have.files else read.said)
        before += sizes[have.name]
    changed = any(effect["effect"] in ("repair", "replace") for effect in host.effects)
    return Report("stage verify", host.uname()[0], {"bytes": str(total)}, tuple(found), (), tuple(actions), tuple(host.effects),
                  changed, "apply" if repair else "plan")


def _copies(host: Host, names: Sequence[str]) -> List[str]:
    there = manifest.names(host)
    if not names:
        return there
    out: List[str] = []
    for name in names:
        manifest.check_name(manifest.model_of(name))
        out += [one for one in there if one == name or manifest.model_of(one) == name] or [name]
    return out


def _compare(host: Host, have: Manifest, given: Origins, threads: int, ticked: Callable[[int], None],
             pace: Pace = FREE) -> _Read:
    """Every byte of it, and of the sources that stand in for a digest."""
    folder = manifest.folder_of(have.name)
    bad: Dict[str, str] = {}

    def told(one: Tuple[str, str]) -> None:
        if one[1] and one[0].startswith(folder + "/"):
            bad.setdefault(one[0][len(folder) + 1:], one[1])

    known = [f for f in have.files if f.sha256 or f.chunks or not f.size]
    work = [("%s/%s" % (folder, f.path), f.size, f.sha256, f.chunks, have.chunk) for f in known]
    try:
        digests = copy.compare(work + later.rows(have, given), threads, told, ticked, pace)
        given = later.still(host, have, given)
    except OSError as e:
        words = "%s could not be read: %s: %s" % (have.name, e.filename or folder, errname(e))
        hint = Hint("sudo " + findings.verify_command(have), "host", "reads what root alone may", "apply")
        denied = errname(e) == "EACCES" and host.who().uid != 0
        return _Read(finding("HT502", ERROR, have.name, words, hint=hint if denied else Hint()), {}, have.files)
    settled = later.settle(have, given, digests, bad)
    return _Read(_said(have, given, {**bad, **settled.wrong}, len(known)), {**bad, **settled.wrong}, settled.files)


def _said(have: Manifest, given: Origins, bad: Mapping[str, str], known: int) -> Finding:
    if bad:
        lines = ["%s: %s" % (manifest.shown(path), why) for path, why in sorted(bad.items())]
        count = "%d of %d files" % (len(bad), len(have.files))
        hint = Hint("hosttune stage verify --repair %s" % have.name, "host", "copies the damaged chunks again", "apply")
        return finding("HT502", FAIL, have.name, "%s is damaged in memory: %s" % (have.name, count), have=lines[0],
                       hint=hint, evidence=tuple(lines[:3]))
    if given.lost:
        return findings.not_comparable(have, given)
    without = len(have.files) - known - len(given.real)
    if without:
        return finding("HT502", ERROR, have.name, "%d files have no digest" % without)
    words = "all %s of %d files are what was copied" % (space.size_text(have.size), len(have.files))
    return finding("HT502", OK, have.name, words)


def _noted(host: Host, have: Manifest, read: _Read) -> Finding:
    """Write down what is known now, and say what is to be said of that."""
    if host.who().uid:
        return findings.not_noted(have, "root alone can note that") if read.said.status == OK else read.said
    with host.lock(manifest.LOCK, manifest.TURN_SECONDS):
        was = manifest.raw(host, have.name)
        if was is None or manifest.load(host, have.name) != have:
            return finding("HT502", ERROR, have.name, "%s was staged anew or dropped while it was read" % have.name,
                           hint=Hint(findings.verify_command(have), "host", "reads what is there now", "look"))
        try:
            host.replace(manifest.manifest_path(have.name), manifest.dump(replace(have, files=read.files)), digest(was))
        except OSError as e:  # somebody else has filled the tmpfs
            why = "that could not be noted: %s: %s" % (e.filename, e.strerror)
            return findings.not_noted(have, why) if read.said.status == OK else read.said
    return read.said


def _repair(host: Host, have: Manifest, bad: Mapping[str, str], threads: int) -> Tuple[_Read, Action]:
    """Copy the damaged chunks of these files again, and compare once more. A source that cannot mend them is a finding."""
    mended = 0
    argv = ("hosttune", "stage", "verify", "--repair", have.name)
    action = Action("repair", have.name, argv, "%d files are damaged" % len(bad))
    try:
        for file in (f for f in have.files if f.path in bad):
            mended += _mend(host, have, file, threads)
    except (OSError, Refused) as e:
        what = e.what if isinstance(e, Refused) else "%s: %s" % (e.filename, e.strerror)
        again = "hosttune stage drop %s && %s" % (manifest.model_of(have.name), findings.add_command(have))
        said = finding("HT502", FAIL, have.name, "%s is damaged in memory and was not mended: %s" % (have.name, what),
                       have=next(iter(bad.values())), hint=Hint(again, "host", "copies all of it again", "apply"),
                       evidence=(e.where,) if isinstance(e, Refused) and e.where else ())  # fmt: skip
        return _Read(said, bad, have.files), action
    host.effects.append({"effect": "repair", "target": manifest.folder_of(have.name), "bytes": mended})
    read = _compare(host, have, later.origins(host, have), threads or copy.threads_here(), lambda done: None)
    if read.bad:
        return read, action
    words = "%s is whole again: %s in %d files copied anew" % (have.name, space.size_text(mended), len(bad))
    return (replace(read, said=finding("HT502", OK, have.name, words)) if read.said.status == OK else read), action


def _mend(host: Host, have: Manifest, file: Staged, threads: int) -> int:
    """Bytes that were copied again into one file."""
    if sources.ssh_of(have.source) and not have.folder.startswith(manifest.MOUNT):
        raise Refused("its source is on another machine, which is asked for whole files only", have.source)
    source = sources.real_path(host, "%s/%s" % (have.folder, file.path))
    target = "%s/%s" % (manifest.folder_of(have.name), file.path)
    theirs = copy.chunk_digests(source, have.chunk, threads)
    if file.chunks and tuple(theirs) != file.chunks:
        raise Refused("its source is no longer what was copied", source, "stage it from another source")
    if file.sha256:
        wrong: List[str] = []
        copy.compare([(source, file.size, file.sha256, (), have.chunk)], 1, lambda one: wrong.append(one[1]), lambda done: None)
        if any(wrong):
            raise Refused("its source is damaged too", source, "download that file again")
    ours = copy.chunk_digests(target, have.chunk, threads)
    if len(ours) != len(theirs):
        raise Refused("its source has another length now", source, findings.add_command(have))
    numbers = [n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b]
    copy.copy_chunks(source, target, numbers, have.chunk, threads=threads)
    return sum(min((n + 1) * have.chunk, file.size) - n * have.chunk for n in numbers)
