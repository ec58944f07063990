# SPDX-License-Identifier: Apache-2.0
"""The copy itself, on real files: both ways of copying, what is hashed, and what a source does behind its back."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from hosttune.core.model import Refused
from hosttune.core.stage import copy
from hosttune.core.stage.copy import Copied, Job
from hosttune.core.stage.reading import Source

MIB = 1 << 20


@pytest.fixture(params=["a thread a file", "the parts of a file"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Chunks of 4 MiB, and as many threads as make the files below go one way or the other."""
    monkeypatch.setattr(copy, "CHUNK", 4 * MIB)
    return 1 if request.param == "a thread a file" else 4


def job(folder: Path, name: str, size: int, sha256: bool = False) -> Job:
    source = folder / ("source of " + name)
    data = (hashlib.sha512(name.encode()).digest() * (size // 64 + 1))[:size]
    source.write_bytes(data)
    os.utime(source, ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))
    known = hashlib.sha256(data).hexdigest() if sha256 else ""
    return Job(str(source), str(folder / name), str(folder), size, source.stat().st_mtime, known)


def run(jobs: Sequence[Job], threads: int, hashed: bool = True) -> dict[str, Copied]:
    done: list[Copied] = []
    caller = threading.get_ident()

    def whole(copied: Copied) -> None:
        assert threading.get_ident() == caller, "the callback belongs to the calling thread"
        done.append(copied)

    copy.copy(jobs, threads, whole, lambda count: None, hashed)
    return {os.path.basename(copied.job.target): copied for copied in done}


def test_copies_are_equal_and_digests_are_those_of_the_content(tmp_path: Path, threads: int) -> None:
    jobs = [job(tmp_path, "large", 13 * MIB + 5), job(tmp_path, "known", 12 * MIB + 1, sha256=True),
            job(tmp_path, "even", 8 * MIB), job(tmp_path, "small", 10), job(tmp_path, "empty", 0)]  # fmt: skip
    done = run(jobs, threads)
    assert set(done) == {"large", "known", "even", "small", "empty"}
    for one in jobs:
        data = Path(one.target).read_bytes()
        assert data == Path(one.source).read_bytes()
        copied = done[os.path.basename(one.target)]
        if one.sha256:
            assert (copied.sha256, copied.chunks) == (one.sha256, ())
        else:
            wanted = [hashlib.sha256(data[at : at + 4 * MIB]).hexdigest() for at in range(0, len(data), 4 * MIB)]
            assert (copied.sha256, list(copied.chunks)) == ("", wanted)
        status = os.stat(one.target)
        assert status.st_mode & 0o777 == 0o644 and status.st_mtime_ns == 1_700_000_000_123_456_789


def test_mode_is_0644_whatever_the_umask_says(tmp_path: Path, threads: int) -> None:
    before = os.umask(0o077)
    try:
        run([job(tmp_path, "a", 9 * MIB)], threads)
        copy.make_folders(str(tmp_path / "x/y"), [])
    finally:
        os.umask(before)
    assert os.stat(tmp_path / "a").st_mode & 0o777 == 0o644
    assert os.stat(tmp_path / "x/y").st_mode & 0o777 == 0o755


def test_old_file_of_that_name_is_left_to_those_who_have_it_open(tmp_path: Path, threads: int) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with open(tmp_path / "a", "rb") as old:
        run([job(tmp_path, "a", 9 * MIB)], threads)
        assert old.read() == b"old"


def test_content_that_is_not_what_its_name_says_is_refused(tmp_path: Path, threads: int) -> None:
    wrong = job(tmp_path, "a", 9 * MIB, sha256=True)
    with open(wrong.source, "r+b") as f:
        f.seek(5 * MIB)
        f.write(b"!")
    os.utime(wrong.source, (wrong.mtime, wrong.mtime))
    wrong = Job(wrong.source, wrong.target, wrong.root, wrong.size, os.stat(wrong.source).st_mtime, wrong.sha256)
    with pytest.raises(Refused, match="its name in the cache says"):
        run([wrong], threads)


def _vanish(path: str) -> None:
    os.unlink(path)


def _shrink(path: str) -> None:
    os.truncate(path, 6 * MIB)


def _grow(path: str) -> None:
    with open(path, "ab") as f:
        f.write(b"x")


def _touch(path: str) -> None:
    os.utime(path)


def _become_a_link(path: str) -> None:
    os.unlink(path)
    os.symlink("/etc/shadow", path)


def _become_a_pipe(path: str) -> None:
    os.unlink(path)
    os.mkfifo(path)


@pytest.mark.parametrize("change", [_vanish, _shrink, _grow, _touch, _become_a_link, _become_a_pipe], ids=lambda f: f.__name__)
def test_source_that_changed_since_it_was_planned_is_refused(change: object, tmp_path: Path, threads: int) -> None:
    one = job(tmp_path, "a", 9 * MIB)
    assert callable(change)
    change(one.source)
    with pytest.raises(Refused) as e:
        run([one], threads)
    assert e.value.where == one.source and "files that are whole are kept" in e.value.way_out


@pytest.mark.parametrize("change", [_touch, lambda path: os.truncate(path, 5 * MIB), _grow], ids=["time", "shorter", "longer"])
def test_source_that_changes_while_it_is_read_is_refused(
    change: object, tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, read = job(tmp_path, "a", 9 * MIB), Source.read
    assert callable(change)

    def changing(source: Source, view: memoryview, at: int, direct: bool = False) -> None:
        if at == 4 * MIB:
            change(one.source)
        read(source, view, at, direct)

    monkeypatch.setattr(Source, "read", changing)
    with pytest.raises(Refused, match="the file ends at|the file changed while"):
        run([one], threads)


@pytest.mark.parametrize("change", [_touch, lambda path: os.truncate(path, 5 * MIB), _grow], ids=["time", "shorter", "longer"])
def test_source_that_changes_while_the_kernel_copies_it_is_refused(
    change: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, give, given = job(tmp_path, "a", 9 * MIB), Source.give, []
    assert callable(change)

    def changing(source: Source, target: int, start: int, end: int) -> int:
        if start == 4 * MIB:
            change(one.source)
        given.append(give(source, target, start, end))
        return given[-1]

    monkeypatch.setattr(copy, "GIVEN", 2 * MIB)
    monkeypatch.setattr(Source, "give", changing)
    with pytest.raises(Refused, match="the file ends at 5242880|the file changed while") as e:
        run([one], 1, hashed=False)
    assert e.value.where == one.source and given[:2] == [2 * MIB, 4 * MIB]


def test_folder_that_becomes_a_link_to_elsewhere_is_not_followed(tmp_path: Path, threads: int) -> None:
    (tmp_path / "root/sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    one = job(tmp_path / "root/sub", "a", 9 * MIB)
    one = Job(one.source, str(tmp_path / "a"), str(tmp_path / "root"), one.size, one.mtime)
    os.rename(tmp_path / "root/sub", tmp_path / "outside/sub")
    os.symlink(tmp_path / "outside/sub", tmp_path / "root/sub")
    with pytest.raises(Refused, match="reached through a link out of"):
        run([one], threads)


def test_files_that_are_whole_are_told_even_if_another_fails(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "good", 3 * MIB), job(tmp_path, "bad", 2 * MIB)]
    os.unlink(jobs[1].source)
    told: list[str] = []
    with pytest.raises(Refused):
        copy.copy(jobs, 1, lambda copied: told.append(copied.job.target), lambda count: None)
    assert told == [jobs[0].target]


@pytest.mark.parametrize("hashed", [True, False])
def test_no_descriptor_and_no_mapping_outlives_a_copy_that_failed(tmp_path: Path, threads: int, hashed: bool) -> None:
    def held() -> list[str]:
        paths = ["/proc/self/fd/" + fd for fd in os.listdir("/proc/self/fd")]
        links = [os.readlink(path) for path in paths if os.path.islink(path)]
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [text for text in links + maps if str(tmp_path) in text]

    one = job(tmp_path, "a", 20 * MIB, sha256=True)
    wrong = Job(one.source, one.target, one.root, one.size, one.mtime, "0" * 64)
    gone = Job(str(tmp_path / "gone"), str(tmp_path / "b"), one.root, 5 * MIB, one.mtime)
    with pytest.raises(Refused):
        run([wrong] if hashed else [one, gone], threads, hashed)
    assert held() == []


@pytest.mark.parametrize("known", [True, False])
def test_one_wrong_byte_is_found_and_placed(known: bool, tmp_path: Path, threads: int) -> None:
    one = job(tmp_path, "a", 9 * MIB, sha256=known)
    copied = run([one], threads)["a"]
    row = (one.target, one.size, copied.sha256, copied.chunks, 4 * MIB)
    told: list[tuple[str, str]] = []
    copy.compare([row], 2, told.append, lambda count: None)
    assert told and all(why == "" for _, why in told)
    with open(one.target, "r+b") as f:
        f.seek(5 * MIB)
        f.write(b"\0")
    told.clear()
    copy.compare([row], 2, told.append, lambda count: None)
    place = "bytes 0 to 9437184" if known else "bytes 4194304 to 8388608"
    assert [why for _, why in told if why] == [place + " are not what was copied"]


def test_keep_only_leaves_the_named_files(tmp_path: Path) -> None:
    for name in ("keep", "go", "sub/keep", "sub/go", "empty/deep/go"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "link").symlink_to("/etc")
    copy.keep_only(str(tmp_path), [str(tmp_path / "keep"), str(tmp_path / "sub/keep")])
    left = sorted(os.path.relpath(os.path.join(f, n), tmp_path) for f, ds, ns in os.walk(tmp_path) for n in ds + ns)
    assert left == ["keep", "sub", "sub/keep"]


def test_chunks_are_digested_one_by_one_and_repaired_alone(tmp_path: Path) -> None:
    one = job(tmp_path, "a", 9 * MIB + 5)
    run([one], 2)
    wanted = copy.chunk_digests(one.source, MIB)
    data = Path(one.source).read_bytes()
    assert wanted == [hashlib.sha256(data[at : at + MIB]).hexdigest() for at in range(0, len(data), MIB)]
    with open(one.target, "r+b") as f:
        for at in (3 * MIB + 7, 9 * MIB + 4):
            f.seek(at)
            f.write(b"\0")
    have = copy.chunk_digests(one.target, MIB, threads=2)
    bad = [n for n, digest in enumerate(wanted) if have[n] != digest]
    assert bad == [3, 9]
    with open(one.target, "rb") as held:
        assert copy.copy_chunks(one.source, one.target, bad[::-1], MIB, root=str(tmp_path)) == [wanted[9], wanted[3]]
        assert held.read() == data, "in place: a reader of the old file sees the new bytes"
    assert os.stat(one.target).st_mtime_ns == os.stat(one.source).st_mtime_ns


def test_chunks_of_a_source_of_another_size_are_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    one = job(tmp_path, "a", 2 * MIB)
    run([one], 1)
    os.truncate(one.source, MIB)
    before = os.stat(one.target)
    with pytest.raises(Refused, match="2097152 bytes long, and its source 1048576"):
        copy.copy_chunks(one.source, one.target, [0], MIB)
    assert os.stat(one.target).st_mtime_ns == before.st_mtime_ns
