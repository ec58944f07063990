# SPDX-License-Identifier: Apache-2.0
"""`pmxcfs`: the tree of tree.py at /etc/pve, through FUSE.

What is *not* defined here matters: link, symlink, mknod and the xattr calls have no function in pmxcfs either, so the kernel
answers for both of them. The same mount options, the same libfuse 2, direct_io on every open file.
"""

from __future__ import annotations

import argparse
import errno
import grp
import importlib
import os
import stat
from pathlib import Path
from typing import Any

from .tree import LIMIT, TOTAL, VIRTUAL, Control, Entry, Tree, refuse

BLOCK = 4096
PID = Path("/run/pve/pmxcfs.pid")


def _private(path: str) -> bool:
    """priv/ of the cluster and of each node: for root alone."""
    words = path.split("/")
    return words[0] == "priv" or (words[0] == "nodes" and words[2:3] == ["priv"])


class Filesystem:
    """Operations for fusepy; paths come with a leading slash. A refusal is an OSError, whose errno goes to the caller."""

    use_ns = True  # times in nanoseconds

    def __init__(self, tree: Tree, group: int) -> None:
        self.tree, self.group = tree, group

    def __call__(self, operation: str, path: str, *arguments: Any) -> Any:
        return getattr(self, operation)(path.strip("/") if path is not None else "", *arguments)

    def init(self, path: str) -> None:
        PID.parent.mkdir(exist_ok=True)
        PID.write_text(f"{os.getpid()}\n")
        self.tree.open()  # after the daemon's fork: SQLite must not be carried across one
        for folder in ("nodes", f"nodes/{self.tree.node}", "priv", *(f"nodes/{self.tree.node}/{name}"
                       for name in ("lxc", "qemu-server", "priv"))):  # fmt: skip
            try:
                self.tree.mkdir(folder)
            except OSError:
                pass  # there already, or no quorum: then it is made at a later start

    def destroy(self, path: str) -> None:
        self.tree.close()

    def getattr(self, path: str, handle: Any = None) -> dict[str, int]:
        quorate = self.tree.control.quorate
        if path in self.tree.links:
            seen = self._attributes(stat.S_IFLNK | 0o755, len(self.tree.links[path]), self.tree.root)
        elif path in VIRTUAL:
            seen = self._attributes(stat.S_IFREG | 0o440, len(self.tree.virtual(path)), self.tree.root)
        else:
            entry = self.tree.find(path)
            if entry.directory:
                seen = self._attributes(stat.S_IFDIR | (0o755 if quorate else 0o555), 0, entry)
            else:
                seen = self._attributes(stat.S_IFREG | (0o640 if quorate else 0o440), len(entry.data), entry)
        if _private(path):
            seen["st_mode"] &= ~0o077
        return seen

    def _attributes(self, mode: int, size: int, entry: Entry) -> dict[str, int]:
        time = entry.mtime * 10**9
        return {"st_mode": mode, "st_nlink": 2 if stat.S_ISDIR(mode) else 1, "st_size": size, "st_uid": 0,
                "st_gid": self.group, "st_ino": entry.inode, "st_atime": time, "st_mtime": time, "st_ctime": time,
                "st_blocks": (size + BLOCK - 1) // BLOCK * (BLOCK // 512), "st_blksize": BLOCK}  # fmt: skip

    def readdir(self, path: str, handle: Any) -> list[str]:
        return [".", "..", *self.tree.names(path)]

    def readlink(self, path: str) -> str:
        if path not in self.tree.links:
            raise refuse(errno.EINVAL)
        return self.tree.links[path]

    def open(self, path: str, handle: Any) -> int:
        handle.direct_io, handle.keep_cache = 1, 0
        if path not in VIRTUAL:
            self.tree.find(path)
        return 0

    def create(self, path: str, mode: int, handle: Any) -> int:
        self.tree.create(path)
        handle.direct_io, handle.keep_cache = 1, 0
        return 0

    def read(self, path: str, size: int, offset: int, handle: Any) -> bytes:
        data = self.tree.virtual(path) if path in VIRTUAL else self.tree.find(path).data
        return data[offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, handle: Any) -> int:
        return self.tree.write(path, data, offset)

    def truncate(self, path: str, size: int, handle: Any = None) -> int:
        self.tree.truncate(path, size)
        return 0

    def unlink(self, path: str) -> int:
        self.tree.remove(path)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self.tree.mkdir(path)
        return 0

    def rmdir(self, path: str) -> int:
        self.tree.remove(path)
        return 0

    def rename(self, source: str, target: str) -> int:
        self.tree.rename(source, target.strip("/"))
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        import time

        self.tree.touch(path, int(time.time()) if times is None else times[1] // 10**9)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        if stat.S_IMODE(mode) != (0o600 if _private(path) else 0o640):
            raise refuse(errno.EPERM)
        return 0

    def chown(self, path: str, user: int, group: int) -> int:
        unchanged = (-1, 0xFFFFFFFF)
        if user not in (0, *unchanged) or group not in (self.group, *unchanged):
            raise refuse(errno.EPERM)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        used = sum((len(entry.data) + BLOCK - 1) // BLOCK for entry in _walk(self.tree.root))
        free = TOTAL // BLOCK - used
        return {"f_bsize": BLOCK, "f_frsize": BLOCK, "f_blocks": TOTAL // BLOCK, "f_bfree": free, "f_bavail": free,
                "f_files": LIMIT // 4, "f_ffree": LIMIT // 4, "f_namemax": 256}  # fmt: skip


def _walk(entry: Entry) -> list[Entry]:
    return [entry, *(below for child in entry.children.values() for below in _walk(child))]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pmxcfs", description="the Proxmox VE cluster file system, as the lab plays it")
    parser.add_argument("-f", "--foreground", action="store_true")
    parser.add_argument("--mount", default="/etc/pve")
    parser.add_argument("--database", type=Path, default=Path("/var/lib/pve-cluster/config.db"))
    parser.add_argument("--control", type=Path, default=Path("/var/lib/hosttune-lab/pmxcfs"))
    parser.add_argument("--node", default=os.uname().nodename.partition(".")[0])
    options = parser.parse_args(argv)
    try:
        fuse = importlib.import_module("fusepy")  # Debian's name for it
    except ImportError:
        fuse = importlib.import_module("fuse")
    tree = Tree(options.database.absolute(), options.node, Control(options.control.absolute()))
    operations = Filesystem(tree, grp.getgrnam("www-data").gr_gid)
    # No caching of names and attributes, other than in pmxcfs (1 s): a test sees a lost quorum at once.
    fuse.FUSE(operations, options.mount, raw_fi=True, foreground=options.foreground, nothreads=True, allow_other=True,
              default_permissions=True, big_writes=True, fsname="/dev/fuse", attr_timeout=0, entry_timeout=0)  # fmt: skip
    return 0
