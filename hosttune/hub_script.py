# SPDX-License-Identifier: Apache-2.0
"""What runs in a Python that has huggingface_hub, which need not be hosttune's own: an engine's environment has it.

Started as `python -I -c SOURCE`, with {"repository", "revision", "cache"} as JSON on standard input; one JSON line at a time
on standard output: {"bytes", "total"} while it downloads, and at the end {"folder"} or {"error", "what"}.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
import threading
from typing import Any, Dict, Iterable, List


def say(**row: Any) -> None:
    """One line."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def there(folder: str) -> int:
    """Bytes of all blobs, of those that are still coming too."""
    total = 0
    for entry in os.scandir(folder) if os.path.isdir(folder) else ():
        try:
            total += entry.stat().st_size if entry.is_file() else 0
        except OSError:  # it has got its last name in between
            continue
    return total


def room(total: int, blobs: str, cache: str) -> str:
    """Why the disk has no room for what is missing, "" if it has. huggingface_hub itself only warns."""
    os.makedirs(cache, exist_ok=True)
    disk, have = os.statvfs(cache), there(blobs)
    free = disk.f_bavail * disk.f_frsize
    return "" if total - have <= free else "%d bytes are missing, and the disk of %s has %d free" % (total - have, cache, free)


def left_out(paths: Iterable[str]) -> List[str]:
    """Patterns of what no engine opens beside safetensors: the same weights in other forms would fill the memory twice."""
    if not any(re.fullmatch(r"model[^/]*\.safetensors", path) for path in paths):
        return []
    other_forms = ["*.pth", "*.pt", "*.bin", "*.h5", "*.msgpack", "*.onnx", "*.gguf"]
    return ["original/*", "onnx/*", "consolidated*.safetensors", *other_forms]


def models(paths: Iterable[str]) -> List[str]:
    """GGUF models of a repository without safetensors; the parts of a split one are one."""
    paths = list(paths)
    if any(path.endswith(".safetensors") for path in paths):
        return []
    return sorted({re.sub(r"-\d{3,6}-of-\d{3,6}", "", path) for path in paths if path.endswith(".gguf")})


def main(asked: Dict[str, str]) -> None:
    """Download one revision into one cache."""
    import huggingface_hub

    repository, cache = asked["repository"], asked["cache"]
    blobs = os.path.join(cache, "models--" + repository.replace("/", "--"), "blobs")
    api = huggingface_hub.HfApi()
    commit = api.model_info(repository, revision=asked["revision"]).sha
    rows = api.list_repo_tree(repository, recursive=True, revision=commit)
    sizes = {row.path: int(getattr(row, "size", 0) or 0) for row in rows}
    several = models(sizes)
    if len(several) > 1:
        say(error="SeveralModels", what="%d models: %s ..." % (len(several), ", ".join(several[:3])))
        return
    without = left_out(sizes)
    total = sum(size for path, size in sizes.items() if not any(fnmatch.fnmatch(path, pattern) for pattern in without))
    full = room(total, blobs, cache)
    if full:
        say(error="ENOSPC", what=full)
        return
    done = threading.Event()

    def tell() -> None:
        while not done.wait(0.5):
            say(bytes=min(there(blobs), total), total=total)

    teller = threading.Thread(target=tell, daemon=True)
    say(bytes=min(there(blobs), total), total=total)
    teller.start()
    try:
        # By the name that was asked for, so that refs/NAME is written: offline it leads to the same commit.
        folder = huggingface_hub.snapshot_download(repository, revision=asked["revision"], cache_dir=cache,
                                                   ignore_patterns=without or None)  # fmt: skip
    finally:
        done.set()
        teller.join()
    say(bytes=total, total=total)
    say(folder=folder)


if __name__ == "__main__":
    try:
        main(json.load(sys.stdin))
    except Exception as e:  # every class of huggingface_hub's errors; the other side knows them by their names
        say(error=type(e).__name__, what=str(e).strip())
