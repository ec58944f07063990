# SPDX-License-Identifier: Apache-2.0
"""hosttune stage status, verify, drop: what is in memory, whether it is whole, and how to be rid of it."""

from __future__ import annotations

import shlex
from typing import Callable, Dict, List, Mapping, Sequence, Set, Tuple

from ..catalogue import finding
from ..host import Host, digest, errname
from ..model import ERROR, FAIL, OK, SKIP, WARN, Action, Finding, Hint, Refused, Report
from . import add, copy, manifest, space, tmpfs, use
from .manifest import Manifest
from .tmpfs import Place

Ticked = Callable[[int, int], None]


def status(host: Host, declared: Mapping[str, str], caches: Sequence[str] = ()) -> Report:
    """Every declared model (name -> source) and every other one that is staged; the tmpfs; the room that is left.

    Reads names, sizes, times and manifests, no weights. Raises Refused when the place is not hosttune's, and OSError.
    """
    here = tmpfs.see(host)
    found = _place(here, bool(declared) or bool(manifest.names(host)))
    actions: List[Action] = []
    for name, spec in declared.items():
        try:
            seen = add.plan(host, name, spec, caches)
        except (Refused, OSError) as e:
            found.append(add.refused(name, e))
            continue
        if seen.too_much:
            found.append(add.does_not_fit(name, seen.too_much))
        else:
            found += [add.well(seen)] if seen.done else [add.missing(seen)]
            actions += [] if seen.done else add.actions(seen)
    for name in manifest.names(host):
        if name not in declared:
            found.append(_staged(host, name))
    return Report("stage status", host.uname()[0], _facts(host, here), tuple(found), (), tuple(actions), mode="plan")


def _facts(host: Host, here: Place) -> Dict[str, str]:
    now = space.memory(host)
    out = {"room": space.size_text(now.room), "memory": now.words, "mount": "none"}
    if here.mounted:
        out["mount"] = "%s of %s used (%s)" % (space.size_text(here.mounted.used), space.size_text(here.mounted.size),
                                               ",".join(here.mounted.options))
    return out


def _place(here: Place, wanted: bool) -> List[Finding]:
    if here.mounted is None:
        if not wanted:
            return []
        return [finding(tmpfs.FINDING, FAIL, manifest.MOUNT, "no tmpfs of hosttune is mounted at %s" % manifest.MOUNT,
                        have="not mounted", want="a tmpfs", hint=Hint("hosttune stage add MODEL", "host", "makes it", "apply"))]
    out = []
    if here.systemd and here.unit is None:
        out.append(finding(tmpfs.FINDING, WARN, manifest.MOUNT, "the tmpfs would not be there after a reboot: no %s" % tmpfs.UNIT,
                           hint=Hint("hosttune stage add MODEL", "host", "nothing is copied again", "apply")))
    else:
        out.append(finding(tmpfs.FINDING, OK, manifest.MOUNT, "the tmpfs of hosttune is mounted"))
    return out + [_huge(here)]


def _huge(here: Place) -> Finding:
    have = here.mounted.option("huge") if here.mounted else ""
    what = "the tmpfs for models"
    if not here.huge:
        return finding("HT504", SKIP, manifest.MOUNT, "this kernel has no huge pages for shared memory")
    if here.huge == "deny":
        return finding("HT504", WARN, manifest.MOUNT, "%s gets small pages: %s is deny" % (what, tmpfs.THP), have="deny",
                       hint=Hint("echo never > %s" % tmpfs.THP, "host", "then hosttune stage drop and add each model", "apply"))
    if have in ("within_size", "always"):
        return finding("HT504", OK, manifest.MOUNT, "%s has huge pages (%s)" % (what, have), have=have, want="within_size")
    command = "mount -o remount,nosuid,nodev,noexec,huge=within_size %s" % manifest.MOUNT
    hint = Hint(command, "host", "counts for what is staged from then on: drop and add each model", "apply")
    return finding("HT504", WARN, manifest.MOUNT, "%s has small pages: huge=%s" % (what, have or "never"), have=have or "never",
                   want="within_size", hint=hint)


def _staged(host: Host, name: str) -> Finding:
    """A model by its manifest alone: its source is not declared here."""
    try:
        have = manifest.load(host, name)
    except Refused as e:
        return finding("HT502", FAIL, name, "%s: %s" % (name, e.what), hint=Hint(e.way_out, "host", "", "apply"),
                       evidence=(e.where,))
    drop = Hint("hosttune stage drop %s" % name, "host", "frees its memory", "apply")
    if have is None:
        return finding("HT502", WARN, name, "%s was copied in part, and no run goes on with it" % name, hint=drop)
    wrong = manifest.damage(host, manifest.folder_of(name), have.files)
    words = "%d files, %s" % (len(have.files), space.size_text(have.size))
    if wrong:
        return _damaged(have, wrong)
    return finding("HT501", OK, name, "%s in memory, from %s" % (words, have.source), have=words)


