# SPDX-License-Identifier: Apache-2.0
"""What the files that a config includes say: followed to judge by, as LXC takes them, and never edited.

Seen with LXC 5.0.2 (tests/kernel holds it). A folder gives its files that end in .conf, not those of its folders. A file that is
not there, or that cannot be parsed, keeps the container from starting, and so does one that includes itself; a path that ends
in / and is not there is passed over. Whatever the config's own dialect, an included file is LXC's.
"""

from __future__ import annotations

import errno
import itertools
import posixpath
from dataclasses import replace
from typing import Dict, Iterator, List, Tuple

from ..door.host import Host, Unrecorded, errname
from .document import LXC, RAW, Document, Included, Line, parse

KEY = "lxc.include"
OF_LXC = "/usr/share/lxc/config/"
"""LXC's own, with its default device list: access.py knows what they say."""
FILE_LIMIT = 1 << 20
LINKS_FOLLOWED = 8


def is_lxcs_own(value: str) -> bool:
    """Whether a path is below LXC's own configuration, or none at all: nothing is asked of those."""
    path = _unquoted(value)
    return not path or path.startswith(OF_LXC)


def follow(host: Host, document: Document) -> Document:
    """The document with what its lxc.include lines bring in. Raises nothing: what cannot be had stands in it."""
    numbers = itertools.count(-1, -1)
    found: Dict[str, Included] = {}
    for line in document.main:
        if line.kind == RAW and line.key == KEY and line.value not in found:
            found[line.value] = _included(host, line.value, (), numbers)
    return replace(document, included=found) if found else document


def _included(host: Host, value: str, above: Tuple[str, ...], numbers: Iterator[int]) -> Included:
    path = _unquoted(value)
    if is_lxcs_own(value):
        return Included()
    if not path.startswith("/"):
        return Included(unread="%s: a relative path is taken from wherever LXC is started" % path)
    if path in above:
        return Included(broken="%s includes itself" % path)
    try:
        files = _files(host, path)
        texts = [(name, host.read_bytes(name, FILE_LIMIT)) for name in files]
    except OSError as e:
        if e.errno == errno.ENOENT:
            return Included() if path.endswith("/") else Included(broken="there is no %s" % (e.filename or path))
        return Included(unread="%s: %s" % (e.filename or path, errname(e)))
    except Unrecorded:
        return Included(unread="%s: not recorded" % path)
    lines: List[Line] = []
    broken = unread = ""
    for name, data in texts:
        for line in parse(data, LXC, path=name).lines:
            place = "%s:%d" % (name, line.number)
            broken = broken or ("%s: %s" % (place, line.reason) if line.reason else "")
            if line.kind != RAW:
                continue
            if line.key != KEY:
                lines.append(replace(line, number=next(numbers), origin=place))
                continue
            inner = _included(host, line.value, (*above, path, name), numbers)
            lines += inner.lines
            broken, unread = broken or inner.broken, unread or inner.unread
    return Included(tuple(lines), broken, unread)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0] else value


def _files(host: Host, path: str) -> List[str]:
    """The files of a path, itself or a folder. Raises OSError."""
    kind = _kind(host, path)
    if kind == "file":
        return [path]
    if kind != "dir":
        raise OSError(errno.EINVAL, "it is a %s" % kind, path)
    names = [name for name in sorted(host.list(path)) if name.endswith(".conf") and name != ".conf"]
    inside = ["%s/%s" % (path.rstrip("/"), name) for name in names]
    return [name for name in inside if _kind(host, name) != "dir"]


def _kind(host: Host, path: str) -> str:
    """What stands at a path, links followed: to read a pipe would wait for ever. Raises OSError."""
    at = path
    for _ in range(LINKS_FOLLOWED):
        kind = host.lstat(at).type
        if kind != "link":
            return kind
        at = posixpath.normpath(posixpath.join(posixpath.dirname(at), host.readlink(at)))
    raise OSError(errno.ELOOP, "too many links", path)
