# SPDX-License-Identifier: Apache-2.0
"""The door to this very machine. Nothing else in core opens a file, starts a process or writes (a test holds it)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..model import Refused
from . import command
from .host import ENV_PREFIXES, READ_LIMIT, TEMP, Host, Inquiry, Ran, Space, Stat, Who, digest

_TYPES = (
    (stat.S_ISCHR, "char"),
    (stat.S_ISBLK, "block"),
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "dir"),
    (stat.S_ISLNK, "link"),
)


STANDING = 4
"""Commands that may wait for a next question at once: fifty containers are looked at one after the other."""


class LiveHost(Host):
    """This machine, as the calling process sees it."""

    def __init__(self) -> None:
        self.effects = []
        self._standing: Dict[Tuple[str, ...], command.Conversation] = {}
        self._one_speaks = threading.Lock()

    def read_bytes(self, path: str, limit: int = 0) -> bytes:
        # In pieces: one read of 4 MiB from a /proc/sys file is ENOMEM (fs/proc/proc_sysctl.c allocates the whole count).
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = bytearray()
            while not limit or len(data) < limit:
                piece = os.read(fd, min(65536, limit - len(data)) if limit else 65536)
                if not piece:
                    break
                data += piece
                if len(data) > READ_LIMIT:  # a part of a file would be taken for all of it
                    raise OSError(errno.EFBIG, "larger than %d MiB" % (READ_LIMIT >> 20), path)
            return bytes(data)
        except OSError as e:
            raise _named(e, path)
        finally:
            os.close(fd)

    def list(self, path: str) -> List[str]:
        return sorted(os.listdir(path))

    def lstat(self, path: str) -> Stat:
        st = os.lstat(path)
        kind = next((name for test, name in _TYPES if test(st.st_mode)), "other")
        rdev = "%d:%d" % (os.major(st.st_rdev), os.minor(st.st_rdev)) if kind in ("char", "block") else ""
        return Stat(
            kind,
            rdev,
            "%04o" % stat.S_IMODE(st.st_mode),
            st.st_uid,
            st.st_gid,
            st.st_nlink,
            st.st_size,
            st.st_ctime,
            st.st_mtime,
        )

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def statvfs(self, path: str) -> Space:
        v = os.statvfs(path)
        used = (v.f_blocks - v.f_bfree) * v.f_frsize
        return Space(v.f_blocks * v.f_frsize, v.f_bfree * v.f_frsize, used, inodes=v.f_ffree if v.f_files else None)

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        return _ran(argv, timeout, lambda: command.run(argv, timeout, stdin, _environment()))

    def converse(self, argv: Sequence[str], opening: bytes, line: bytes, timeout: float = 20) -> Ran:
        def ask() -> Tuple[int, bytes, bytes, bool]:
            there = self._standing.pop(tuple(argv), None)
            if there is None or there.over:  # a container that was restarted has taken it along
                there = command.Conversation(argv, _environment(), opening)
            told = there.ask(line, timeout)
            if not there.over:
                self._standing[tuple(argv)] = there
            for longest_unasked in list(self._standing)[:-STANDING]:
                del self._standing[longest_unasked]
            return told

        with self._one_speaks:
            return _ran(argv, timeout, ask)

    def clock(self) -> float:
        return time.time()

    def who(self) -> Who:
        caps = 0
        for line in self.read("/proc/self/status").splitlines():
            if line.startswith("CapEff:"):
                caps = int(line.split()[1], 16)
        env = {k: v for k, v in sorted(os.environ.items()) if k.startswith(ENV_PREFIXES)}
        return Who(os.geteuid(), os.getegid(), caps, env)

    def uname(self) -> Tuple[str, str, str]:
        u = os.uname()
        return u.nodename, u.release, u.machine

    def holders(self, number: str) -> List[Tuple[int, str]]:
        major, minor = number.split(":")
        found = []
        for pid in (name for name in os.listdir("/proc") if name.isdigit()):
            try:
                fds = os.listdir("/proc/%s/fd" % pid)
            except OSError:
                continue
            for fd in fds:
                try:
                    st = os.stat("/proc/%s/fd/%s" % (pid, fd))
                except OSError:
                    continue
                if (
                    stat.S_ISCHR(st.st_mode)
                    and os.major(st.st_rdev) == int(major)
                    and minor in ("*", str(os.minor(st.st_rdev)))
                ):
                    with contextlib.suppress(OSError):
                        found.append((int(pid), self.read("/proc/%s/comm" % pid).strip()))
                    break
        return sorted(found)

    def inquire(
        self,
        nodes: Sequence[str],
        calls: Sequence[str],
        uid: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        timeout: float = 30,
        pid: Optional[int] = None,
    ) -> Inquiry:
        from .child import inquire

        return inquire(nodes, calls, uid, env, timeout, pid)

    # ---- effects
    def _log(self, effect: str, target: str, **more: Any) -> None:
        self.effects.append(dict(effect=effect, target=target, **more))

    @contextlib.contextmanager
    def lock(self, path: str, timeout: float = 10) -> Iterator[None]:
        _make_folders(os.path.dirname(path), 0o700)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            limit = time.monotonic() + timeout
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > limit:
                        raise Refused(
                            "another process holds the lock (waited %g s)" % timeout,
                            path,
                            "wait for it to end, then run this again; `fuser -v %s` names it" % path,
                        ) from None
                    time.sleep(0.05)
            self._log("lock", path)
            yield
        finally:
            os.close(fd)

    def replace(self, path: str, data: bytes, expect: Optional[str], mode: int = 0o644) -> None:
        path = os.path.realpath(path)
        was = _regular(path)
        if expect is None:
            _make_folders(os.path.dirname(path), 0o755)
        _expect(path, expect)
        temp = path + TEMP
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                now = os.fstat(fd)
                if was and (now.st_uid, now.st_gid) != (was.st_uid, was.st_gid):
                    os.fchown(fd, was.st_uid, was.st_gid)
                wanted = stat.S_IMODE(was.st_mode) if was else mode
                if stat.S_IMODE(os.fstat(fd).st_mode) != wanted and not (was is None and _fixed_modes(temp)):
                    os.fchmod(fd, wanted)
                os.fsync(fd)
            finally:
                os.close(fd)
            _expect(path, expect)
            os.rename(temp, path)
        except BaseException as e:
            with contextlib.suppress(OSError):
                os.unlink(temp)
            raise _named(e, path) if isinstance(e, OSError) else e
        _sync_dir(path)
        self._log("replace", path, bytes=len(data), sha256=digest(data))

    def remove(self, path: str, expect: str) -> None:
        path = os.path.realpath(path)
        _regular(path)
        _expect(path, expect)
        os.unlink(path)
        _sync_dir(path)
        self._log("remove", path)

    def append(self, path: str, data: bytes) -> None:
        _make_folders(os.path.dirname(path), 0o700)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            start = os.fstat(fd).st_size
            if os.write(fd, data) != len(data):
                os.ftruncate(fd, start)  # a full disk: no half line in the journal
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        except OSError as e:
            raise _named(e, path)
        finally:
            os.close(fd)
        self._log("append", path, bytes=len(data))

    def poke(self, path: str, value: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode() + b"\n")
        except OSError as e:
            raise _named(e, path)
        finally:
            os.close(fd)
        self._log("poke", path, value=value)

    def execute(self, argv: Sequence[str], timeout: float = 60) -> Ran:
        self._log("run", " ".join(argv), argv=list(argv))
        return self.run(argv, timeout)


def _environment() -> Dict[str, str]:
    return dict(os.environ, LC_ALL="C.UTF-8", PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")


def _ran(argv: Sequence[str], timeout: float, do: Callable[[], Tuple[int, bytes, bytes, bool]]) -> Ran:
    """What a command answered; that it could not be started, or said too much, is an answer, too."""
    try:
        rc, out, err, late = do()
    except command.TooMuch:
        return Ran(125, "", "%s: more than %d MiB of output" % (argv[0], command.OUTPUT_LIMIT >> 20))
    except OSError as e:
        return Ran(
            127 if isinstance(e, FileNotFoundError) else 126, "", "%s: %s" % (argv[0], os.strerror(e.errno or 0))
        )
    return Ran(124, _text(out), _text(err), timeout) if late else Ran(rc, _text(out), _text(err))


def _text(data: Optional[bytes]) -> str:
    return (data or b"").decode("utf-8", "replace")


def _named(e: OSError, path: str) -> OSError:
    """An error of a descriptor, with the file's name: a person must know which file system is full."""
    return e if e.filename else OSError(e.errno, e.strerror or os.strerror(e.errno or 0), path)


