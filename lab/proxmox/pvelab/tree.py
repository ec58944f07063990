# SPDX-License-Identifier: Apache-2.0
"""What /etc/pve holds and what it refuses: pmxcfs' in-memory tree over its SQLite file, without the FUSE part.

The table has the columns of the real /var/lib/pve-cluster/config.db. Every change is one transaction. Refusals are OSError
with the errno that pmxcfs returns (its memdb.c; seen on a real one: see README.md).
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = 1024 * 1024
TOTAL = 128 * LIMIT
ROOT = 0
_DIRECTORY, _REGULAR = 4, 8  # DT_DIR, DT_REG, as in the database
_GUEST = re.compile(r"nodes/([^/]+)/(qemu-server|lxc)/([1-9][0-9]*)\.conf")


@dataclass
class Entry:
    """A file or folder; `children` by name."""

    inode: int
    parent: int
    name: str
    mtime: int
    directory: bool
    data: bytes = b""
    children: dict[str, Entry] = field(default_factory=dict)


def refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Control:
    """The lab's hand on the cluster: files in a folder outside /etc/pve, looked at with each operation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def quorate(self) -> bool:
        return not (self.folder / "no-quorum").exists()

    @property
    def broken(self) -> bool:
        return (self.folder / "io-error").exists()

    @property
    def cluster(self) -> bool:
        return (self.folder / "cluster").exists() or not self.quorate


