# SPDX-License-Identifier: Apache-2.0
"""What is staged: one manifest a copy, written last. A model without its manifest is not staged.

    /dev/shm/models/NAME/...                    the model, exactly the source's files
    /dev/shm/models/.hosttune/NAME.json         its manifest
    /dev/shm/models/.hosttune/NAME.partial/...  while it is copied
    /dev/shm/models/.hosttune/NAME.done         which of those files are whole, one JSON line each
    /dev/shm/models/.hosttune/NAME.chunks       what is there of the others (begun.py)
    /var/lib/hosttune/staged/NAME.json          that it was staged: what a reboot took is told from what was wiped

NAME is the model's, or MODEL@node1 for the copy on a further NUMA node.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Dict, List, Optional, Tuple

from .. import journal
from ..door.host import Host, errname, list_or_empty
from ..model import Refused

MOUNT = "/dev/shm/models"
OWN = MOUNT + "/.hosttune"
SCHEMA = "hosttune.model/1"
LARGEST = 64 << 20
LOCK = journal.STATE + "/stage.lock"
"""One for all that writes into the tmpfs: two stagers at once wait for each other."""
TURN_SECONDS = 3600
"""How long a run waits for another one to end: as long as the boot unit may take."""
RECORDS = journal.STATE + "/staged"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_COPY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@node\d+)?\Z")


@dataclass(frozen=True)
class Staged:
    """One file of a staged model. Its digest is sha256: of the whole file where the hub's own is known, else one for each
    chunk (manifest's `chunk` bytes), which threads can check side by side. mtime: the source's, and the copy's. hashed: on its
    way here, or since."""

    path: str
    size: int
    mtime: float
    sha256: str = ""
    chunks: Tuple[str, ...] = ()
    hashed: bool = True


@dataclass(frozen=True)
class Record:
    """That a model was staged: when, in which boot (its boot_id), how long that took, and from which source ("" in the notes of
    older versions)."""

    at: float
    boot: str
    seconds: float
    source: str = ""


@dataclass(frozen=True)
class Manifest:
    """A staged model. source: as declared. at: seconds since the epoch. chunk: bytes. node: it is bound to, "" for none.
    seconds: that the copy took, of `copied` bytes. doubts: (rule, what, where) of what was odd about the source."""

    name: str
    source: str
    folder: str
    revision: str
    at: float
    version: str
    chunk: int
    files: Tuple[Staged, ...]
    node: str = ""
    seconds: float = 0.0
    copied: int = 0
    doubts: Tuple[Tuple[str, str, str], ...] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)

    @property
    def unhashed(self) -> Tuple[Staged, ...]:
        """Files whose content nobody has hashed yet: they are whole by name, size and time."""
        return tuple(file for file in self.files if file.size and not file.hashed)


def check_name(name: str) -> str:
    """The name itself. Refused for one that is no plain file name."""
    if not _NAME.match(name):
        raise Refused("%r is no name for a model: letters, digits, dot, dash and underscore, at most 100" % name, "models")
    return name


def model_of(name: str) -> str:
    """The model whose copy this is."""
    return name.partition("@node")[0]


def folder_of(name: str) -> str:
    """Where a model lies."""
    return "%s/%s" % (MOUNT, name)


def manifest_path(name: str) -> str:
    """Its manifest: it exists when and only when the model is staged."""
    return "%s/%s.json" % (OWN, name)


def partial_path(name: str) -> str:
    """Where it lies while it is copied."""
    return "%s/%s.partial" % (OWN, name)


def done_path(name: str) -> str:
    """Which files of the partial copy are whole."""
    return "%s/%s.done" % (OWN, name)


def chunks_path(name: str) -> str:
    """Which chunks of its other files are there."""
    return "%s/%s.chunks" % (OWN, name)


def record_path(name: str) -> str:
    """What outlives the tmpfs."""
    return "%s/%s.json" % (RECORDS, name)


def record(host: Host, name: str) -> Optional[Record]:
    """None when it was never staged here, or when that cannot be told."""
    try:
        return Record(**json.loads(bytes_of(host, record_path(name)) or b""))
    except (ValueError, TypeError, OSError):
        return None


def load(host: Host, name: str) -> Optional[Manifest]:
    """The manifest, None when the model is not staged. Refused for a file that is no manifest."""
    data = bytes_of(host, manifest_path(name))
    if data is None:
        return None
    try:
        row = json.loads(data)
        if row.pop("schema") != SCHEMA:
            raise ValueError("its schema is not %s" % SCHEMA)
        row["files"] = tuple(_staged(file) for file in row["files"])
        row["doubts"] = tuple((str(code), str(what), str(where)) for code, what, where in row.get("doubts", ()))
        return Manifest(**row)
    except (ValueError, LookupError, TypeError) as e:
        raise Refused("this is no manifest of hosttune: %s" % e, manifest_path(name), "hosttune stage drop %s" % name)


def bytes_of(host: Host, path: str) -> Optional[bytes]:
    """A file of ours, None for none."""
    try:
        return host.read_bytes(path, LARGEST)
    except OSError as e:
        if errname(e) in ("ENOENT", "ENOTDIR"):
            return None
        raise


def _staged(row: Dict[str, object]) -> Staged:
    chunks = row.pop("chunks", ())
    return Staged(chunks=tuple(str(c) for c in chunks), **row)  # type: ignore[arg-type, attr-defined]


def dump(manifest: Manifest) -> bytes:
    """The manifest's bytes; any file name survives."""
    row = dict(asdict(manifest), schema=SCHEMA)
    return json.dumps(row, sort_keys=True).encode("ascii") + b"\n"


def line(file: Staged) -> bytes:
    """A line of the list of whole files."""
    return json.dumps(asdict(file), sort_keys=True).encode("ascii") + b"\n"


def header(node: str) -> bytes:
    """The first line of that list: where the copy lies."""
    return json.dumps({"node": node}).encode("ascii") + b"\n"


def done_node(host: Host, name: str) -> str:
    """The node that a partial copy is bound to."""
    for text in (bytes_of(host, done_path(name)) or b"").splitlines():
        try:
            return str(json.loads(text)["node"])
        except (ValueError, LookupError, TypeError):
            break
    return ""


def done(host: Host, name: str) -> Dict[str, Staged]:
    """Files of a partial copy that are whole, by path. A torn last line is one that is not."""
    found: Dict[str, Staged] = {}
    for text in (bytes_of(host, done_path(name)) or b"").splitlines():
        try:
            file = _staged(json.loads(text))
        except (ValueError, TypeError, AttributeError):
            continue
        found[file.path] = file
    return found


def names(host: Host) -> List[str]:
    """Models that are staged or half copied, sorted."""
    found = set()
    for entry in list_or_empty(host, OWN):
        stem, _, kind = entry.rpartition(".")
        if kind in ("json", "partial", "done") and _COPY.match(stem):
            found.add(stem)
    return sorted(found)


def damage(host: Host, folder: str, files: Tuple[Staged, ...]) -> List[str]:
    """What is wrong with a copy by names, sizes and times alone; nothing is read. [] for a whole one."""
    wrong = []
    for file in files:
        try:
            stat = host.lstat("%s/%s" % (folder, file.path))
        except OSError as e:
            wrong.append("%s: %s" % (shown(file.path), errname(e)))
            continue
        if stat.type != "file":
            wrong.append("%s: a %s stands there" % (shown(file.path), stat.type))
        elif stat.size != file.size:
            wrong.append("%s: %d bytes, want %d" % (shown(file.path), stat.size, file.size))
        elif stat.mtime != file.mtime:
            wrong.append("%s: changed since it was staged" % shown(file.path))
    return wrong


def shown(path: str) -> str:
    """A file name on one line, whatever is in it."""
    return path if path.isprintable() else ascii(path)


def exists(host: Host, path: str) -> bool:
    """Whether something is there."""
    try:
        host.lstat(path)
    except OSError as e:
        if errname(e) in ("ENOENT", "ENOTDIR"):
            return False
        raise
    return True


def bytes_below(host: Host, folder: str) -> int:
    """Bytes of all files in a folder."""
    total = 0
    for entry in host.list(folder):
        stat = host.lstat("%s/%s" % (folder, entry))
        total += bytes_below(host, "%s/%s" % (folder, entry)) if stat.type == "dir" else stat.size
    return total


def raw(host: Host, name: str) -> Optional[bytes]:
    """The manifest's bytes as they stand, None for none: a change of it must expect them."""
    return bytes_of(host, manifest_path(name))
