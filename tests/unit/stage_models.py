# SPDX-License-Identifier: Apache-2.0
"""Small models for tests: safetensors files made by the library itself, an index, and caches: one laid by hand, and one that
huggingface_hub itself downloads from a hub on loopback."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import safetensors

from tests.unit.hub_server import Hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


GGUF = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
"""A GGUF file without tensors: whatever follows is data."""


def tensors(shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """A safetensors file, made by the library: name -> (type as the library calls it, shape). No byte of it is zero."""
    kept, specs = [], {}
    for name, (kind, shape) in shapes.items():
        size = {"uint8": 1, "bfloat16": 2, "float32": 4}[kind]
        for part in shape:
            size *= part
        seed = bytes(byte or 1 for byte in hashlib.sha256(name.encode()).digest()) * (1 << 12)
        data = ctypes.create_string_buffer((seed * (size // len(seed) + 1))[:size], size)
        kept.append(data)
        specs[name] = safetensors.TensorSpec(dtype=kind, shape=list(shape), data_ptr=ctypes.addressof(data), data_len=size)
    made = safetensors.serialize(specs)
    assert kept  # the library reads them by address
    return bytes(made)


def shard(name: str, size: int) -> bytes:
    """A safetensors file with one tensor of `size` bytes, different from shard to shard."""
    return tensors({name: ("uint8", (size,))})


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
    for name, data in (contents() if files is None else files).items():
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


def downloaded(hub: Hub, cache: Path, *more: str) -> Path:
    """The snapshot that huggingface_hub itself brings from a hub on loopback. more: arguments of snapshot_download."""
    code = "import huggingface_hub as h; print(h.snapshot_download(%r, revision='main', %s))" % (hub.repo, ", ".join(more))
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache.parent / "home")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip().splitlines()[-1])


def read_back(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {os.path.relpath(p, folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
