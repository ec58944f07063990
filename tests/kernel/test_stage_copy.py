# SPDX-License-Identifier: Apache-2.0
"""The copy on real tmpfs mounts, and what goes wrong there: a full mount, a source that is cut short underneath, a kill."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core.model import Refused
from hosttune.core.stage import copy
from hosttune.core.stage.copy import Copied, Job, Pace
from hosttune.core.stage.reading import Source
from tests.kernel.container import REPOSITORY
from tests.kernel.staged import bring, ids
from tests.kernel.staged import shm as shm  # a fixture
from tests.kernel.view import mount, scratch, unmount
from tests.unit.stage_models import contents, plain

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("private_namespace")


@pytest.fixture(params=["never", "always"], ids=["small pages", "huge pages"])
def memory(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Two mounts: `source` of enough room, `target` of 40 MiB."""
    top = scratch("memory")
    for name, size in (("source", 200), ("target", 40)):
        (top / name).mkdir()
        mount("-t", "tmpfs", "-o", "size=%dm,huge=%s" % (size, request.param), "tests", str(top / name))
    yield top
    for name in ("source", "target"):
        unmount(top / name)


def job(memory: Path, name: str, size: int) -> Job:
    source = memory / "source" / name
    block = hashlib.sha512(name.encode()).digest() * (MIB // 64)
    source.write_bytes((block * (size // MIB + 1))[:size])
    return Job(str(source), str(memory / "target" / name), str(memory / "source"), size, source.stat().st_mtime)


@pytest.mark.parametrize("hashed", [True, False], ids=["hashed", "not hashed"])
@pytest.mark.parametrize("threads", [1, 8])
def test_copies_are_equal_whatever_the_pages_and_the_threads(
    memory: Path, threads: int, hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "CHUNK", 4 * MIB)
    sizes = {"large": 21 * MIB + 5, "other": 9 * MIB, "small": 3, "empty": 0}
    jobs = [job(memory, name, size) for name, size in sizes.items()]
    told: list[Copied] = []
    copy.copy(jobs, threads, told.append, lambda count: None, hashed)
    assert {copied.job for copied in told} == set(jobs)
    for one in jobs:
        assert Path(one.target).read_bytes() == Path(one.source).read_bytes()
        assert os.stat(one.target).st_mtime_ns == os.stat(one.source).st_mtime_ns


@pytest.mark.parametrize("threads", [1, 4])
def test_full_mount_is_an_error_before_a_byte_is_read_and_never_a_signal(
    memory: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "read", lambda *_: pytest.fail("the copy has begun"))
    jobs = [job(memory, "fits", 30 * MIB), job(memory, "does not", 11 * MIB)]
    with pytest.raises(OSError) as e:
        copy.copy(jobs, threads, lambda copied: None, lambda count: None)
    assert e.value.errno == errno.ENOSPC and e.value.filename in (jobs[0].target, jobs[1].target)
    assert not os.path.exists(e.value.filename), "what could not be reserved takes no room"


@pytest.mark.parametrize("hashed", [True, False], ids=["hashed", "not hashed"])
@pytest.mark.parametrize("threads", [1, 4])
def test_source_that_is_cut_short_underneath_is_refused_and_never_a_signal(memory: Path, threads: int, hashed: bool) -> None:
    one = job(memory, "a", 38 * MIB)

    def cut(count: int) -> None:
        if count:
            os.truncate(one.source, MIB)

    with pytest.raises(Refused, match="the file ends at|the file changed while it was copied"):
        copy.copy([one], threads, lambda copied: pytest.fail("it is not whole"), cut, hashed, Pace(limit=40e6))
    held = [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if os.path.islink("/proc/self/fd/" + fd)]
    assert not [path for path in held if path.startswith(str(memory))]
    assert str(memory) not in Path("/proc/self/maps").read_text()


KILLED = """
import os, signal, sys
from hosttune.core.stage import copy
source, target, root, size, mtime = sys.argv[1:]
tick = lambda count: count and os.kill(os.getpid(), signal.SIGKILL)
copy.copy([copy.Job(source, target, root, int(size), float(mtime))], 4, print, tick, pace=copy.Pace(limit=40e6))
"""


def test_killed_copy_leaves_no_whole_file_and_the_next_one_takes_its_place(memory: Path) -> None:
    one = job(memory, "a", 38 * MIB)
    argv = [sys.executable, "-c", KILLED, one.source, one.target, one.root, str(one.size), repr(one.mtime)]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
    assert os.stat(one.target).st_mtime != one.mtime, "its time tells it from a whole one"
    copy.copy([one], 4, lambda copied: None, lambda count: None)  # 40 MiB: the first one's pages are free again
    assert Path(one.target).read_bytes() == Path(one.source).read_bytes()


CONVERGED = """
import json, sys
seen = []
def hook(event, args):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty", "os.system"):
        seen.append([event, str(args[0])])
    if event == "open" and ".safetensors" in str(args[0]) and ".index.json" not in str(args[0]):
        seen.append([event, str(args[0])])
sys.addaudithook(hook)
from hosttune.core.door.live import LiveHost
from hosttune.core.wanted.profile import Profile
from hosttune.core.stage import declared
door = LiveHost()
report = declared.bring(door, Profile(), "tiny", sys.argv[1])
print(json.dumps([report.changed, [f.id for f in report.findings], door.effects, seen]))
"""


def test_model_of_thirty_shards_that_is_staged_is_told_without_a_look_at_its_data_and_without_a_process(shm: None) -> None:
    folder = plain(scratch("thirty"), contents(shards=30, size=MIB))
    assert ids(bring("tiny", folder), "fail", "error") == set()
    argv = [sys.executable, "-c", CONVERGED, str(folder)]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    changed, found, effects, seen = json.loads(done.stdout)
    assert not changed and effects == [] and "HT501" in found
    assert seen == []
