# SPDX-License-Identifier: Apache-2.0
"""The door on real files: what is atomic, what is refused, what is written down."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hosttune.core.door.host import digest
from hosttune.core.door.live import LiveHost
from hosttune.core.model import Refused


@pytest.mark.parametrize("path", ["/proc/sys/kernel/ostype", "/proc/devices", "/proc/self/status", "/proc/cmdline"])
def test_kernel_files_can_be_read(path: str) -> None:
    assert LiveHost().read(path)


def test_a_missing_file_keeps_its_errno() -> None:
    with pytest.raises(OSError) as e:
        LiveHost().read("/nonexistent/x")
    assert e.value.errno == errno.ENOENT


def test_replace_keeps_mode_and_owner(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_bytes(b"old\xff")
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 12, 34)
    before = file.stat()
    LiveHost().replace(str(file), b"new\xfe", digest(b"old\xff"))
    after = file.stat()
    assert file.read_bytes() == b"new\xfe"
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino, "replaced by rename, never written in place"
    assert os.listdir(tmp_path) == ["a.conf"]


def test_replace_refuses_a_file_that_changed_in_between(tmp_path: Path) -> None:
    file, host = tmp_path / "a.conf", LiveHost()
    file.write_bytes(b"somebody else's")
    with pytest.raises(Refused, match="changed since it was read"):
        host.replace(str(file), b"ours", digest(b"what we had read"))
    assert file.read_bytes() == b"somebody else's"
    assert host.effects == []


def test_replace_refuses_a_file_that_appeared(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    file.write_bytes(b"x")
    with pytest.raises(Refused):
        LiveHost().replace(str(file), b"ours", None)
    assert file.read_bytes() == b"x"


def test_replace_takes_over_the_leftover_of_a_killed_run(tmp_path: Path) -> None:
    (tmp_path / "a.conf.hosttune.tmp").write_bytes(b"half")
    LiveHost().replace(str(tmp_path / "a.conf"), b"whole", None)
    assert sorted(os.listdir(tmp_path)) == ["a.conf"]
    assert stat.S_IMODE((tmp_path / "a.conf").stat().st_mode) == 0o644


def test_replace_through_a_link_writes_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.conf").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    LiveHost().replace(str(tmp_path / "link" / "a.conf"), b"new", digest(b"old"))
    assert (tmp_path / "real" / "a.conf").read_bytes() == b"new"


def test_append_is_whole_lines_of_a_private_file(tmp_path: Path) -> None:
    journal = tmp_path / "state" / "journal.jsonl"
    host = LiveHost()
    host.append(str(journal), b"one\n")
    host.append(str(journal), b"two\n")
    assert journal.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.parent.stat().st_mode) == 0o700


def test_a_second_run_at_once_is_refused(tmp_path: Path) -> None:
    lock = str(tmp_path / "run" / "lock")
    other = subprocess.Popen(
        [sys.executable, "-c", "import sys\nfrom hosttune.core.door.live import LiveHost\nwith LiveHost().lock(sys.argv[1]):\n"
         " print('held', flush=True)\n sys.stdin.read()", lock],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout and other.stdout.readline() == "held\n"
        with pytest.raises(Refused, match="another process holds the lock"):
            with LiveHost().lock(lock, timeout=0):
                pass
    finally:
        other.communicate()
    with LiveHost().lock(lock, timeout=0):
        pass


def test_a_command_that_does_not_exist_is_127() -> None:
    ran = LiveHost().run(["hosttune-no-such-program"])
    assert ran.rc == 127 and "hosttune-no-such-program" in ran.err


def test_a_command_that_hangs_is_ended() -> None:
    assert LiveHost().run(["sleep", "60"], timeout=0.1).timeout == 0.1


def test_only_harmless_environment_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HF_TOKEN", "secret")
    env = LiveHost().who().env
    assert env["CUDA_VISIBLE_DEVICES"] == "0" and "HF_TOKEN" not in env


def test_effects_are_written_down_in_order(tmp_path: Path) -> None:
    host = LiveHost()
    (tmp_path / "value").write_text("1\n")
    host.poke(str(tmp_path / "value"), "0")
    host.replace(str(tmp_path / "a"), b"x", None)
    host.remove(str(tmp_path / "a"), digest(b"x"))
    host.execute(["true"])
    assert [e["effect"] for e in host.effects] == ["poke", "replace", "remove", "run"]
    assert (tmp_path / "value").read_text() == "0\n"


ENDLESS = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
STAYS = "import os, sys, time\nif os.fork(): os._exit(0)\ntime.sleep(60)"
"""A daemon that keeps the pipes of the command that started it."""


@pytest.mark.parametrize(
    ("program", "stdin", "rc", "out"),
    [
        ("import sys; sys.stdout.write(str(len(sys.stdin.read())))", b"x" * (5 << 20), 0, str(5 << 20)),
        ("pass", b"x" * (5 << 20), 0, ""),
        ("import os; os.close(0); os.close(1); os.close(2); os._exit(3)", b"", 3, ""),
        ("import os; os.kill(os.getpid(), 9)", b"", -9, ""),
        (STAYS, b"", 0, ""),
    ],
)
def test_a_command_ends_when_it_has_ended(program: str, stdin: bytes, rc: int, out: str) -> None:
    ran = LiveHost().run([sys.executable, "-c", program], 30, stdin)
    assert (ran.rc, ran.out, ran.timeout) == (rc, out, 0)


def test_endless_output_is_cut_off() -> None:
    """What is answered from inside a container is its root's to decide, and must not fill the memory of the host."""
    ran = LiveHost().run([sys.executable, "-c", ENDLESS], 30)
    assert ran.rc == 125 and ran.out == "" and "MiB of output" in ran.err


