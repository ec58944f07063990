# SPDX-License-Identifier: Apache-2.0
"""/etc/pve as the lab plays it, held to what was seen on the real pmxcfs: what works, what is refused, and with which errno."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.proxmox import PVE, Proxmox

WWW_DATA = 33
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
MIB = 1024 * 1024


@pytest.fixture
def file(proxmox: Proxmox) -> Iterator[Path]:
    path = PVE / "nodes" / proxmox.node / "probe.txt"
    path.write_text("first\n")
    yield path
    proxmox.heal()
    for left in path.parent.glob("probe*"):
        left.unlink()


def refusal(action: Callable[[], object]) -> str:
    """The errno's name, or `ok`."""
    try:
        action()
    except OSError as seen:
        return errno.errorcode[seen.errno or 0]
    return "ok"


def renameat2(source: Path, target: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def shared_map(path: Path) -> None:
    with open(path, "r+b") as handle:
        mmap.mmap(handle.fileno(), 4).close()


def sync_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync(path: Path) -> None:
    with open(path, "ab") as handle:
        os.fsync(handle.fileno())
        os.fdatasync(handle.fileno())


def lock(path: Path) -> None:
    with open(path, "rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def replace(path: Path) -> None:
    shutil.copyfile(path, path.with_name("probe2"))
    path.with_name("probe2").rename(path)


def move_in(path: Path) -> None:
    elsewhere = Path("/run/lock/probe")
    elsewhere.touch()
    elsewhere.rename(path)


def chmod(mode: int) -> Callable[[Path], object]:
    return lambda path: path.chmod(mode)


def folder(path: Path) -> None:
    made = path.with_name("probe.d")
    made.mkdir()
    made.rmdir()


ROWS: dict[str, tuple[Callable[[Path], object], str]] = {
    "append": (lambda path: path.open("a").write("x"), "ok"),
    "truncate": (lambda path: os.truncate(path, 2), "ok"),
    "exclusive create": (lambda path: path.with_name("probe2").open("x").close(), "ok"),
    "mkdir, rmdir": (folder, "ok"),
    "touch": (lambda path: path.touch(), "ok"),
    "rename over a file": (replace, "ok"),
    "rename from another file system": (move_in, "EXDEV"),
    "renameat2 exchange": (lambda path: renameat2(path, PVE / "storage.cfg", RENAME_EXCHANGE), "EINVAL"),
    "renameat2 noreplace": (lambda path: renameat2(path, path.with_name("probe2"), RENAME_NOREPLACE), "EINVAL"),
    "fsync, fdatasync": (sync, "ok"),
    "fsync of the folder": (sync_folder, "ok"),
    **{f"chmod {mode:04o}": (chmod(mode), "ok" if mode == 0o640 else "EPERM")
       for mode in (0o640, 0o644, 0o600, 0o660, 0o400)},
    "chown root:www-data": (lambda path: os.chown(path, 0, WWW_DATA), "ok"),
    "chown -1:-1": (lambda path: os.chown(path, -1, -1), "ok"),
    "chown root:root": (lambda path: os.chown(path, 0, 0), "EPERM"),
    "symlink": (lambda path: path.with_name("probe2").symlink_to(path), "ENOSYS"),
    "mkfifo": (lambda path: os.mkfifo(path.with_name("probe2")), "ENOSYS"),
    "set an xattr": (lambda path: os.setxattr(path, "user.x", b"1"), "ENOTSUP"),
    "read an xattr": (lambda path: os.getxattr(path, "user.x"), "ENOTSUP"),
    "O_TMPFILE": (lambda path: os.open(path.parent, os.O_TMPFILE | os.O_RDWR), "ENOTSUP"),
    "shared mmap": (shared_map, "ENODEV"),
    "flock": (lock, "ok"),
    "shutil.copyfile": (lambda path: shutil.copyfile("/etc/hostname", path), "ok"),
    "shutil.copy": (lambda path: shutil.copy("/etc/hostname", path), "EPERM"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_an_operation_gets_pmxcfs_answer(file: Path, row: str) -> None:
    action, wanted = ROWS[row]
    assert refusal(lambda: action(file)) == wanted


def test_a_hard_link_is_refused(file: Path) -> None:
    # No function in pmxcfs for it: the kernel decides, EPERM since 6.14 or so, ENOSYS before.
    assert refusal(lambda: file.with_name("probe2").hardlink_to(file)) in ("EPERM", "ENOSYS")


def test_modes_and_owners_are_fixed(file: Path) -> None:
    made = file.with_name("probe2")
    os.close(os.open(made, os.O_CREAT | os.O_WRONLY, 0o777))
    seen = made.stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o640, 0, WWW_DATA)
    secret = PVE / "priv" / "probe"
    secret.touch()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert (refusal(lambda: secret.chmod(0o600)), refusal(lambda: secret.chmod(0o640))) == ("ok", "EPERM")
    secret.unlink()


def test_times_are_whole_seconds_and_one(file: Path) -> None:
    os.utime(file, ns=(1_700_000_000_500_000_000, 1_700_000_000_900_000_000))
    seen = file.stat()
    assert (seen.st_atime_ns, seen.st_mtime_ns, seen.st_ctime_ns) == (1_700_000_000 * 10**9,) * 3
    file.write_text("now")
    assert 0 <= time.time() - file.stat().st_mtime < 60


def test_a_file_ends_at_one_mebibyte(file: Path) -> None:
    with open(file, "wb", buffering=0) as handle:
        assert refusal(lambda: [handle.write(b"x" * 65536) for _ in range(17)]) == "EFBIG"
    assert file.stat().st_size == MIB


@pytest.mark.parametrize(("tool", "works"), [(["sed", "-i", "s/first/second/"], True), (["cp", "/etc/hostname"], True),
                                             (["cp", "-p", "/etc/hostname"], False), (["install", "/etc/hostname"], False)],
                         ids=lambda value: "-".join(value) if isinstance(value, list) else "")  # fmt: skip
def test_tools_fail_after_they_have_replaced_the_content(file: Path, tool: list[str], works: bool) -> None:
    done = subprocess.run([*tool, str(file)], capture_output=True, text=True)
    assert (done.returncode == 0) is works, done.stderr
    assert file.read_text() != "first\n"


def test_guests_are_found_by_link_and_listed(proxmox: Proxmox) -> None:
    assert os.readlink(PVE / "lxc") == f"nodes/{proxmox.node}/lxc"
    path = proxmox.conf(150)
    path.write_text("arch: amd64\n")
    assert json.loads((PVE / ".vmlist").read_text())["ids"]["150"] == {"node": proxmox.node, "type": "lxc", "version": 1}
    path.rename(path.with_suffix(".bak"))
    assert "150" not in json.loads((PVE / ".vmlist").read_text())["ids"]
    path.with_suffix(".bak").unlink()


def test_a_vmid_exists_once_in_the_cluster(proxmox: Proxmox, file: Path) -> None:
    other = PVE / "nodes" / "other"
    for part in (other, other / "lxc"):
        part.mkdir()
    taken = other / "lxc" / "150.conf"
    taken.write_text("arch: amd64\n")
    here = proxmox.conf(150)
    assert refusal(lambda: here.touch()) == "EEXIST"
    assert refusal(lambda: (PVE / "qemu-server" / "150.conf").touch()) == "EEXIST"
    assert refusal(lambda: file.rename(here)) == "EEXIST"
    taken.rename(here)  # a migration: the same guest, moved
    assert refusal(lambda: taken.touch()) == "EEXIST"
    here.unlink()
    for part in (other / "lxc", other):
        part.rmdir()


def test_without_quorum_nothing_changes_and_root_may_still_open(proxmox: Proxmox, file: Path) -> None:
    proxmox.lab("quorum", "off")
    assert json.loads((PVE / ".members").read_text())["cluster"]["quorate"] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o440 and stat.S_IMODE(file.parent.stat().st_mode) == 0o555
    assert os.access(file, os.W_OK)
    handle = os.open(file, os.O_WRONLY)
    changes: dict[str, Callable[[], object]] = {
        "write": lambda: os.write(handle, b"x"),
        "truncate": lambda: os.truncate(file, 0),
        "open with O_TRUNC": lambda: os.open(file, os.O_WRONLY | os.O_TRUNC),
        "create": lambda: file.with_name("probe2").touch(),
        "mkdir": lambda: file.with_name("probe.d").mkdir(),
        "rename": lambda: file.rename(file.with_name("probe2")),
        "unlink": file.unlink,
        "utime": lambda: os.utime(file),
    }
    assert {name: refusal(change) for name, change in changes.items()} == dict.fromkeys(changes, "EACCES")
    os.close(handle)
    assert file.read_text() == "first\n"
    proxmox.lab("quorum", "on")
    assert refusal(lambda: file.write_text("again")) == "ok"


def test_a_node_of_no_cluster_says_so(proxmox: Proxmox) -> None:
    assert "cluster" not in json.loads((PVE / ".members").read_text())
    proxmox.lab("cluster", "on")
    members = json.loads((PVE / ".members").read_text())
    assert members["cluster"]["quorate"] == 1 and set(members["nodelist"]) == {proxmox.node, "other"}


def test_trouble_under_the_database_is_an_io_error(proxmox: Proxmox, file: Path) -> None:
    proxmox.lab("io-error", "on")
    assert refusal(lambda: file.write_text("lost")) == "EIO"
    assert refusal(file.unlink) == "EIO"
    proxmox.lab("io-error", "off")
    assert refusal(lambda: file.write_text("kept")) == "ok"


def test_content_outlives_the_daemon(proxmox: Proxmox, file: Path) -> None:
    file.write_text("over a reboot\n")
    mtime = file.stat().st_mtime
    proxmox.unmount()
    assert not file.exists()
    proxmox.mount()
    assert file.read_text() == "over a reboot\n" and file.stat().st_mtime == mtime
