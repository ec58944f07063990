# SPDX-License-Identifier: Apache-2.0
"""A run that is killed in the middle of a large file: the next one copies the chunks that are missing, and no others."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hosttune.cli.stage import Line
from hosttune.core.door.live import LiveHost
from hosttune.core.model import Report
from hosttune.core.stage import begun, copy, declared, drop, manifest, nodes, over_ssh, progress, reading, space, verify
from hosttune.core.stage.nodes import Copy
from hosttune.core.stage.pace import Pace
from hosttune.core.wanted.profile import validate
from tests.kernel.container import REPOSITORY
from tests.kernel.leftovers import children
from tests.kernel.sshd import SshTarget
from tests.kernel.staged import MOUNT, bring, filled, ids, is_whole, scratched, seen
from tests.kernel.staged import shm as shm  # a fixture
from tests.kernel.test_stage_sources import ssh_config
from tests.kernel.view import scratch
from tests.unit.stage_models import cached, plain, tensors

CHUNK = 1 << 20
NAME, PAYLOAD = "model.safetensors", 40 * CHUNK
FILES = {NAME: tensors({"a": ("uint8", (PAYLOAD,))})[:-PAYLOAD] + random.Random(1).randbytes(PAYLOAD),
         "config.json": b'{"architectures": ["X"]}'}  # fmt: skip
SIZE = len(FILES[NAME])
TARGET = MOUNT / ".hosttune/tiny.partial" / NAME
KILLED = """
import itertools, os, signal, sys
from hosttune.core.stage import begun, copy, over_ssh, reading
copy.CHUNK = over_ssh.CHUNK = reading.CHUNK = %d
from hosttune.cli.stage import Line
from hosttune.core.door.live import LiveHost
from hosttune.core.stage import declared
from hosttune.core.stage.pace import Pace
from hosttune.core.stage.pace import Pace
from hosttune.core.wanted.profile import Profile
source, hashed, limit, last = sys.argv[1:]
real, calls = begun.Notes.add, itertools.count(1)
def add(notes, *row):
    real(notes, *row)
    if next(calls) == int(last):
        os.kill(os.getpid(), signal.SIGKILL)
