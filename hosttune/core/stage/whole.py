# SPDX-License-Identifier: Apache-2.0
"""Is a source a whole model? Asked from directory entries, JSON files and safetensors headers, never from weights.

A wiped cache keeps its directories, links and index; `snapshot_download` offline then still gives the path as if all were
well. So each shard that the index names must be there, and each must be as long as its header says.
"""

from __future__ import annotations

import json
from typing import Any, Dict

from ..host import Host, read_or_none
from ..model import Refused
from .source import File, Source

WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
HEADER_LIMIT = 100_000_000
"""Bytes: what the safetensors library takes at most."""
_JSON_LIMIT = 64 << 20
_POINTER = b"version https://git-lfs"


def refuse_unless_whole(host: Host, source: Source) -> None:
    """Refused with the first thing that is missing or wrong."""
    files = {file.path: file for file in source.files}
    weights = [file for file in source.files if file.path.endswith(WEIGHTS)]
    again = "download it again, or name another directory with --source"
    if not files:
        raise Refused("the directory holds no files", source.folder, again)
    if not weights:
        raise Refused("this is no model: none of its %d files holds weights (%s)" % (len(files), ", ".join(WEIGHTS)),
                      source.folder, again)
    if not any(file.path.endswith(".gguf") for file in weights) and "config.json" not in files:
        raise Refused("config.json is missing", source.folder, again)
    for file in source.files:
        if file.size == 0 and file in weights:
            raise Refused("the file is empty", file.source, again)
        if file in weights and file.size < 1024 and host.read_bytes(file.source, 64).startswith(_POINTER):
            raise Refused("a Git LFS pointer stands in place of the weights", file.source,
                          "git lfs pull, in that directory")
    if "config.json" in files:
        _json(host, files["config.json"], again)
    for path, file in files.items():
        if path.endswith(".index.json"):
            _check_index(_json(host, file, again), file, files, again)
    _check_tree(host, source, files, again)
    for file in weights:
        if file.path.endswith(".safetensors"):
            _check_header(host, file, again)


def _json(host: Host, file: File, again: str) -> Dict[str, Any]:
    try:
        data = json.loads(host.read_bytes(file.source, _JSON_LIMIT))
    except ValueError as e:
        raise Refused("this is not JSON: %s" % e, file.source, again)
    if not isinstance(data, dict):
        raise Refused("a JSON object is wanted", file.source, again)
    return data


def _check_index(index: Dict[str, Any], file: File, files: Dict[str, File], again: str) -> None:
    named = index.get("weight_map", {})
    prefix = file.path.rpartition("/")[0]
    shards = set(named.values()) if isinstance(named, dict) else set()
    missing = sorted(str(name) for name in shards if (prefix + "/" if prefix else "") + str(name) not in files)
    if missing:
        raise Refused("%d of %d shards are missing, first %s" % (len(missing), len(shards), missing[0]),
                      file.source, again)


def _check_tree(host: Host, source: Source, files: Dict[str, File], again: str) -> None:
    """trees/<commit>.json, which huggingface_hub writes since 1.22: every file of the revision with its size."""
    if not source.revision:
        return
    path = "%s/trees/%s.json" % (source.folder.rpartition("/snapshots/")[0], source.revision)
    text = read_or_none(host, path)
    try:
        rows = json.loads(text).get("files", {}) if text else {}
    except (ValueError, AttributeError):
        rows = {}
    for name, row in rows.items() if isinstance(rows, dict) else ():
        size = row.get("lfs_size") or row.get("size") if isinstance(row, dict) else None
        if name not in files:
            raise Refused("%s of this revision is missing" % name, source.folder, again)
        if size is not None and files[name].size != size:
            raise Refused("%d bytes long, and %d at the hub" % (files[name].size, size), files[name].source, again)


def _check_header(host: Host, file: File, again: str) -> None:
    """8 bytes little-endian N, N bytes of JSON, then the data, without holes: so the end is known."""
    head = host.read_bytes(file.source, 8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > HEADER_LIMIT:
        raise Refused("this is no safetensors file", file.source, again)
    try:
        tensors = json.loads(host.read_bytes(file.source, 8 + length)[8:])
        ends = [row["data_offsets"][1] for name, row in tensors.items() if name != "__metadata__"]
        want = 8 + length + max(ends, default=0)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Refused("its safetensors header cannot be read", file.source, again)
    if file.size != want:
        raise Refused("%d bytes long, and its header wants %d" % (file.size, want), file.source, again)
