# SPDX-License-Identifier: Apache-2.0
"""Is a source a whole model? From names, sizes, small files, headers and a few samples, never from all of the weights.

A wiped cache keeps its directories, links and index; `snapshot_download` offline then still gives the path as if all were
well. So each rule below has a word of its own (`NotWhole.code`), and each is told with the one file that is wrong:

EMPTY       it holds config.json (params.json beside Mistral's own weights; nothing beside GGUF) and weights
PARTIAL     no download is under way or was cut short          LFS_POINTER  no file is what git leaves without LFS
JSON        what engines parse can be parsed                   INDEX        all shards are there, and all tensors in them
HEADER      each file is as long as its header says            SIZE         each is as long as the hub says
HOLES       none is sparse or filled with zeros                HASH         small files are what the hub calls them
TOKENIZER   a text model has one                               MATCH        config and weights are of one model

A link to nothing, a missing snapshot and whatever is no file are refused where the source is read (source.py): NO_SNAPSHOT,
DANGLING. What is odd and may be right is a Doubt, told and not refused. Room for it is judged by add.py (SPACE), and the bytes
themselves while they are copied (HASH).
"""

from __future__ import annotations

import hashlib
from typing import Dict, Tuple

from ..door.host import Host, read_or_none
from ..door.live import LiveHost
from ..machine import mountinfo
from . import agreement, contents, downloads, header, shards, use
from .candidate import JSON_LIMIT, WEIGHTS, Candidate
from .header import Tensor
from .source import AGAIN, Doubt, File, NotWhole, Source, listing

POINTER = b"version https://git-lfs"
SMALL = 16 << 20
"""Bytes up to which a file is read for its git hash."""
FEW = 16
"""One in so many samples may be zeros and nothing is said: a table has rows that nobody uses."""
COMPRESSING = ("zfs", "btrfs", "bcachefs")
"""File systems that make a hole of zeros by themselves: there a hole is no sign of a part that never came."""


def refuse_unless_whole(host: Host, source: Source, hashed: bool = True) -> Tuple[Doubt, ...]:
    """Refused (NotWhole) with the first thing that is missing or wrong; what is odd, else. hashed: the copy will be, so that it
    finds what a known hash tells. Raises OSError."""
    model = Candidate(host, source, {file.path: file for file in source.files})
    _not_empty(model)
    _no_pointer(model)
    _as_listed(model)
    agreement.parsed(model)
    for file in model.weights:
        if file.path.endswith(".safetensors"):
            model.tensors[file.path] = _header(model, file)
        elif file.path.endswith(".gguf"):
            _gguf(host, file)
    shards.complete(model)
    agreement.tokenizer(model)
    agreement.match(model)
    _no_holes(model, hashed)
    return tuple(model.doubts)


def _not_empty(model: Candidate) -> None:
    source, weights = model.source, model.weights
    if not model.files:
        raise NotWhole("EMPTY", "the directory holds no files", source.folder, AGAIN)
    if not weights:
        raise NotWhole("EMPTY", "this is no model: none of its %d files holds weights (%s)" % (
            len(model.files), ", ".join(WEIGHTS)), source.folder, AGAIN)
    for file in weights:
        if file.size == 0:
            raise NotWhole("EMPTY", "the file is empty", file.source, AGAIN)
    alone = any(f.path.endswith(".gguf") for f in weights) or "params.json" in model.files and any(
        f.path.rpartition("/")[2].startswith("consolidated") for f in weights)
    if "config.json" not in model.files and not alone:
        raise NotWhole("EMPTY", "config.json is missing", source.folder, AGAIN)
    folders = sorted({f.path.rpartition("/")[0] for f in weights})
    if "config.json" not in model.files and "" not in folders and len(folders) > 1:  # the folder above several models
        model.doubt("INDEX", "weights lie in %s and %s, and nothing says that they are one model" % (folders[0], folders[1]),
                    source.folder)


def _no_pointer(model: Candidate) -> None:
    for path, file in model.files.items():
        if file.size < 1024 and path.endswith((*WEIGHTS, ".json", ".model")) and (
                model.host.read_bytes(file.source, 64).startswith(POINTER)):
            raise NotWhole("LFS_POINTER", "a Git LFS pointer stands in place of the file", file.source,
                           "git lfs pull, in that directory")


