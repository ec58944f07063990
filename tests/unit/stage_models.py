# SPDX-License-Identifier: Apache-2.0
"""Small models for tests: true safetensors files, an index, and a Hugging Face cache as huggingface_hub leaves it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def shard(name: str, size: int) -> bytes:
    """A safetensors file with one tensor of `size` bytes, all of them different from shard to shard."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    seed = hashlib.sha256(name.encode()).digest() * (1 << 15)
    return len(header).to_bytes(8, "little") + header + (seed * (size // len(seed) + 1))[:size]


def contents(shards: int = 2, size: int = 3 << 20) -> dict[str, bytes]:
    """File name -> content of a model with an index. The last shard is a little longer, so that no page is full."""
    names = ["model-%05d-of-%05d.safetensors" % (n + 1, shards) for n in range(shards)]
    files = {name: shard(name, size + 7 * n) for n, name in enumerate(names)}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {name: name for name in names}}).encode()
    files["config.json"] = b'{"architectures": ["Tiny"]}\n'
    files["tokenizer.json"] = b"{}\n"
    return files


def plain(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    """A local directory."""
    for name, data in (files or contents()).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def cached(cache: Path, repo: str = "org/tiny", files: dict[str, bytes] | None = None) -> Path:
    """A snapshot of a hub cache: links into blobs, named by sha256 for weights and by git's SHA-1 for the rest."""
    top = cache / ("models--" + repo.replace("/", "--"))
    snapshot = top / "snapshots" / COMMIT
    (top / "blobs").mkdir(parents=True)
    (top / "refs").mkdir()
    (top / "refs" / "main").write_text(COMMIT)
    snapshot.mkdir(parents=True)
    for name, data in (files or contents()).items():
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        blob = hashlib.sha256(data).hexdigest() if name.endswith(".safetensors") else git
        (top / "blobs" / blob).write_bytes(data)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (2 + name.count("/"))
        link.symlink_to("%sblobs/%s" % (up, blob))
    return snapshot


def read_back(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {os.path.relpath(p, folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