begun.Notes.add = add
declared.bring(LiveHost(), Profile(), "tiny", source, when=hashed, pace=Pace(limit=float(limit)), threads=2)
""" % CHUNK


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copy, over_ssh, reading):
        monkeypatch.setattr(module, "CHUNK", CHUNK)


def start(source: str | Path, when: str = "now", limit: float = 0, last: int = 0) -> subprocess.Popen[bytes]:
    """A run in a process of its own. last: it ends itself when so many chunks are noted."""
    argv = [sys.executable, "-c", KILLED, str(source), when, str(limit), str(last)]
    return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stderr=subprocess.PIPE)


def killed(source: str | Path, when: str = "now", last: int = 9) -> dict[int, str]:
    """The chunks that such a run leaves."""
    run = start(source, when, last=last)
    said = run.communicate()[1]
    assert run.returncode == -signal.SIGKILL, said
    return left()


def left() -> dict[int, str]:
    noted = begun.read(LiveHost(), Copy("tiny"))
    return dict(noted[NAME].chunks) if NAME in noted else {}


def ended(source: str | Path, **more: object) -> tuple[Report, int]:
    """The report of a run to the end, and the bytes that its threads copied."""
    told: list[int] = []

    def count(now: progress.Progress) -> None:
        if now.event in ("bytes", "file"):
            told.append(now.bytes - now.there)

    report = bring("tiny", source, told=count, **more)
    assert ids(report, "fail", "error") == set(), report.findings
    assert [e["bytes"] for e in report.effects if e["effect"] == "copy"] == [told[-1]], "the report counts what was copied"
    return report, told[-1]


def copied_of(there: dict[int, str]) -> int:
    """Bytes that are to be copied when these chunks are there, and the small file is not."""
    return SIZE - begun.size_of(SIZE, there)


@pytest.fixture(params=["by chunks", "known hash", "later"])
def how(request: pytest.FixtureRequest) -> tuple[Path, str]:
    """A source, and when it is hashed."""
    folder = scratch("model")
    source = cached(folder, files=FILES) if request.param == "known hash" else plain(folder, FILES)
    return source, "later" if request.param == "later" else "now"


def test_killed_again_and_again_at_any_moment_each_run_goes_on_where_the_last_one_was(how: tuple[Path, str]) -> None:
    source, when = how
    rng, before = random.Random(7), set[int]()
    for _ in range(10):
        run = start(source, when, limit=15e6)
        while len(left()) <= len(before) and run.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.08)
        run.kill()
        said = run.communicate()[1]
        assert run.returncode == -signal.SIGKILL, said
        assert before < set(left()), "what was there is there"
        before = set(left())
    assert "HT502" in ids(seen({"tiny": str(source)}), "fail"), "and nobody takes it for whole"
    _, copied = ended(source, when=when)
    assert 0 < copied < SIZE and copied == SIZE - begun.size_of(SIZE, before)
    is_whole("tiny", FILES)


def test_chunk_that_was_not_noted_is_copied_again_whatever_stands_there(how: tuple[Path, str]) -> None:
    source, when = how
    there = killed(source, when)
    torn = next(number for number in range(41) if number not in there)
    with TARGET.open("r+b") as f:
        f.seek(torn * CHUNK)
        f.write(b"garbage" * 9999)
    ended(source, when=when)
    is_whole("tiny", FILES)


def test_chunk_that_was_noted_is_not_copied_again_and_its_digest_tells_what_befell_it() -> None:
    source = plain(scratch("model"), FILES)
    there = killed(source)
    scratched(TARGET, min(there) * CHUNK + 77)
    ended(source)
    (found,) = verify.verify(LiveHost(), ["tiny"]).findings
    assert (found.status, found.id) == ("fail", "HT502")
    assert "bytes %d to %d " % (min(there) * CHUNK, (min(there) + 1) * CHUNK) in found.have


def test_chunk_that_is_not_what_the_hubs_hash_wants_is_found_and_all_of_its_file_copied_again() -> None:
    source = cached(scratch("hub"), files=FILES)
    there = killed(source)
    scratched(TARGET, min(there) * CHUNK + 77)
    failed = bring("tiny", source)
    (found,) = [f for f in failed.findings if f.status == "fail"]
    assert found.id == "HT506" and not (MOUNT / "tiny").exists() and left() == {}
    assert ended(source)[1] == SIZE
    is_whole("tiny", FILES)


@pytest.mark.parametrize("what", ["the source", "its time", "the placement", "the size of a chunk"])
def test_what_has_changed_since_is_copied_whole(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, files = plain(scratch("model"), FILES), dict(FILES)
    assert killed(source)
    profile, status = validate({}), (source / NAME).stat()
    if what == "the source":
        files[NAME] = FILES[NAME][:-1] + b"!"
        (source / NAME).write_bytes(files[NAME])
    elif what == "its time":
        os.utime(source / NAME, ns=(0, status.st_mtime_ns + 10**9))
    elif what == "the placement":
        node = nodes.with_memory(LiveHost())[0]
        profile = validate({"models": {"tiny": {"source": str(source), "placement": "node:%d" % node}}})
    else:
        for module in (copy, over_ssh, reading):
            monkeypatch.setattr(module, "CHUNK", 2 * CHUNK)
    done = declared.bring(LiveHost(), profile, "tiny", str(source))
    (effect,) = [e for e in done.effects if e["effect"] == "copy"]
    assert effect["bytes"] >= SIZE
    is_whole("tiny", files)


def test_where_each_byte_shall_be_hashed_a_chunk_that_was_not_is_copied_again_and_not_the_other_way_round() -> None:
    source = plain(scratch("model"), FILES)
    there = killed(source, "later")
    assert there and set(there.values()) == {""}
    more = killed(source, "now")
    assert more and "" not in more.values()
    _, copied = ended(source, when="later")
    assert copied == copied_of(more)
    staged = manifest.load(LiveHost(), "tiny")
    assert staged and NAME in {file.path for file in staged.unhashed} and not staged.files[1].chunks
    assert ids(verify.verify(LiveHost(), ["tiny"]), "fail", "error") == set()
    is_whole("tiny", FILES)


def test_all_chunks_noted_and_the_file_not_ended_is_ended_by_one(how: tuple[Path, str]) -> None:
    source, when = how
    there = killed(source, when, last=41 + 1)  # and the small file
    assert len(there) == 41
    _, copied = ended(source, when=when)
    assert copied == SIZE - 40 * CHUNK
    is_whole("tiny", FILES)


def test_note_that_finds_no_room_costs_no_copy() -> None:
    source = plain(scratch("model"), FILES)

    def fill(now: progress.Progress) -> None:
        if now.event == "bytes":
            filled(MOUNT / "filler")

    done = bring("tiny", source, told=fill, threads=1)
    assert not [f for f in done.findings if "No space" in f.summary and "whole and kept" not in f.summary]
    (MOUNT / "filler").unlink()
    ended(source) if ids(done, "fail") else None
    is_whole("tiny", FILES)


def test_torn_and_foreign_lines_are_no_chunks() -> None:
    source = plain(scratch("model"), FILES)
    there = killed(source)
    with open(manifest.chunks_path("tiny"), "ab") as f:
        f.write(b'[0, 30, "x"][0, 31, "x"]\n{}\n[7, 1, "x"]\n[0, 99, "x"]\n[0, null, "x"]\n\xff\n[0, 3')
    assert set(left()) - set(there) == {99}, "and 99 is none of this file's"
    ended(source)
    is_whole("tiny", FILES)


def test_what_is_left_is_told_counted_and_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    source = plain(scratch("model"), FILES)
    there = killed(source)
    planned = bring("tiny", source, dry_run=True)
    assert " of 2 files, %s from" % space.size_text(copied_of(there)) in planned.actions[-1].why
    bring("tiny", source, told=Line().staged)
    said = capsys.readouterr().err
    was = space.size_text(SIZE - copied_of(there))
    assert "files to copy, of which %s are there\n" % was in said and "; %s were there from an earlier run\n" % was in said
    drop.drop(LiveHost(), "tiny")
    killed(source)
    drop.drop(LiveHost(), "tiny")
    assert list((MOUNT / ".hosttune").iterdir()) == []


@pytest.mark.parametrize("known", [False, True], ids=["by chunks", "known hash"])
def test_over_ssh_only_missing_chunks_come(known: bool, old_target: SshTarget) -> None:
    far = old_target.container.rootfs / "srv/m"
    source = "ssh:target:/srv/m"
    if known:
        far = cached(old_target.container.rootfs / "srv/hub", files=FILES)
        source = "ssh:target:/" + str(far.relative_to(old_target.container.rootfs))
    else:
        plain(far, FILES)
    with ssh_config(old_target):
        there = killed(source)
        torn = next(number for number in range(41) if number not in there)
        with TARGET.open("r+b") as f:
            f.seek(torn * CHUNK)
            f.write(b"garbage" * 9999)
        _, copied = ended(source)
        assert copied - copied_of(there) in (0, len(FILES["config.json"]))
        is_whole("tiny", FILES)


def test_connection_that_breaks_leaves_the_chunks_that_came(old_target: SshTarget) -> None:
    plain(old_target.container.rootfs / "srv/m", FILES)
    others = children()  # of other tests: an engine that runs on

    def cut(now: progress.Progress) -> None:
        if 10 * CHUNK < now.bytes < SIZE:
            for pid in children() - others:
                os.kill(pid, signal.SIGKILL)

    with ssh_config(old_target):
        done = bring("tiny", "ssh:target:/srv/m", told=cut, pace=Pace(limit=50e6))
        (found,) = [f for f in done.findings if f.status == "fail"]
        assert found.id == "HT506" and "MB of others" in found.summary, found.summary
        there = left()
        assert len(there) >= 9
        _, copied = ended("ssh:target:/srv/m")
        assert copied - copied_of(there) in (0, len(FILES["config.json"]))
        is_whole("tiny", FILES)
