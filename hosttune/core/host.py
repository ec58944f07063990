# SPDX-License-Identifier: Apache-2.0
"""The only door to a machine. Questions change nothing and can be recorded; effects are few, atomic and written down.

Questions about files raise OSError with the errno that the kernel gave. `Host` is the shape that LiveHost, RecordingHost
and ReplayHost share; everything else in core takes a Host and never touches the machine itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import command
from .model import Refused

READ_LIMIT = 64 << 20
"""Bytes. No file that hosttune reads whole is nearly as large."""
TEMP = ".hosttune.tmp"
"""What a file's name ends in until it is whole. Not "<digits>.conf": Proxmox VE would take such a stray file for a guest.
One fixed name, so that a killed run leaves one file at most; the next run, which holds the lock, takes it away."""

ENV_PREFIXES = ("CUDA_", "NVIDIA_", "NCCL_", "LD_")
"""Only these environment variables are ever read or recorded: others may hold secrets."""


@dataclass(frozen=True)
class Ran:
    """What a command answered. rc 127: no such program. `timeout` is the limit in seconds that it ran past, else 0."""

    rc: int
    out: str = ""
    err: str = ""
    timeout: float = 0


@dataclass(frozen=True)
class Stat:
    """lstat in words. type: char, block, file, dir, link, other. rdev: "511:0" for devices, else ""."""

    type: str
    rdev: str = ""
    mode: str = "0000"
    uid: int = 0
    gid: int = 0
    nlink: int = 1
    size: int = 0
    ctime: float = 0
    mtime: float = 0


@dataclass(frozen=True)
class Space:
    """Bytes of a file system: its size, what is free to root, what is used."""

    size: int
    free: int
    used: int
    kind: str = ""


@dataclass(frozen=True)
class Who:
    """Who is asking: uid and gid, effective capabilities as a bit mask, the few environment variables that matter."""

    uid: int
    gid: int
    caps: int
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Inquiry:
    """What a child process saw: nodes before any driver library was loaded, and what the libraries' calls returned.

    nodes  {path: {"type", "rdev", "mode", "uid", "gid", "nlink", "size", "access": "ok|EPERM..", "open": "ok|EPERM.."}}
           or {path: {"errno": "ENOENT"}}
    calls  {"cuInit": 999, "nvmlInit": 0, "dlopen:libcuda.so.1": {"path": .., "size": .., "class": 64} or {"error": ..}}
    protected  False when no private read-only /dev could be made: the libraries may then have repaired nodes.
    stuck  the step in which the child hung, else "".
    """

    nodes: Mapping[str, Mapping[str, Any]]
    calls: Mapping[str, Any]
    protected: bool = True
    stuck: str = ""


class Host:
    """The door. Subclasses answer; this class only says what can be asked and done."""

    effects: List[Dict[str, Any]]
    """What was written through this door, in order. Empty means that nothing was."""

    def reaches(self, target: str) -> bool:
        """Whether a step's target lies behind this door. Files in containers ("ct:200:/path") do so only for place.Reaching."""
        return not target.startswith("ct:")

    # ---- questions
    def read(self, path: str) -> str:
        """A text file, bytes that are not UTF-8 kept by surrogateescape. Raises OSError."""
        return self.read_bytes(path).decode("utf-8", "surrogateescape")

    def read_bytes(self, path: str, limit: int = 0) -> bytes:
        """A file, or its first `limit` bytes. Raises OSError; EFBIG for a whole file of more than READ_LIMIT bytes."""
        raise NotImplementedError

    def list(self, path: str) -> List[str]:
        """Names in a directory, sorted. Raises OSError."""
        raise NotImplementedError

    def lstat(self, path: str) -> Stat:
        """Raises OSError."""
        raise NotImplementedError

    def readlink(self, path: str) -> str:
        """Raises OSError."""
        raise NotImplementedError

    def statvfs(self, path: str) -> Space:
        """Raises OSError."""
        raise NotImplementedError

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        """A read-only command. Never raises for what the command does; no shell."""
        raise NotImplementedError

    def clock(self) -> float:
        """Seconds since the epoch."""
        raise NotImplementedError

    def who(self) -> Who:
        """Who is asking."""
        raise NotImplementedError

    def uname(self) -> Tuple[str, str, str]:
        """Node name, kernel release, machine."""
        raise NotImplementedError

    def holders(self, number: str) -> List[Tuple[int, str]]:
        """Processes (pid, command name) that hold a character device open. number: "511:0" or "511:*". Root sees all."""
        raise NotImplementedError

    def inquire(
        self,
        nodes: Sequence[str],
        calls: Sequence[str],
        uid: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        timeout: float = 30,
        pid: Optional[int] = None,
    ) -> Inquiry:
        """Risky questions, in a child process: every node first, then the calls in their order (see child.py).

        pid: look at the nodes as this process does (a container's init): its mounts, its device cgroup; no calls then.
        """
        raise NotImplementedError

    # ---- effects
    def lock(self, path: str, timeout: float = 10) -> "contextlib.AbstractContextManager[None]":
        """An exclusive flock(2) on `path`, made if absent, never deleted. Refused when another holds it too long."""
        raise NotImplementedError

    def replace(self, path: str, data: bytes, expect: Optional[str], mode: int = 0o644) -> None:
        """Put `data` at `path` in one rename. `expect`: sha256 of what is there now, None for nothing there.

        Refused when the file is not what was expected. Mode and owner of an existing file stay; `mode` is for a new one.
        Nothing is chmod'ed when the new file already has them (a cluster file system refuses any chmod).
        """
        raise NotImplementedError

    def remove(self, path: str, expect: str) -> None:
        """Remove a file whose sha256 is `expect`, else Refused."""
        raise NotImplementedError

    def append(self, path: str, data: bytes) -> None:
        """Append to hosttune's own journal, fsynced; the file is 0600."""
        raise NotImplementedError

    def poke(self, path: str, value: str) -> None:
        """Write a value to a /proc or /sys file. Raises OSError."""
        raise NotImplementedError

    def execute(self, argv: Sequence[str], timeout: float = 60) -> Ran:
        """A command that changes something; no shell."""
        raise NotImplementedError