def _damaged(have: Manifest, wrong: Sequence[str]) -> Finding:
    count = "%d of %d files are wrong" % (len(wrong), len(have.files))
    return finding("HT502", FAIL, have.name, "%s is not whole: %s" % (have.name, count), have=wrong[0],
                   want="as in %s" % manifest.manifest_path(have.name), evidence=tuple(wrong[:3]),
                   hint=Hint(_add(have), "host", "copies what is wrong again", "apply"))


def _add(have: Manifest) -> str:
    return "hosttune stage add %s --source %s" % (have.name, shlex.quote(have.source))


def verify(host: Host, names: Sequence[str], told: Ticked = lambda done, total: None, threads: int = 0) -> Report:
    """Read every byte of these models (of all that are staged, if none is named) and compare digests. Changes nothing.

    told(bytes read, bytes to read). A model that is named and not staged is a failure.
    """
    tmpfs.see(host)
    found: List[Finding] = []
    whole: List[Manifest] = []
    for name in names or manifest.names(host):
        have = manifest.load(host, manifest.check_name(name))
        if have is None:
            found.append(finding("HT501", FAIL, name, "%s is not staged" % name,
                                 hint=Hint("hosttune stage add %s" % name, "host", "", "apply")))
            continue
        wrong = manifest.damage(host, manifest.folder_of(name), have.files)
        if wrong:
            found.append(_damaged(have, wrong))
        else:
            whole.append(have)
    total, before = sum(have.size for have in whole), 0
    for have in whole:
        start = before
        found.append(_compare(have, threads or copy.threads_here(), lambda done, start=start: told(start + done, total)))  # type: ignore[misc]
        before += have.size
    return Report("stage verify", host.uname()[0], {"bytes": str(total)}, tuple(found), mode="plan")


def _compare(have: Manifest, threads: int, ticked: Callable[[int], None]) -> Finding:
    folder = manifest.folder_of(have.name)
    bad: Dict[str, str] = {}
    seen: Set[str] = set()

    def told(one: Tuple[str, str]) -> None:
        seen.add(one[0])
        if one[1]:
            bad.setdefault(one[0][len(folder) + 1:], one[1])

    hashed = [f for f in have.files if f.sha256 or f.chunks or not f.size]
    work = [("%s/%s" % (folder, f.path), f.size, f.sha256, f.chunks, have.chunk) for f in hashed]
    try:
        copy.compare(work, threads, told, ticked)
    except OSError as e:
        return finding("HT502", ERROR, have.name, "%s could not be read: %s: %s" % (have.name, e.filename or folder, errname(e)))
    if bad:
        again = "hosttune stage drop %s && %s" % (have.name, _add(have))
        lines = ["%s: %s" % (manifest.shown(path), why) for path, why in sorted(bad.items())]
        count = "%d of %d files" % (len(bad), len(have.files))
        return finding("HT502", FAIL, have.name, "%s is damaged in memory: %s" % (have.name, count), have=lines[0],
                       hint=Hint(again, "host", "copies all of it again", "apply"), evidence=tuple(lines[:3]))
    if len(hashed) < len(have.files):
        return finding("HT502", ERROR, have.name, "%d files have no digest" % (len(have.files) - len(hashed)))
    size = space.size_text(have.size)
    return finding("HT502", OK, have.name, "all %s of %d files are what was copied" % (size, len(have.files)))


def drop(host: Host, name: str, force: bool = False, dry_run: bool = False) -> Report:
    """Remove a model, whole or half, and its manifest first. Refused while somebody has it mapped, unless forced."""
    here = tmpfs.see(host)
    manifest.check_name(name)
    paths = [manifest.folder_of(name), manifest.partial_path(name), manifest.done_path(name)]
    was = manifest.raw(host, name)
    there = [path for path in paths if manifest.exists(host, path)]
    known = was is not None or any(path != paths[0] for path in there)
    if not known:
        others = ", ".join(manifest.names(host)) or "none"
        raise Refused("%s is not staged" % name, manifest.MOUNT, "staged: %s" % others)
    used = use.users(host, here, name)
    if used and not force:
        raise Refused("%s is in use by %s" % (name, use.words(used)), manifest.folder_of(name),
                      "stop the engine first; with --force its memory stays taken until that process ends")
    action = Action("drop", name, ("hosttune", "stage", "drop", name), "it was asked for", ("the copy of %s in memory" % name,))
    if not dry_run:
        if host.who().uid != 0:
            raise Refused("root is needed to drop a model", manifest.MOUNT, "sudo hosttune stage drop %s" % name)
        with host.lock(add.LOCK):
            if was is not None:
                host.remove(manifest.manifest_path(name), digest(was))
            for path in there:
                copy.remove(path)
                host.effects.append({"effect": "drop", "target": path})
    return Report("stage drop", host.uname()[0], {"model": name}, (), (), (action,), tuple(host.effects), not dry_run,
                  "plan" if dry_run else "apply")
