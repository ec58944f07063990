# SPDX-License-Identifier: Apache-2.0
"""Rule INDEX: every shard that belongs to a model is there, and every tensor that its index names is in the shard named."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Set, Tuple

from .candidate import Candidate
from .source import AGAIN, File, NotWhole

_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{3,6})-of-(?P<of>\d{3,6})(?P<end>\.[a-z]+)\Z")


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
    shards = [f.path for f in model.weights if f.path.startswith("model") and f.path.endswith(".safetensors")]
    loose = [f.path for f in model.weights if f.path.startswith(("consolidated", "pytorch_model"))]
    if loose and shards:
        model.doubt("INDEX", "%s holds the same weights as the shards beside it: both are staged" % loose[0],
                    model.files[loose[0]].source)


def _groups(files: Mapping[str, File]) -> Dict[Tuple[str, int, str], Set[int]]:
    """(stem, how many, ending) -> numbers that are there, of files named NAME-00001-of-00003.ENDING, GGUF's splits too."""
    found: Dict[Tuple[str, int, str], Set[int]] = {}
    for path in files:
        part = _NUMBERED.match(path)
        if part:
            found.setdefault((part["stem"], int(part["of"]), part["end"]), set()).add(int(part["number"]))
    return found


def _check_index(model: Candidate, index: Dict[str, Any], file: File) -> None:
    named = index.get("weight_map", {})
    folder = file.path.rpartition("/")[0]
    prefix = folder + "/" if folder else ""
    if not isinstance(named, dict):
        raise NotWhole("JSON", "its weight_map is no map", file.source, AGAIN)
    shards = {prefix + str(name) for name in named.values()}
    missing = sorted(name for name in shards if name not in model.files)
    if missing:
        raise NotWhole("INDEX", "%d of %d shards are missing, first %s" % (len(missing), len(shards), missing[0]),
                       file.source, AGAIN)
    lost = [(tensor, prefix + str(shard)) for tensor, shard in named.items()
            if prefix + str(shard) in model.tensors and tensor not in model.tensors[prefix + str(shard)]]
    if lost:
        raise NotWhole("INDEX", "%d tensors are not in the shard that the index names, first %s" % (len(lost), lost[0][0]),
                       model.files[lost[0][1]].source, AGAIN)
    _one_owner(model, sorted(shards))
    _total(model, index, file, sorted(shards))


def _one_owner(model: Candidate, shards: List[str]) -> None:
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
