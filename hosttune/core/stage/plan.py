# SPDX-License-Identifier: Apache-2.0
"""What is there of one copy of a model, and what is to be done: pure looking, no weights are read and nothing is written."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ..door.host import Host
from ..model import Action, Refused
from . import begun, downloads, evict, manifest, nodes, over_ssh, source, space, tmpfs, whole
from .evict import Evictable
from .manifest import Manifest, Staged
from .nodes import Copy
from .pace import FREE, Pace
from .source import Doubt, File, NotWhole, Source
from .tmpfs import Place

PIN = "PIN"
"""The doubt that belongs to what is declared, not to what is staged."""
MISSING = ("NO_SNAPSHOT", "EMPTY", "DANGLING", "PARTIAL", "INDEX", "SIZE", "TOKENIZER")
"""Rules that a download may mend."""
Fetch = Callable[[str, str, Sequence[str]], None]
"""Bring a revision of a repository of the hub into the first of these caches: (repository, revision, caches). Raises Refused."""


@dataclass(frozen=True)
class Wanted:
    """A model as it is declared. others: bytes of all other models that shall fit beside it. engines: bytes that engines still
    need beside their models. taken: bytes that running ones have for that. declared: names of all declared models, which are
    evicted last. fetch: None where nothing may be fetched. pace: how hard the copy may work. hashed: on its way; else
    `stage verify` does it later."""

    name: str
    spec: str
    caches: Tuple[str, ...] = ()
    placement: str = nodes.INTERLEAVE
    others: int = 0
    engines: int = 0
    evict: bool = False
    declared: FrozenSet[str] = frozenset()
    fetch: Optional[Fetch] = None
    pace: Pace = FREE
    hashed: bool = True
    taken: int = 0


@dataclass(frozen=True)
class Plan:
    """What is there and what is to be done. kept: files of an earlier copy that are whole. todo: what is missing. parts: chunks
    of those that are there, by path (begun.py). freed: bytes of an older copy that go first. size: of the mount. too_much: why it
    does not fit, "" if it does. evictable: what would make room, in the order in which it would go. node: the copy is bound to.
    declared: the model is, so that its name alone says where it comes from."""

    name: str
    source: Source
    place: Place
    staged: Optional[Manifest]
    kept: Mapping[str, Staged]
    todo: Tuple[File, ...]
    freed: int
    size: int
    too_much: str
    node: str = ""
    doubts: Tuple[Doubt, ...] = ()
    evictable: Tuple[Evictable, ...] = field(default=())
    declared: bool = False
    parts: Mapping[str, begun.Chunks] = field(default_factory=dict)

    @property
    def argv(self) -> Tuple[str, ...]:
        """The command that stages it."""
        words = ("hosttune", "stage", "add", manifest.model_of(self.name))
        return words if self.declared else (*words, "--source", self.source.spec)

    @property
    def command(self) -> str:
        """The same, as a person pastes it."""
        return shlex.join(self.argv)

    @property
    def there(self) -> int:
        """Bytes of files to copy that an earlier run has copied."""
        return sum(begun.size_of(file.size, self.parts.get(file.path, ())) for file in self.todo)

    @property
    def need(self) -> int:
        """Bytes to copy."""
        return sum(file.size for file in self.todo) - self.there

    @property
    def done(self) -> bool:
        """The model is staged, whole, and what its source holds now."""
        return self.staged is not None and not self.todo and len(self.kept) == len(self.staged.files)


def plan(host: Host, wanted: Wanted, copy: Optional[Copy] = None) -> Plan:
    """Look at the source and at what is staged. copy: which of the model's copies, the first by default.

    Raises Refused (a source that is no whole model, a place that is not ours) and OSError. Reads no weights. A source that
    cannot be read any more does not make a staged model less whole.
    """
    manifest.check_name(wanted.name)
    copy = copy or nodes.copies(host, wanted.name, wanted.placement)[0]
    here = tmpfs.see(host)
    staged = manifest.load(host, copy.name)
    try:
        given = _source(host, wanted, copy, staged)
        kept = _kept(host, copy, staged, given)
        todo = tuple(file for file in given.files if file.path not in kept)
        if todo or staged is None:
            doubts = given.doubts if given.machine else whole.refuse_unless_whole(host, given, wanted.hashed)
        else:
            doubts = tuple(Doubt(*row) for row in staged.doubts)
    except NotWhole as e:
        raise downloads.told(host, wanted.spec, wanted.caches, e) if e.code in MISSING else e
    doubts += _unpinned(wanted, given)
    freed, there = _freed(host, copy.name, kept), here.mounted.used if here.mounted else 0
    now = replace(space.memory(host), engines=wanted.engines, taken=wanted.taken)
    need = sum(file.size for file in todo)
    total = need + given.size * _copies_to_come(host, wanted, copy)
    size = _size(here, there - freed, total, given.size + wanted.others, there + now.room)
    seen = Plan(copy.name, given, here, staged, kept, todo, freed, size, space.fit(total, freed, there, now), copy.node, doubts,
                declared=wanted.name in wanted.declared)  # fmt: skip
    if not staged and todo:
        seen = replace(seen, parts=begun.left(host, copy, todo, wanted.hashed or bool(given.machine)))
    if not seen.too_much and copy.node and need - freed > nodes.room(host, copy.node):
        seen = replace(seen, too_much="%s are wanted and NUMA node %s has room for %s" % (
            space.size_text(need), copy.node, space.size_text(nodes.room(host, copy.node) + freed)))
    if not seen.too_much and here.mounted and here.mounted.inodes is not None:
        seen = replace(seen, too_much=space.inodes(len(todo) - len(seen.parts), here.mounted.inodes))
    if seen.too_much:
        short = total - freed - now.left
        if copy.node:
            short = max(short, need - freed - nodes.room(host, copy.node))
        gone = evict.choose(host, here, wanted.name, copy.node, wanted.declared, short)
        less = there - freed - sum(one.size for one in gone)
        seen = replace(seen, evictable=gone, size=_size(here, less, total, given.size + wanted.others, there + now.room))
    return seen


def _copies_to_come(host: Host, wanted: Wanted, copy: Copy) -> int:
    """How many copies after this one are not in memory yet: all shall fit before the first is made."""
    names = [one.name for one in nodes.copies(host, wanted.name, wanted.placement)]
    return sum(1 for name in names[names.index(copy.name) + 1 :] if manifest.raw(host, name) is None)


def _source(host: Host, wanted: Wanted, copy: Copy, staged: Optional[Manifest]) -> Source:
    """The source's files. Copies after the first come from it, from memory to memory, if it was hashed: what a copy of an
    unverified one is compared with must not be that one. Another machine is not asked while the
    staged model is whole: what is staged answers for it."""
    first = manifest.load(host, wanted.name) if copy.name != wanted.name else None
    good = first is not None and first.source == wanted.spec and not first.unhashed
    if first and good and not manifest.damage(host, manifest.folder_of(first.name), first.files):
        return _as_source(first, manifest.folder_of(first.name))
    sound = staged is not None and staged.source == wanted.spec and not manifest.damage(
        host, manifest.folder_of(copy.name), staged.files)
    if staged and sound and source.ssh_of(wanted.spec):
        return _as_source(staged, staged.folder)
    try:
        if wanted.spec.startswith(manifest.MOUNT):  # of another machine it may
            raise Refused("it lies in hosttune's own tmpfs, which the next boot empties", wanted.spec,
                          "name a directory on a disk")  # fmt: skip
        return over_ssh.read(host, wanted.spec) if source.ssh_of(wanted.spec) else source.read(host, wanted.spec, wanted.caches)
    except Refused:
        if staged is None or not sound:
            raise
        return _as_source(staged, staged.folder)


def _size(here: Place, kept: int, need: int, declared: int, most: int) -> int:
    """Of the mount, bytes. One that is large enough is not remounted for the sake of other numbers."""
    if here.mounted and (not need or here.mounted.size >= kept + need + tmpfs.MARGIN_LEAST):
        return here.mounted.size
    return tmpfs.size_for(max(kept + need, declared), most)


def _unpinned(wanted: Wanted, given: Source) -> Tuple[Doubt, ...]:
    hub = source.hub_of(wanted.spec)
    if hub is None or hub[1] == given.revision:
        return ()
    what = "%s is a branch or a tag, which can move; here it is commit %s" % (hub[1], given.revision)
    return (Doubt(PIN, what, wanted.spec),)


def _as_source(staged: Manifest, folder: str) -> Source:
    files = tuple(File(f.path, "%s/%s" % (folder, f.path), f.size, f.mtime, f.sha256) for f in staged.files)
    return Source(staged.source, folder, folder, files, staged.revision)


def may_fetch(wanted: Wanted, e: Exception) -> bool:
    """Whether what is missing can be had from the hub, and may."""
    return wanted.fetch is not None and is_missing(wanted.spec, e)


def is_missing(spec: str, e: Exception) -> bool:
    """Whether the hub has what is missing here. What is there and wrong is not fetched again: its owner removes it."""
    return isinstance(e, NotWhole) and e.code in MISSING and source.hub_of(spec) is not None


def _kept(host: Host, copy: Copy, staged: Optional[Manifest], given: Source) -> Dict[str, Staged]:
    """Files of the staged or the partial copy that are whole, still what the source holds, and on the node that is wanted."""
    name = copy.name
    found, folder, node = manifest.done(host, name), manifest.partial_path(name), manifest.done_node(host, name)
    if staged:
        found, folder, node = {file.path: file for file in staged.files}, manifest.folder_of(name), staged.node
    elif found and not manifest.exists(host, folder):
        folder = manifest.folder_of(name)  # killed between the rename and the manifest
    wanted = {file.path: file for file in given.files} if node == copy.node else {}
    kept = {}
    for path, file in found.items():
        want = wanted.get(path)
        same = want is not None and (want.size, want.mtime) == (file.size, file.mtime)
        if want and same and want.sha256 == file.sha256 and not manifest.damage(host, folder, (file,)):
            kept[path] = file
    return kept


def _freed(host: Host, name: str, kept: Mapping[str, Staged]) -> int:
    """Bytes of files that go before the copy starts: of an older version, or of a copy that was cut short."""
    total = 0
    for folder in (manifest.folder_of(name), manifest.partial_path(name)):
        if manifest.exists(host, folder):
            total += manifest.bytes_below(host, folder)
    return max(0, total - sum(file.size for file in kept.values()))


def actions(seen: Plan) -> List[Action]:
    """What would be done, as data."""
    todo, argv, why = tmpfs.plan(seen.place, seen.size)
    model = manifest.model_of(seen.name)
    out = [Action("drop", one.name, ("hosttune", "stage", "drop", one.name), "%s needs its room" % model,
                  ("the copy of %s in memory" % one.name,)) for one in seen.evictable]
    out += [Action("mount", manifest.MOUNT, argv, why)] if todo else []
    if not seen.done:
        count = "%d of %d files, %s" % (len(seen.todo), len(seen.source.files), space.size_text(seen.need))
        bound = " on NUMA node %s" % seen.node if seen.node else ""
        at = "%s:%s" % (seen.source.machine, seen.source.folder) if seen.source.machine else seen.source.folder
        out.append(Action("copy", seen.name, seen.argv,
                          "%s from %s %s not in memory%s" % (count, at, "is" if len(seen.todo) == 1 else "are", bound),
                          costs="%s of memory" % space.size_text(seen.need)))
    return out
