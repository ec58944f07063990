# SPDX-License-Identifier: Apache-2.0
"""The only door to a machine. Questions change nothing and can be recorded; effects are few, atomic and written down.

Questions about files raise OSError with the errno that the kernel gave. `Host` is the shape that LiveHost
(live.py), RecordingHost and ReplayHost (core/recording) share; everything else in core takes a Host and never touches the
machine itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

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
    """Bytes of a file system: its size, what is free to root, what is used. inodes: how many files more it takes, None where that
    is not counted."""

    size: int
    free: int
    used: int
    kind: str = ""
    inodes: Optional[int] = None


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


class Unrecorded(LookupError):
    """The recording does not hold the answer to a question. `question` says which."""

    def __init__(self, question: str) -> None:
        self.question = question
        super().__init__("not recorded: " + question)


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

    def converse(self, argv: Sequence[str], opening: bytes, line: bytes, timeout: float = 20) -> Ran:
        """One of many questions to the same command: it is started once, given `opening`, and answers each line by a line.

        As run() of that command with both on its standard input, which is what a door without standing commands does.
        """
        return self.run(argv, timeout, opening + line)

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
