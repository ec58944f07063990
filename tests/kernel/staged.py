# SPDX-License-Identifier: Apache-2.0
"""What tests of staging share: an empty /dev/shm of their own, a small model, a run that is killed at a step."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.model import Report
from hosttune.core.stage import declared, manifest, status, verify
from hosttune.core.stage.plan import Wanted
from hosttune.core.wanted.profile import Profile
from tests.kernel import mission
from tests.kernel.container import REPOSITORY
from tests.kernel.view import mount, scratch, unmount
from tests.unit.stage_models import contents, plain, read_back

MOUNT = Path(manifest.MOUNT)
FILES = {**contents(shards=3), "a b\nc/\u00e4.json": b"{}", "sub/empty.txt": b""}


@pytest.fixture(autouse=True)
def shm(private_namespace: None) -> Iterator[None]:
    """/dev/shm and hosttune's own folders, empty and the test's alone."""
    mount("-t", "tmpfs", "-o", "mode=1777,size=2g", "tests-shm", "/dev/shm")
    folders = mission.private_state()
    yield
    while os.path.ismount(MOUNT):
        unmount(MOUNT)
    for folder in [*folders, "/dev/shm"]:
        unmount(folder)


@pytest.fixture
def model() -> Path:
    """A model in a directory that is no tmpfs of ours."""
    return plain(scratch("model"), FILES)


def bring(name: str, folder: Path | str, **more: object) -> Report:
    return declared.bring(LiveHost(), Profile(), name, str(folder), **more)  # type: ignore[arg-type]


def seen(sources: dict[str, str]) -> Report:
    """`stage status` of models by name and source."""
    return status.status(LiveHost(), [Wanted(name, spec) for name, spec in sources.items()])


def ids(report: Report, *statuses: str) -> set[str]:
    return {f.id for f in report.findings if f.status in statuses}


def is_whole(name: str, files: dict[str, bytes]) -> None:
    """As a reader sees it: the files, the manifest, and nothing of ours left beside them."""
    assert read_back(MOUNT / name) == files
    assert sorted(p.name for p in (MOUNT / ".hosttune").iterdir()) == [name + ".json"]
    assert ids(verify.verify(LiveHost(), [name]), "fail", "error") == set()


KILLED = """
import itertools, os, signal, sys
from hosttune.core.door.live import LiveHost
from hosttune.core.wanted.profile import Profile
from hosttune.core.stage import add, chunks, copy, declared, manifest, tmpfs, verify
module, name, count, when, hashed = sys.argv[3:]
owner, calls = {"add": add, "chunks": chunks, "copy": copy, "manifest": manifest, "tmpfs": tmpfs}[module], itertools.count(1)
real = getattr(owner, name)
def killing(*args, **more):
    fatal = next(calls) == int(count)  # each call has a number of its own, whichever thread it comes from
    if fatal and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    out = real(*args, **more)
    if fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return out
setattr(owner, name, killing)
if sys.argv[2] == "repair":
    verify.verify(LiveHost(), ["tiny"], repair=True)
elif sys.argv[2] == "verify":
    verify.verify(LiveHost(), ["tiny"])
else:
    declared.bring(LiveHost(), Profile(), "tiny", sys.argv[2], when=hashed)
"""


def kill(folder: Path | str, where: tuple[str, str, int, str], when: str = "now") -> None:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-c", KILLED, "tiny", str(folder), *map(str, where), when]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def scratched(path: Path, at: int) -> None:
    """One byte is another, under the right size and time."""
    was = path.stat()
    with path.open("r+b") as f:
        f.seek(at)
        f.write(b"\0")
    os.utime(path, ns=(was.st_mtime_ns, was.st_mtime_ns))


def filled(path: Path) -> None:
    """Somebody writes until nothing fits any more, not even a page."""
    with path.open("wb", buffering=0) as f:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while f.write(bytes(size)):
                    pass


def command(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`hosttune stage WORDS`, as a person runs it without a terminal."""
    code = "import sys; sys.argv[0] = 'hosttune'; from hosttune.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "stage", *words]
    return subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})}, capture_output=True, text=True)
