# SPDX-License-Identifier: Apache-2.0
"""Rule INDEX: every shard that belongs to a model is there, and every tensor that its index names is in the shard named. An index
that leaves shards out is none: engines load what it names, and nothing else."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .candidate import WEIGHTS, Candidate
from .source import AGAIN, File, NotWhole

_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{3,6})-of-(?P<of>\d{3,6})(?P<end>\.[a-z]+)\Z")
_INDICES = tuple(ending + ".index.json" for ending in WEIGHTS)
_Group = Tuple[str, int, str]
"""(stem, how many, ending) of files named NAME-00001-of-00003.ENDING, GGUF's splits too."""


def complete(model: Candidate) -> None:
    """Raises NotWhole."""
    for path, file in model.files.items():
        if path.endswith(".index.json"):
            _check_index(model, model.json(path) or {}, file)
    for group, numbers in _groups(model.files).items():
        missing = sorted(set(range(1, group[1] + 1)) - numbers)
        if missing:
            raise NotWhole("INDEX", "%d of %d shards are missing, first %s-%05d-of-%05d%s" % (
                len(missing), group[1], group[0], missing[0], group[1], group[2]), model.source.folder, AGAIN)
        _one_owner(model, sorted(path for path in model.tensors if group_of(path) == group))
    _not_side_by_side(model)
    shards = [f.path for f in model.weights if f.path.startswith("model") and f.path.endswith(".safetensors")]
    loose = [f.path for f in model.weights if f.path.startswith(("consolidated", "pytorch_model"))]
    if loose and shards:
        model.doubt("INDEX", "%s holds the same weights as the shards beside it: both are staged" % loose[0],
                    model.files[loose[0]].source)


def _not_side_by_side(model: Candidate) -> None:
    """Without an index nothing says that files of other names belong together; an engine then opens all of them, or one."""
    whole = {group_of(path) or path for path in model.tensors if "/" not in path and not path.startswith("consolidated")}
    if len(whole) > 1 and not any(path.endswith(".index.json") and "/" not in path for path in model.files):
        names = sorted(one if isinstance(one, str) else one[0] for one in whole)
        model.doubt("INDEX", "%s and %s lie side by side, and no index says that they are one model" % (names[0], names[1]),
                    model.source.folder)


def of_another_form(model: Candidate, index: str) -> bool:
    """Whether an index is one of .bin, .h5 or .msgpack shards beside safetensors, which engines open in their place: a download
    leaves those out, with or without their index."""
    return not index.endswith(".safetensors.index.json") and any(f.path.endswith(".safetensors") for f in model.weights)


def group_of(path: str) -> Optional[_Group]:
    """The shards that a file belongs to by its name; None for one that stands alone."""
    part = _NUMBERED.match(path)
    return (part["stem"], int(part["of"]), part["end"]) if part else None


def _groups(files: Mapping[str, File]) -> Dict[_Group, Set[int]]:
    """The numbers that are there of each."""
    found: Dict[_Group, Set[int]] = {}
    for path in files:
        part, group = _NUMBERED.match(path), group_of(path)
        if part and group:
            found.setdefault(group, set()).add(int(part["number"]))
    return found


def _check_index(model: Candidate, index: Dict[str, Any], file: File) -> None:
    named = index.get("weight_map", {})
    folder = file.path.rpartition("/")[0]
    prefix = folder + "/" if folder else ""
    if not isinstance(named, dict):
        raise NotWhole("JSON", "its weight_map is no map", file.source, AGAIN)
    if not named and file.path.endswith(_INDICES):
        raise NotWhole("INDEX", "it names no tensor", file.source, AGAIN)
    shards = {prefix + str(name) for name in named.values()}
    missing = sorted(name for name in shards if name not in model.files)
    if len(missing) == len(shards) and of_another_form(model, file.path):
        return
    if missing:
        raise NotWhole("INDEX", "%d of %d shards are missing, first %s" % (len(missing), len(shards), missing[0]),
                       file.source, AGAIN)
    lost = [(tensor, prefix + str(shard)) for tensor, shard in named.items()
            if prefix + str(shard) in model.tensors and tensor not in model.tensors[prefix + str(shard)]]
    if lost:
        raise NotWhole("INDEX", "%d tensors are not in the shard that the index names, first %s" % (len(lost), lost[0][0]),
                       model.files[lost[0][1]].source, AGAIN)
    groups = {group_of(shard) for shard in shards} - {None}
    silent = sorted(path for path in model.files if group_of(path) in groups and path not in shards)
    if silent:
        raise NotWhole("INDEX", "it names no tensor of %s" % silent[0], file.source, AGAIN)
    _one_owner(model, sorted(shards))
    more = [tensor for shard in sorted(shards) for tensor in model.tensors.get(shard, ()) if tensor not in named]
    if more:
        model.doubt("INDEX", "%d tensors of its shards are not in the index, first %s" % (len(more), more[0]), file.source)
    _total(model, index, file, sorted(shards))


def _one_owner(model: Candidate, shards: Sequence[str]) -> None:
    owner: Dict[str, str] = {}
    for shard in shards:
        for tensor in model.tensors.get(shard, {}):
            if tensor in owner:
                raise NotWhole("HEADER", "%s stands in %s too: shards of two versions" % (tensor, owner[tensor]),
                               model.files[shard].source, AGAIN)
            owner[tensor] = shard


def _total(model: Candidate, index: Dict[str, Any], file: File, shards: List[str]) -> None:
    """Some writers count differently after quantisation, so a difference is a doubt only."""
    metadata = index.get("metadata")
    said = metadata.get("total_size") if isinstance(metadata, dict) else None
    if said is not None and all(shard in model.tensors for shard in shards):
        have = sum(t.end - t.start for shard in shards for t in model.tensors[shard].values())
        if have != said:
            model.doubt("INDEX", "the index says %s bytes of tensors, and the shards hold %d" % (said, have), file.source)
