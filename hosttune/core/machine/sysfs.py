# SPDX-License-Identifier: Apache-2.0
"""Values in /proc and /sys: one file, one word of several with the one in use in brackets, or a pattern of like files."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import re
from typing import Dict, List

from ..door.host import Host, list_or_empty, read_or_none
from ..model import Refused

_IN_USE = re.compile(r"(?:^|\s)\[(\S+)\](?:\s|$)")


def in_use(text: str) -> str:
    """The value of a file: "madvise" of "always [madvise] never", else its text without the ends' blanks."""
    chosen = _IN_USE.search(text)
    return chosen.group(1) if chosen else text.strip()


def words(text: str) -> List[str]:
    """Every word that such a file offers, or that a list of possible values holds."""
    return text.replace("[", " ").replace("]", " ").split()


def files(host: Host, pattern: str) -> List[str]:
    """The files of a pattern with one `*` in it, sorted; a path without one is itself, there or not."""
    if "*" not in pattern:
        return [pattern]
    head, _, tail = pattern.partition("*")
    folder, _, start = head.rpartition("/")
    middle, _, rest = tail.partition("/")
    names = fnmatch.filter(list_or_empty(host, folder), start + "*" + middle)
    return ["%s/%s%s" % (folder, name, "/" + rest if rest else "") for name in names]


def there(host: Host, pattern: str) -> bool:
    """Whether there is such a file, told by the first that may match. Raises OSError for one that may not be read."""
    return any(read_or_none(host, path) is not None for path in files(host, pattern)[:1])


def values(host: Host, pattern: str) -> Dict[str, str]:
    """{file: value} of those that are there. Raises OSError for one that may not be read."""
    found = {}
    for path in files(host, pattern):
        try:
            found[path] = in_use(host.read(path))
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
    return found


def value(host: Host, pattern: str) -> str:
    """The value of one file, or that of all files of a pattern; "mixed: 3 powersave, 5 performance" when they differ.
    Raises OSError; ENOENT when there is none at all."""
    if "*" not in pattern:
        return in_use(host.read(pattern))
    found = list(values(host, pattern).values())
    if not found:
        raise FileNotFoundError(errno.ENOENT, "no such file", pattern)
    if len(set(found)) == 1:
        return found[0]
    return "mixed: " + ", ".join("%d %s" % (found.count(each), each) for each in sorted(set(found)))


def write_all(host: Host, pattern: str, before: str, after: str) -> None:
    """Write `after` to every file of a pattern. Where one refuses it or keeps its own value, the others get `before` back:
    raises that OSError, or Refused with how many kept which value."""
    paths = list(values(host, pattern))
    written: List[str] = []
    try:
        for path in paths:
            host.poke(path, after)
            written.append(path)
        now = values(host, pattern)
        kept = sorted(path for path in paths if now.get(path) != after)
        if kept:
            what = "it did not stick: %d of %d still have %s" % (
                len(kept),
                len(paths),
                ", ".join(sorted({now.get(path, "none") for path in kept})),
            )
            raise Refused(what + ("" if len(kept) == len(paths) else "; the others were put back"), kept[0])
    except (OSError, Refused):
        _put_back(host, written, before)
        raise


def take_back_half(host: Host, pattern: str, before: str, after: str) -> bool:
    """Whether a killed run left some files with `after` and the others with `before`: then all have `before` again."""
    found = values(host, pattern) if "*" in pattern else {}
    if set(found.values()) != {before, after}:
        return False
    _put_back(host, [path for path, now in found.items() if now == after], before)
    return True


def _put_back(host: Host, paths: List[str], before: str) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            host.poke(path, before)