def test_a_command_that_hangs_is_killed_with_what_it_started() -> None:
    ran = LiveHost().run(["sh", "-c", "sleep 60 & echo $!; wait"], 2)
    assert (ran.rc, ran.timeout) == (124, 2)
    stat = Path("/proc/%d/stat" % int(ran.out))
    for _ in range(1000):  # it is killed; how soon the kernel takes it away is not ours
        try:
            if stat.read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except OSError:
            return
        time.sleep(0.01)
    pytest.fail("the grandchild runs on")


@pytest.mark.parametrize("argv", [["/nonexistent/tool"], ["/etc"], [__file__]])
def test_a_command_that_cannot_be_started_is_an_answer(argv: list[str]) -> None:
    assert LiveHost().run(argv).rc in (126, 127)


@pytest.mark.parametrize("kind", ["device", "folder", "fifo"])
def test_what_is_no_file_is_never_replaced_or_removed(tmp_path: Path, kind: str) -> None:
    """A link to /dev/null masks a file of sysctl.d; following it made /dev/null a plain file."""
    if kind == "device":
        target = tmp_path / "null"
        if os.geteuid() == 0:
            os.mknod(target, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        else:
            target = Path("/dev/null")
    elif kind == "folder":
        (target := tmp_path / "folder").mkdir()
    else:
        os.mkfifo(target := tmp_path / "fifo")
    before = target.stat()
    (link := tmp_path / "90-mask.conf").symlink_to(target)
    for path in (link, target):
        with pytest.raises(Refused, match="where a file belongs"):
            LiveHost().replace(str(path), b"x", digest(b""))
        with pytest.raises(Refused, match="where a file belongs"):
            LiveHost().remove(str(path), digest(b""))
    assert target.stat() == before


def test_a_link_to_a_file_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (link := tmp_path / "link").symlink_to("real")
    LiveHost().replace(str(link), b"new", digest(b"old"))
    assert link.is_symlink() and (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("umask", [0, 0o22, 0o77])
def test_folders_and_files_are_no_wider_than_meant_under_any_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        LiveHost().append(str(tmp_path / "a/state/journal"), b"x")
        LiveHost().replace(str(tmp_path / "b/etc/file"), b"x", None, 0o600)
        with LiveHost().lock(str(tmp_path / "c/run/lock")):
            pass
    finally:
        os.umask(old)
    modes = {str(p.relative_to(tmp_path)): stat.S_IMODE(p.stat().st_mode) for p in sorted(tmp_path.rglob("*"))}
    assert modes == {"a": 0o755, "a/state": 0o700, "a/state/journal": 0o600, "b": 0o755, "b/etc": 0o755, "b/etc/file": 0o600,
                     "c": 0o755, "c/run": 0o700, "c/run/lock": 0o600}  # fmt: skip


def test_a_link_in_place_of_a_lock_or_a_journal_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError) as e:
        LiveHost().append(str(tmp_path / "link"), b"x")
    assert e.value.errno == errno.ELOOP and not (tmp_path / "elsewhere").exists()
    with pytest.raises(OSError) as e, LiveHost().lock(str(tmp_path / "link")):
        pass
    assert e.value.errno == errno.ELOOP and not (tmp_path / "elsewhere").exists()


def test_a_file_larger_than_can_be_read_is_an_error_not_a_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "five").write_bytes(b"x" * (5 << 20))
    assert len(LiveHost().read_bytes(str(tmp_path / "five"))) == 5 << 20
    assert len(LiveHost().read_bytes(str(tmp_path / "five"), 100)) == 100
    with (tmp_path / "sparse").open("wb") as f:
        f.truncate(65 << 20)
    with pytest.raises(OSError) as e:
        LiveHost().read(str(tmp_path / "sparse"))
    assert e.value.errno == errno.EFBIG and e.value.filename == str(tmp_path / "sparse")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_an_error_while_writing_names_the_file() -> None:
    with pytest.raises(OSError) as e:
        LiveHost().poke("/dev/full", "1")
    assert (e.value.errno, e.value.filename) == (errno.ENOSPC, "/dev/full")