def digest(data: bytes) -> str:
    """The fingerprint that `replace` and `remove` expect."""
    return hashlib.sha256(data).hexdigest()


def read_or_none(host: Host, path: str) -> Optional[str]:
    """The text, or None if there is no such file. Any other errno is raised: absent and unreadable are not the same."""
    try:
        return host.read(path)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def bytes_or_none(host: Host, path: str) -> Optional[bytes]:
    """As read_or_none, for bytes."""
    try:
        return host.read_bytes(path)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def list_or_empty(host: Host, path: str) -> List[str]:
    """Names in a directory, none if it is not there."""
    try:
        return host.list(path)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR):
            return []
        raise


def errname(e: OSError) -> str:
    """EPERM, ENOENT ... for an OSError."""
    return errno.errorcode.get(e.errno or 0, str(e.errno))


def errno_of(name: str) -> int:
    """The number of an errno by its name, or by a number that has none; 0 for "ok"."""
    return 0 if name == "ok" else int(name) if name.isdigit() else int(getattr(errno, name))


_TYPES = (
    (stat.S_ISCHR, "char"),
    (stat.S_ISBLK, "block"),
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "dir"),
    (stat.S_ISLNK, "link"),
)


class LiveHost(Host):
    """This machine, as the calling process sees it."""

    def __init__(self) -> None:
        self.effects = []

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
        return Space(v.f_blocks * v.f_frsize, v.f_bfree * v.f_frsize, (v.f_blocks - v.f_bfree) * v.f_frsize)

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        env = dict(os.environ, LC_ALL="C.UTF-8", PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")
        try:
            rc, out, err, late = command.run(argv, timeout, stdin, env)
        except command.TooMuch:
            return Ran(125, "", "%s: more than %d MiB of output" % (argv[0], command.OUTPUT_LIMIT >> 20))
        except OSError as e:
            return Ran(
                127 if isinstance(e, FileNotFoundError) else 126, "", "%s: %s" % (argv[0], os.strerror(e.errno or 0))
            )
        if late:
            return Ran(124, _text(out), _text(err), timeout)
        return Ran(rc, _text(out), _text(err))

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