def _as_listed(model: Candidate) -> None:
    """The tree that huggingface_hub wrote beside the files (since 1.22): every file of the revision, its size, its hash.

    A download may have been told to leave files out (engines leave out all but weights and JSON; one quantisation of many is
    a model), and the list names those too: what an engine parses must be there, and of the weights what belongs together
    (shards.py)."""
    rows = listing(model.host, model.source)
    for name, row in rows.items():
        if name not in model.files:
            of_weights = name.endswith(".index.json") and not shards.of_another_form(model, name)
            if name not in agreement.NEEDED and not of_weights or "/" in name:
                continue
            raise NotWhole("SIZE", "%s of this revision is missing" % name, model.source.folder, AGAIN)
        size, file = row.get("lfs_size") or row.get("size"), model.files[name]
        if size is not None and file.size != size:
            raise NotWhole("SIZE", "%d bytes long, and %d at the hub" % (file.size, size), file.source, AGAIN)
    for file in model.files.values():
        known = file.git or (str(rows.get(file.path, {}).get("blob_id", "")) if not file.sha256 else "")
        if len(known) == 40 and file.size <= SMALL and not rows.get(file.path, {}).get("lfs_sha256"):
            data = model.host.read_bytes(file.source, SMALL)
            if hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() != known:
                raise NotWhole("HASH", "its content is not what the hub calls %s..." % known[:12], file.source,
                               "remove it and download it again")
    if not rows and isinstance(model.host, LiveHost):
        who = downloads.now(model.host, model.source.folder)
        if who:
            what = "a download is running now, and no list says what belongs to the model: %s" % use.words(who)
            raise NotWhole("PARTIAL", what, model.source.folder, "let it end, then run this again")
    if not rows and model.source.unfinished:
        raise NotWhole("PARTIAL", "a download has not ended here, and no list says what belongs to the model",
                       model.source.unfinished, "let it end, or remove that file if nothing writes to it any more")


def _header(model: Candidate, file: File) -> Dict[str, Tensor]:
    head = model.host.read_bytes(file.source, 8)
    length = min(int.from_bytes(head, "little"), header.HEADER_LIMIT)
    try:
        found = header.safetensors(model.host.read_bytes(file.source, 8 + length), file.size)
    except ValueError as e:
        raise NotWhole("HEADER", str(e), file.source, AGAIN)
    name = next((name for name, tensor in found.items() if tensor.type not in header.BITS), "")
    if name:
        model.doubt("HEADER", "%s is of type %s, which safetensors 0.8 does not know" % (name, found[name].type), file.source)
    return found


def _gguf(host: Host, file: File) -> None:
    try:
        found = header.whole_header(lambda count: host.read_bytes(file.source, count), file.size, JSON_LIMIT)
    except ValueError as e:
        raise NotWhole("HEADER", str(e), file.source, AGAIN)
    parts, group = found.get("split.count", 0), shards.group_of(file.path)
    if parts > 1 and (group is None or group[1] != parts):
        raise NotWhole("INDEX", "it is one of %d parts, and its name does not say so" % parts, file.source,
                       "bring all of them, as NAME-00001-of-%05d.gguf and so on" % parts)


def _no_holes(model: Candidate, hashed: bool) -> None:
    """Holes and zeros in weights whose hash is not known; where it is, a hashed copy finds them. A recording holds none."""
    if not isinstance(model.host, LiveHost):
        return
    mounts = mountinfo.parse(read_or_none(model.host, mountinfo.PATH) or "")
    for file in model.weights:
        if file.sha256 and hashed:
            continue
        if not contents.ends_as_zip(file.source):
            raise NotWhole("HEADER", "the file is cut short: an archive without its end", file.source, AGAIN)
        at, count = contents.holes(file.source)
        mount = mountinfo.holding(mounts, file.source) if count else None
        if count and (mount is None or mount.kind not in COMPRESSING or count * 2 > file.size):
            raise NotWhole("HOLES", "the file is sparse: no data at byte %d, %d of %d bytes in holes" % (at, count, file.size),
                           file.source, "%s; or, if zeros belong there: cp --sparse=never FILE NEW" % AGAIN)
        zero, samples = contents.zero_samples(file.source, 0)
        if zero * 2 > samples:
            raise NotWhole("HOLES", "the file is filled with zeros: %d of %d samples" % (zero, samples), file.source, AGAIN)
        if zero * FEW >= samples > 0:
            model.doubt("HOLES", "%d of %d samples of it are zeros, as where a download lost a part" % (zero, samples),
                        file.source)
