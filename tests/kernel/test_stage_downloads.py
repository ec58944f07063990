# SPDX-License-Identifier: Apache-2.0
"""A source into which somebody downloads now, by the locks of huggingface_hub itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.model import Refused
from hosttune.core.stage import declared, drop
from hosttune.core.wanted.profile import Profile
from tests.kernel.staged import FILES, bring, ids, is_whole
from tests.kernel.staged import shm as shm  # a fixture
from tests.kernel.view import scratch
from tests.unit.stage_models import cached, plain

SHARD = "model-00002-of-00003.safetensors"
HOLDS = """
import sys
from huggingface_hub.utils import WeakFileLock
with WeakFileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def downloading(lock: Path) -> Iterator[int]:
    """Its process."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    run = subprocess.Popen([sys.executable, "-c", HOLDS, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdin and run.stdout and run.stdout.readline() == b"held\n"
    try:
        yield run.pid
    finally:
        run.stdin.close()
        run.wait()


@pytest.fixture(params=["hub", "snapshot", "linked cache", "local_dir"])
def source(request: pytest.FixtureRequest) -> tuple[str, list[str], Path, Path]:
    """What is declared, the caches, a file of it, and the lock of that file's download."""
    if request.param == "local_dir":
        folder = plain(scratch("model"), FILES)
        return str(folder), [], folder / SHARD, folder / ".cache/huggingface/download" / (SHARD + ".lock")
    cache = scratch("cache")
    snapshot = cached(cache, files=FILES)
    lock = cache / ".locks/models--org--tiny" / ((snapshot / SHARD).resolve().name + ".lock")
    spec = str(snapshot) if request.param == "snapshot" else "hf:org/tiny@main"
    named = cache
    if request.param == "linked cache":
        named = scratch("home") / "hub"
        named.symlink_to(cache)
    return spec, [str(named)], snapshot / SHARD, lock


def test_who_downloads_what_is_missing_is_told(source: tuple[str, list[str], Path, Path]) -> None:
    spec, caches, shard, lock = source
    away = shard.with_suffix(".away")
    with downloading(lock) as pid:
        shard.rename(shard.parent.parent / away.name)
        with pytest.raises(Refused, match=r"a download is running now.*: pid %d \(" % pid) as e:
            declared.bring(LiveHost(), Profile(), "tiny", spec, caches)
        assert e.value.way_out == "let it end, then run this again"
        (shard.parent.parent / away.name).rename(shard)
        # All that an index can ask for is there, and no list says whether that is all.
        with pytest.raises(Refused, match=r"a download is running now, and no list says.* pid %d \(" % pid):
            declared.bring(LiveHost(), Profile(), "tiny", spec, caches)
    assert lock.exists(), "it stays behind, and stops nobody"
    assert ids(declared.bring(LiveHost(), Profile(), "tiny", spec, caches), "fail", "error") == set()
    is_whole("tiny", FILES)
    with downloading(lock):
        assert not declared.bring(LiveHost(), Profile(), "tiny", spec, caches).changed, "what is staged is staged"


def test_lock_of_another_repository_says_nothing_of_this_one() -> None:
    cache = scratch("cache")
    snapshot = cached(cache, files=FILES)
    (cache / ".locks/models--org--tiny").mkdir(parents=True)
    (cache / ".locks/models--org--tiny/x.lock").touch()
    with downloading(cache / ".locks/models--org--tiny-two/x.lock"):
        assert ids(bring("tiny", snapshot), "fail", "error") == set()
        drop.drop(LiveHost(), "tiny")
        (snapshot / SHARD).unlink()
        with pytest.raises(Refused) as e:
            bring("tiny", snapshot)
    assert not re.search("running now", e.value.what)