class Tree:
    """Paths are relative to /etc/pve, without a leading slash; `` is the root."""

    def __init__(self, database: Path, node: str, control: Control) -> None:
        self.node, self.control = node, control
        self.links = {"local": f"nodes/{node}", "lxc": f"nodes/{node}/lxc", "qemu-server": f"nodes/{node}/qemu-server"}
        self.errors = False
        self.version = 1
        self._database = database
        self._connection: sqlite3.Connection | None = None
        self.root = Entry(ROOT, ROOT, "", int(time.time()), True)

    def open(self) -> None:
        """Read the database, made if absent. Raises sqlite3.Error."""
        connection = sqlite3.connect(self._database, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS tree (inode INTEGER PRIMARY KEY NOT NULL, parent INTEGER NOT NULL, version INTEGER"
            " NOT NULL, writer INTEGER NOT NULL, mtime INTEGER NOT NULL, type INTEGER NOT NULL, name TEXT NOT NULL, data BLOB)"
        )
        entries = {ROOT: self.root}
        rows = connection.execute("SELECT inode, parent, mtime, type, name, data FROM tree ORDER BY inode").fetchall()
        for inode, parent, mtime, kind, name, data in rows:
            entries[inode] = Entry(inode, parent, name, mtime, kind == _DIRECTORY, data or b"")
            self.version = max(self.version, inode)
        for entry in entries.values():
            if entry is not self.root:
                entries[entry.parent].children[entry.name] = entry
        self._connection = connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def names(self, path: str) -> list[str]:
        """Names in a folder, the root's virtual ones included. Raises ENOENT, ENOTDIR."""
        entry = self.find(path)
        if not entry.directory:
            raise refuse(errno.ENOTDIR)
        return sorted(entry.children) + ([*self.links, *VIRTUAL] if path == "" else [])

    def find(self, path: str) -> Entry:
        """The entry of a path. Raises ENOENT, ENOTDIR."""
        entry = self.root
        for name in path.split("/") if path else []:
            if not entry.directory:
                raise refuse(errno.ENOTDIR)
            if name not in entry.children:
                raise refuse(errno.ENOENT)
            entry = entry.children[name]
        return entry

    def guests(self) -> Iterator[tuple[str, str, int]]:
        """(node, lxc or qemu-server, vmid) of every guest's file in the cluster."""
        nodes = self.root.children.get("nodes")
        for node in nodes.children.values() if nodes else ():
            for kind in ("lxc", "qemu-server"):
                folder = node.children.get(kind)
                for name in folder.children if folder else ():
                    if guest := _GUEST.fullmatch(f"nodes/{node.name}/{kind}/{name}"):
                        yield guest[1], guest[2], int(guest[3])

    def virtual(self, name: str) -> bytes:
        """Text of .members, .vmlist, .version, in the form that pmxcfs prints."""
        if name == ".members":
            if not self.control.cluster:
                return f'{{\n"nodename": "{self.node}",\n"version": 0\n}}\n'.encode()
            quorate = int(self.control.quorate)
            return (
                f'{{\n"nodename": "{self.node}",\n"version": 4,\n"cluster": {{ "name": "lab", "version": 2, "nodes": 2, '
                f'"quorate": {quorate} }},\n"nodelist": {{\n  "{self.node}": {{ "id": 1, "online": 1, "ip": "10.0.100.1"}},\n'
                f'  "other": {{ "id": 2, "online": {quorate}, "ip": "10.0.100.2"}}\n  }}\n}}\n'
            ).encode()
        if name == ".vmlist":
            ids = ",\n".join(
                f'"{vmid}": {{ "node": "{node}", "type": "{"lxc" if kind == "lxc" else "qemu"}", "version": 1 }}'
                for node, kind, vmid in self.guests()
            )
            return f'{{\n"version": {self.version},\n"ids": {{\n{ids}}}\n\n}}\n'.encode()
        return (json.dumps({"starttime": self.root.mtime, "clinfo": 0, "vmlist": self.version}) + "\n").encode()

    # Each of the following raises EACCES without quorum and EIO once the database has failed, as pmxcfs does.

    def create(self, path: str) -> None:
        self._writable()
        self._own(path)
        self._add(path, directory=False)

    def mkdir(self, path: str) -> None:
        self._writable()
        self._add(path, directory=True)

    def write(self, path: str, data: bytes, offset: int) -> int:
        """Put `data` at `offset`; EFBIG past 1 MiB, what was written before stays."""
        self._writable()
        if offset + len(data) > LIMIT:
            raise refuse(errno.EFBIG)
        entry = self._file(path)
        before = entry.data.ljust(offset, b"\0")
        self._store(entry, data=before[:offset] + data + before[offset + len(data) :])
        return len(data)

    def truncate(self, path: str, size: int) -> None:
        self._writable()
        if size > LIMIT:
            raise refuse(errno.EFBIG)
        entry = self._file(path)
        self._store(entry, data=entry.data[:size].ljust(size, b"\0"))

    def touch(self, path: str, mtime: int) -> None:
        self._writable()
        entry = self.find(path)
        if entry is self.root:
            raise refuse(errno.EACCES)
        entry.mtime = mtime
        self._store(entry, data=None)

    def remove(self, path: str) -> None:
        """A file, or an empty folder."""
        self._writable()
        entry = self._movable(path)
        if entry.children:
            raise refuse(errno.ENOTEMPTY)
        self._transaction([("DELETE FROM tree WHERE inode = ?", (entry.inode,))])
        del self._parent(path).children[entry.name]

    def rename(self, source: str, target: str) -> None:
        """Replace `target`, in one transaction; a folder must be empty (pmxcfs moves no trees)."""
        self._writable()
        entry = self._movable(source)
        moved, wanted = _GUEST.fullmatch(source), _GUEST.fullmatch(target)
        same_guest = moved is not None and wanted is not None and moved[3] == wanted[3]
        if not entry.directory and not same_guest:
            self._own(target)
        self._not_virtual(target)
        parent = self._parent(target)
        name = target.rpartition("/")[2]
        replaced = parent.children.get(name)
        if entry.children or (replaced is not None and replaced.children):
            raise refuse(errno.ENOTEMPTY)
        work: list[tuple[str, tuple[object, ...]]] = []
        if replaced is not None and replaced is not entry:
            work.append(("DELETE FROM tree WHERE inode = ?", (replaced.inode,)))
        now = int(time.time())
        work.append(("UPDATE tree SET parent = ?, name = ?, mtime = ? WHERE inode = ?", (parent.inode, name, now, entry.inode)))
        self._transaction(work)
        del self._parent(source).children[entry.name]
        entry.parent, entry.name, entry.mtime = parent.inode, name, now
        parent.children[name] = entry

    def _writable(self) -> None:
        if not self.control.quorate:
            raise refuse(errno.EACCES)
        if self.errors or self.control.broken:
            raise refuse(errno.EIO)

    def _own(self, path: str) -> None:
        """A vmid exists once in a cluster: EEXIST while another node or a VM has it."""
        if wanted := _GUEST.fullmatch(path):
            node, kind, vmid = wanted[1], wanted[2], int(wanted[3])
            if any(other[2] == vmid and other[:2] != (node, kind) for other in self.guests()):
                raise refuse(errno.EEXIST)

    def _not_virtual(self, path: str) -> None:
        if path == "" or path in self.links or path in VIRTUAL:
            raise refuse(errno.EACCES)

    def _movable(self, path: str) -> Entry:
        self._not_virtual(path)
        return self.find(path)

    def _file(self, path: str) -> Entry:
        self._not_virtual(path)
        self._own(path)
        entry = self.find(path)
        if entry.directory:
            raise refuse(errno.EISDIR)
        return entry

    def _parent(self, path: str) -> Entry:
        parent = self.find(path.rpartition("/")[0])
        if not parent.directory:
            raise refuse(errno.ENOTDIR)
        return parent

    def _add(self, path: str, directory: bool) -> None:
        self._not_virtual(path)
        parent, name = self._parent(path), path.rpartition("/")[2]
        if name in parent.children:
            raise refuse(errno.EEXIST)
        entry = Entry(self.version + 1, parent.inode, name, int(time.time()), directory)
        kind = _DIRECTORY if directory else _REGULAR
        self._transaction([("INSERT INTO tree VALUES (?, ?, ?, 0, ?, ?, ?, NULL)",
                            (entry.inode, parent.inode, entry.inode, entry.mtime, kind, name))])  # fmt: skip
        parent.children[name] = entry

    def _store(self, entry: Entry, data: bytes | None) -> None:
        if data is not None:
            entry.data, entry.mtime = data, int(time.time())
        self._transaction([("UPDATE tree SET version = ?, mtime = ?, data = ? WHERE inode = ?",
                            (self.version + 1, entry.mtime, entry.data, entry.inode))])  # fmt: skip

    def _transaction(self, work: list[tuple[str, tuple[object, ...]]]) -> None:
        connection = self._connection
        if connection is None:
            raise refuse(errno.EIO)
        try:
            connection.execute("BEGIN")
            for statement, values in work:
                connection.execute(statement, values)
            connection.execute("COMMIT")
        except sqlite3.Error:
            self.errors = True  # until a restart, as in pmxcfs: a full disk takes writes away for good
            raise refuse(errno.EIO)
        self.version += 1


VIRTUAL = (".members", ".vmlist", ".version")
