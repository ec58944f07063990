# SPDX-License-Identifier: Apache-2.0
"""Where a model comes from: a local directory, or a snapshot in a Hugging Face cache (links into blobs).

`hf:REPO@REVISION` means that revision in a cache on this machine; hosttune/hub.py brings it there. `ssh:HOST:DIRECTORY` is a
directory of another machine: over_ssh.py looks at it, by running this very file there. Only links that stay inside the source
(for a snapshot: inside its cache) are followed: root copies, everyone may read the copy, so a link to /etc/shadow in
somebody's folder must not publish it.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..door.host import Host, errname, list_or_empty, read_or_none
from ..model import Refused

LINKS_FOLLOWED = 40
"""As the kernel: MAXSYMLINKS in include/linux/namei.h."""
LOCAL = "/.cache/huggingface"
"""Where huggingface_hub keeps its notes of a local_dir download."""
SKIPPED_FOLDERS = (".git", ".cache", ".huggingface")
"""Bookkeeping of the tools that brought the files (git; huggingface_hub's local_dir), no part of the model."""
_UNFINISHED = re.compile(r".+\.(incomplete|aria2|part|partial|crdownload|tmp)\Z|\..+\.[A-Za-z0-9]{6}\Z")
"""Downloads that have not ended: huggingface_hub, aria2, browsers; `.name.XXXXXX` is rsync's."""
_SNAPSHOT = re.compile(r"(?P<cache>.*)/models--[^/]+/snapshots/(?P<commit>[0-9a-f]{40})\Z", re.DOTALL)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_SHA1 = re.compile(r"[0-9a-f]{40}\Z")
_HUB = re.compile(r"hf:(?P<repo>[^@\s]+)@(?P<revision>\S+)\Z")
_SSH = re.compile(r"ssh:(?P<machine>[^-\s:][^\s:]*):(?P<folder>/.+)\Z", re.DOTALL)
AGAIN = "download it again, or name another directory with --source"


class NotWhole(Refused):
    """What is there is no whole model. code: the rule that says so (whole.py)."""

    def __init__(self, code: str, what: str, where: str = "", way_out: str = "") -> None:
        self.code = code
        super().__init__(what, where, way_out)


@dataclass(frozen=True)
class Doubt:
    """Something odd that need not be wrong. code: the rule. where: the file."""

    code: str
    what: str
    where: str


@dataclass(frozen=True)
class File:
    """One file. path: relative to the model. source: its real path. mtime: seconds. sha256: of its content where the hub's
    own is known (its ETag, by which a cache names the blob: 64 hex digits for a large file), else "". git: the same for a
    small file, 40 hex digits: sha1 of "blob SIZE", a zero byte and the content."""

    path: str
    source: str
    size: int
    mtime: float
    sha256: str = ""
    git: str = ""


@dataclass(frozen=True)
class Source:
    """A model's files. spec: as declared. folder: real path. root: no file lies outside it. revision: commit or "".
    unfinished: a download into the same cache or directory that has not ended, "" for none. machine: where it is, "" for here.
    doubts: of that machine, which has judged it."""

    spec: str
    folder: str
    root: str
    files: Tuple[File, ...]
    revision: str = ""
    unfinished: str = ""
    machine: str = ""
    doubts: Tuple[Doubt, ...] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.size for file in self.files)


def hub_caches(environ: Mapping[str, str], home: str) -> Tuple[str, ...]:
    """Where huggingface_hub keeps its cache, by its own rules; the first that is set counts."""
    if environ.get("HF_HUB_CACHE"):
        return (environ["HF_HUB_CACHE"],)
    if environ.get("HF_HOME"):
        return (os.path.join(environ["HF_HOME"], "hub"),)
    base = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return (os.path.join(base, "huggingface", "hub"),)


def locate(host: Host, spec: str, caches: Sequence[str]) -> str:
    """The directory that a declared source means. Refused when it is not on this machine, with the way to get it there."""
    hub = _HUB.match(spec)
    if hub:
        return _snapshot(host, hub["repo"], hub["revision"], caches)
    if not spec.startswith("/"):
        raise Refused("the source %r is no absolute path, hf:REPO@REVISION or ssh:HOST:DIRECTORY" % spec, "source")
    return spec


def hub_of(spec: str) -> Optional[Tuple[str, str]]:
    """(repository, revision) of hf:REPO@REVISION, None for another source."""
    hub = _HUB.match(spec)
    return (hub["repo"], hub["revision"]) if hub else None


def ssh_of(spec: str) -> Optional[Tuple[str, str]]:
    """(machine, directory) of ssh:HOST:/DIRECTORY, None for another source. No HOST is an option of ssh."""
    found = _SSH.match(spec)
    return (found["machine"], found["folder"]) if found else None


def _snapshot(host: Host, repo: str, revision: str, caches: Sequence[str]) -> str:
    get = "hf download %s --revision %s (on this machine, as the user whose cache is meant)" % (repo, revision)
    for cache in caches:
        folder = "%s/models--%s" % (cache, repo.replace("/", "--"))
        commit = revision
        if not re.match(r"[0-9a-f]{40}\Z", revision):
            commit = (read_or_none(host, "%s/refs/%s" % (folder, revision)) or "").strip()
        if commit and re.match(r"[0-9a-f]{40}\Z", commit) and list_or_empty(host, "%s/snapshots/%s" % (folder, commit)):
            return "%s/snapshots/%s" % (folder, commit)
    where = ", ".join(caches) or "no cache"
    raise NotWhole("NO_SNAPSHOT", "%s at revision %s is not in the Hugging Face cache here" % (repo, revision), where, get)


