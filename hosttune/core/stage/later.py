# SPDX-License-Identifier: Apache-2.0
"""What was copied at memory speed and not hashed (`--hash later`): what its verification needs, and what that leaves behind.

A file whose hash the hub knows is compared with that. Any other is compared with its source, both hashed chunk by chunk side by
side, while the source is still what was copied: size and time say so, before and after. Its digests then stand in the manifest,
and nobody needs the source again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Collection, Dict, List, Mapping, Tuple

from ..door.host import Host, errname
from . import manifest, source
from .manifest import Manifest, Staged


@dataclass(frozen=True)
class Origins:
    """Of files without a known hash, by path in the model. real: the source's real path. lost: why there is none to compare
    with. changed: it is there, and no longer what was copied. denied: it may be, and who asks may not look at it."""

    real: Mapping[str, str]
    lost: Mapping[str, str]
    changed: bool = False
    denied: bool = False


@dataclass(frozen=True)
class Settled:
    """files: all of the model, with what is known of them now. wrong: what differs from its source, by path."""

    files: Tuple[Staged, ...]
    wrong: Mapping[str, str]


def origins(host: Host, have: Manifest) -> Origins:
    """Where each file that was not hashed can be compared. Looks, reads nothing."""
    real: Dict[str, str] = {}
    lost: Dict[str, str] = {}
    changed = denied = False
    for file in have.unhashed:
        if file.sha256:
            continue
        named = "%s/%s" % (have.folder, file.path)
        try:
            path = source.real_path(host, named)
            now = host.lstat(path)
        except OSError as e:
            why = "is gone" if errname(e) in ("ENOENT", "ENOTDIR") else "cannot be looked at"
            lost[file.path] = "its source %s %s (%s)" % (manifest.shown(named), why, errname(e))
            denied = denied or errname(e) == "EACCES"
            continue
        if (now.type, now.size, now.mtime) == ("file", file.size, file.mtime):
            real[file.path] = path
        else:
            lost[file.path], changed = "its source %s has changed since" % manifest.shown(named), True
    return Origins(real, lost, changed, denied)


def still(host: Host, have: Manifest, given: Origins) -> Origins:
    """The same after the reading: what changed meanwhile is lost."""
    now = origins(host, have)
    real = {path: at for path, at in given.real.items() if now.real.get(path) == at}
    moved = {path: "its source %s moved while it was read" % manifest.shown(at) for path, at in given.real.items()
             if path not in real}  # fmt: skip
    return Origins(real, {**moved, **given.lost, **now.lost}, given.changed or now.changed, given.denied)


def rows(have: Manifest, given: Origins) -> List[Tuple[str, int, str, Tuple[str, ...], int]]:
    """What copy.compare shall hash besides: both sides of each."""
    sizes = {file.path: file.size for file in have.files}
    paths = [(path, side) for path, real in given.real.items() for side in (staged_path(have, path), real)]
    return [(side, sizes[path], "", (), have.chunk) for path, side in paths]


def staged_path(have: Manifest, path: str) -> str:
    """A file of the model in memory."""
    return "%s/%s" % (manifest.folder_of(have.name), path)


def settle(have: Manifest, given: Origins, digests: Mapping[str, Tuple[str, ...]], bad: Collection[str]) -> Settled:
    """digests: of both sides, by path on this machine. bad: files that are not what their known hash says."""
    files, wrong = [], {}
    for file in have.files:
        if file not in have.unhashed or file.path in bad:
            files.append(file)
        elif file.sha256:
            files.append(replace(file, hashed=True))
        elif file.path not in given.real:
            files.append(file)
        else:
            ours, theirs = digests[staged_path(have, file.path)], digests[given.real[file.path]]
            differ = [number for number, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]]
            if differ:
                end = min((differ[0] + 1) * have.chunk, file.size)
                wrong[file.path] = "bytes %d to %d are not what its source holds" % (differ[0] * have.chunk, end)
            files.append(file if differ else replace(file, chunks=ours, hashed=True))
    return Settled(tuple(files), wrong)
