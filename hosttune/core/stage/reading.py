# SPDX-License-Identifier: Apache-2.0
"""The source of a copy: the file that was planned, and not what somebody has put in its place since.

This process never looks through a mapping: a source that is cut short would be a SIGBUS there, and is a short read here. The
kernel may: a write(2) whose bytes lie in a mapping fails with EFAULT in place of the signal. So what is not hashed and in memory
already is written straight from a mapping of the source, one copy in place of two.

A cold file of a block device can be read past the page cache (O_DIRECT), which would only be another copy in the memory that
the model needs. Which way is faster depends on the device (measured: 1.6 against 1.2 GB/s on one virtual disk, 1.3 against 1.9
on another), so both are tried. What is in the cache already is taken from there.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import threading
from dataclasses import dataclass, field
from typing import Mapping, Optional

from ..machine import mountinfo
from ..model import Refused

PIECE = 2 << 20
"""Bytes a read: one huge page, and small enough for a core's cache."""
GIVEN = 8 << 20
"""Bytes a write straight from a source's mapping: it passes no cache of ours, and to take turns costs 16 threads some percent."""
CHUNK = 32 << 20
"""Bytes a digest, and a thread's turn at a file; whole huge pages, so that each has one writer."""
BLOCK = 4096
"""Bytes: no disk's logical block is larger, and O_DIRECT wants whole ones (open(2))."""
POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14. Where a write meets a page of the mapping that is not there yet, Linux 6.18 gives it up in
the middle of a new huge page, clears the rest of that, and begins again (measured: 250 against 160 ms a GiB)."""
MEMORY, CACHE, DISK, UNKNOWN = "memory", "cache", "disk", ""
"""Where bytes of a source lie: in a file system that is memory, in the page cache, still on a disk; or nobody says."""
LATER = "let whatever writes there end, then run this again: files that are whole are kept"


@dataclass(frozen=True)
class Job:
    """One file to copy. source: real path, below `root` and no link. size, mtime: as it was planned. sha256: what its
    content must have, "" if unknown. node: NUMA node that its pages are bound to, "" for the mount's own policy. there: chunks of
    the target that an earlier run has copied (never all), and the digest of each where there is no sha256 and it is wanted."""

    source: str
    target: str
    root: str
    size: int
    mtime: float
    sha256: str = ""
    node: str = ""
    there: Mapping[int, str] = field(default_factory=dict, compare=False)


class Cold:
    """How the cold parts of one run are read: past the page cache or through it, each tried TRIES times, then the faster."""

    TRIES = 4

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun, self.ended = [0, 0], [0, 0]
        self.bytes, self.seconds = [0, 0], [0.0, 0.0]

    def direct(self) -> bool:
        """Whether the next part shall go past the page cache; `took` is told when it is read."""
        with self.lock:
            if min(self.ended) < self.TRIES:
                choice = self.begun[True] <= self.begun[False]
            else:
                choice = self.bytes[True] * self.seconds[False] >= self.bytes[False] * self.seconds[True]
            self.begun[choice] += 1
            return choice

    def took(self, direct: bool, count: int, seconds: float) -> None:
        """So long for so many bytes."""
        with self.lock:
            self.ended[direct] += 1
            self.bytes[direct] += count
            self.seconds[direct] += seconds


class Source:
    """An open source; threads may share it. Refused when it is not the file that was planned."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.direct: Optional[int] = None
        self.mapping: Optional[mmap.mmap] = None
        self.lock = threading.Lock()
        self.disk, self.tmpfs = False, False
        try:
            self.fd = os.open(job.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            raise Refused("the file cannot be opened any more: %s" % os.strerror(e.errno or 0), job.source, LATER)
        try:
            at = os.readlink("/proc/self/fd/%d" % self.fd)
            if not at.startswith(job.root.rstrip("/") + "/"):
                raise Refused("the file is now reached through a link out of %s" % job.root, job.source, LATER)
            self.check()
            device = os.fstat(self.fd).st_dev
            self.disk, self.tmpfs = bool(os.major(device)), not os.major(device) and _is_tmpfs(device)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Refused when it has changed since it was planned: asked before the copy, and after it."""
        now, job = os.fstat(self.fd), self.job
        if not stat.S_ISREG(now.st_mode) or now.st_size != job.size or now.st_mtime != job.mtime:
            raise Refused("the file changed while it was copied (%d bytes, now %d)" % (job.size, now.st_size), job.source, LATER)

    def close(self) -> None:
        """Once, when no thread reads any more."""
        if self.mapping is not None:
            self.mapping.close()
        os.close(self.fd)
        if self.direct is not None:
            os.close(self.direct)

    def lies(self, at: int) -> str:
        """Where the byte at `at` is. UNKNOWN for what has no disk of this machine below it (NFS, ZFS)."""
        if not self.disk:
            return MEMORY if self.tmpfs else UNKNOWN
        try:
            os.preadv(self.fd, [bytearray(1)], at, os.RWF_NOWAIT)
        except BlockingIOError:
            return DISK
        except OSError:
            return UNKNOWN
        return CACHE

    def give(self, target: int, start: int, end: int) -> int:
        """Write bytes from `start` on to the same place of `target`, by the kernel alone: how far it came. It stops where the
        source cannot be read, and `read` says why. Raises OSError of the target."""
        with self.lock:
            if self.mapping is None:
                try:
                    self.mapping = mmap.mmap(self.fd, self.job.size, prot=mmap.PROT_READ)
                except (OSError, ValueError):  # no mappings there; ValueError: shorter by now
                    return start
        with contextlib.suppress(OSError):  # EINVAL before Linux 5.14, EFAULT where the source ends by now: the write says so too
            self.mapping.madvise(POPULATE_READ, start - start % mmap.PAGESIZE, end - start)
        with memoryview(self.mapping) as source:
            while start < end:
                with source[start:end] as view:
                    try:
                        start += os.pwrite(target, view, start)
                    except OSError as e:
                        if e.errno != errno.EFAULT:
                            raise
                        break
        return start

    def go_direct(self) -> bool:
        """Open it a second time, past the page cache. False where the file system has no such thing."""
        if self.direct is None:
            try:
                self.direct = os.open("/proc/self/fd/%d" % self.fd, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                return False
        return True

    def read(self, view: memoryview, at: int, direct: bool = False) -> None:
        """Fill the view. direct: past the page cache where offset and length allow it (the view starts a page)."""
        size, got = len(view), 0
        while got < size:
            whole = direct and self.direct is not None and not (at + got) % BLOCK and size - got >= BLOCK
            fd, end = (self.direct or 0, got + (size - got) // BLOCK * BLOCK) if whole else (self.fd, size)
            try:
                count = os.preadv(fd, [view[got:end]], at + got)
            except OSError as e:
                if whole and e.errno == errno.EINVAL:  # blocks larger than BLOCK, or a file system that changed its mind
                    direct = False
                    continue
                raise Refused("reading at %d failed: %s" % (at + got, os.strerror(e.errno or 0)), self.job.source,
                              "look at the disk: dmesg | tail; then run this again")
            if not count:
                raise Refused("the file ends at %d, and was %d bytes long" % (at + got, self.job.size), self.job.source, LATER)
            got += count

    def forget(self, start: int, end: int) -> None:
        """Let the page cache drop this part (clean pages that nobody has mapped)."""
        os.posix_fadvise(self.fd, start, end - start, os.POSIX_FADV_DONTNEED)


def _is_tmpfs(device: int) -> bool:
    """Whether a mount of that device is one."""
    number = "%d:%d" % (os.major(device), os.minor(device))
    with open(mountinfo.PATH, encoding="utf-8", errors="surrogateescape") as f:
        return any((mount.device, mount.kind) == (number, "tmpfs") for mount in mountinfo.parse(f.read()))