def read(host: Host, spec: str, caches: Sequence[str] = ()) -> Source:
    """All files of a source. Refused, with the one path that is wrong, when it cannot be a model's source."""
    named = locate(host, spec, caches)
    try:
        folder = real_path(host, named)
        if host.lstat(folder).type != "dir":
            raise NotWhole("NO_SNAPSHOT", "the source is no directory", named,
                           "name the directory of the model's files: --source %s" % os.path.dirname(named))
        snapshot = _SNAPSHOT.match(folder)
        root = snapshot["cache"] if snapshot else folder
        files = tuple(_with_local_hashes(host, folder, _walk(host, folder, root, "", (folder,))))
        coming = folder.rpartition("/snapshots/")[0] + "/blobs" if snapshot else folder + LOCAL + "/download"
    except OSError as e:
        raise NotWhole("NO_SNAPSHOT", "the source cannot be read: %s" % _words(e), e.filename or named,
                      "is its file system mounted? ls -lL %s" % named)
    return Source(spec, folder, root, files, snapshot["commit"] if snapshot else _local_commit(host, folder),
                  _unfinished(host, coming))


def listing(host: Host, source: Source) -> Dict[str, Dict[str, Any]]:
    """trees/COMMIT.json, which huggingface_hub writes since 1.22 beside a snapshot, or below .cache of a local_dir: path ->
    {size, blob_id, and for a large file lfs_size, lfs_sha256}. {} when there is none."""
    snapshot = "/snapshots/" in source.folder
    top = source.folder.rpartition("/snapshots/")[0] if snapshot else source.folder + LOCAL
    text = read_or_none(host, "%s/trees/%s.json" % (top, source.revision)) if source.revision else None
    try:
        rows = json.loads(text)["files"] if text else {}
        return {str(name): row for name, row in rows.items() if isinstance(row, dict)}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _local_commit(host: Host, folder: str) -> str:
    """The revision of a local_dir download: the only list that is there. "" when there is none, or several."""
    names = [n[: -len(".json")] for n in list_or_empty(host, folder + LOCAL + "/trees") if n.endswith(".json")]
    return names[0] if len(names) == 1 and _SHA1.match(names[0]) else ""


def _with_local_hashes(host: Host, folder: str, files: List[File]) -> List[File]:
    """The hashes that huggingface_hub noted for a local_dir: three lines a file, commit, ETag, time; it trusts them itself
    only if the file is not younger than that time."""
    if not list_or_empty(host, folder + LOCAL + "/download"):
        return files
    out = []
    for file in files:
        lines = (read_or_none(host, "%s%s/download/%s.metadata" % (folder, LOCAL, file.path)) or "").splitlines()
        try:
            noted = lines[1] if len(lines) == 3 and file.mtime - 1 <= float(lines[2]) else ""
        except ValueError:
            noted = ""
        sha256, git = file.sha256 or (noted if _SHA256.match(noted) else ""), file.git or (noted if _SHA1.match(noted) else "")
        out.append(File(file.path, file.source, file.size, file.mtime, sha256, git))
    return out


def _unfinished(host: Host, folder: str) -> str:
    return next(("%s/%s" % (folder, name) for name in list_or_empty(host, folder) if name.endswith(".incomplete")), "")


def real_path(host: Host, path: str) -> str:
    """The path without links. Raises OSError: ENOENT for a dangling link, ELOOP for one that leads to itself."""
    todo = path.split("/")[::-1]
    at, links = "", 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = at.rpartition("/")[0]
            continue
        step = at + "/" + part
        if host.lstat(step).type != "link":
            at = step
            continue
        links += 1
        if links > LINKS_FOLLOWED:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        to = host.readlink(step)
        at = "" if to.startswith("/") else at
        todo += to.split("/")[::-1]
    return at or "/"


def _walk(host: Host, folder: str, root: str, prefix: str, above: Tuple[str, ...]) -> List[File]:
    out: List[File] = []
    for name in host.list(folder):
        path, at = prefix + name, "%s/%s" % (folder, name)
        stat, blob = host.lstat(at), ""
        if stat.type == "link":
            blob = host.readlink(at)
            at = _follow(host, at, root)
            stat = host.lstat(at)
        if stat.type == "dir":
            if at in above:
                raise Refused("the link leads to a folder above itself", "%s/%s" % (folder, name), "remove it")
            if name not in SKIPPED_FOLDERS:
                out += _walk(host, at, root, path + "/", above + (at,))
        elif stat.type != "file":
            raise Refused("neither a file nor a folder (%s)" % stat.type, at, "remove it, or name another source")
        elif _UNFINISHED.match(name):
            raise NotWhole("PARTIAL", "a download has not ended", at,
                           "let it end, or remove that file if nothing writes to it any more")
        else:
            known = _known_digest(blob)
            out.append(File(path, at, stat.size, stat.mtime, known if _SHA256.match(known) else "",
                            known if _SHA1.match(known) else ""))
    return out


def _follow(host: Host, link: str, root: str) -> str:
    try:
        at = real_path(host, link)
    except OSError as e:
        to = "a link to nothing (%s)" % host.readlink(link) if e.errno == errno.ENOENT else "a link in a circle"
        raise NotWhole("DANGLING", to, link, "download that file again: the cache kept the link and lost what it points to")
    if not (at + "/").startswith(root.rstrip("/") + "/"):
        raise NotWhole("DANGLING", "a link that leaves the source, to %s" % at, link,
                      "put the file itself there: all that is staged can be read by everyone")
    return at


def _known_digest(link: str) -> str:
    folder, _, name = link.rpartition("/")
    return name if folder.endswith("/blobs") else ""


def _words(e: OSError) -> str:
    return "%s (%s)" % (e.strerror or "unknown", errname(e))