def _make_folders(path: str, mode: int) -> None:
    """Make a folder with this mode whatever the umask (with umask 0 anyone could write into ours), and those above it."""
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path), 0o755)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
            os.chmod(path, mode)


def _regular(path: str) -> Optional[os.stat_result]:
    """Its stat, None if it is not there. Refused for what is no file: a link to /dev/null, by which an administrator
    masks a file of sysctl.d, must not make us replace /dev/null."""
    try:
        seen = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(seen.st_mode):
        kind = next((name for test, name in _TYPES if test(seen.st_mode)), "other")
        what = {"char": "a device", "block": "a device", "dir": "a folder"}.get(kind, "no file")
        raise Refused("it is %s, where a file belongs; nothing was written" % what, path, "ls -l %s" % path)
    return seen


def _expect(path: str, expect: Optional[str]) -> None:
    """Refuse when the file is not the one that was planned for."""
    try:
        with open(path, "rb") as f:
            now: Optional[str] = digest(f.read())
    except FileNotFoundError:
        now = None
    if now != expect:
        raise Refused("the file changed since it was read; nothing was written", path, "run the same command again")


def _fixed_modes(path: str) -> bool:
    """Is this a file system that gives every file one mode and refuses chmod (pmxcfs)?"""
    return os.path.realpath(path).startswith("/etc/pve/")


def _sync_dir(path: str) -> None:
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
