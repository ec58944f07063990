# SPDX-License-Identifier: Apache-2.0
"""Take an edit of a container config back after somebody else has written the file: Proxmox VE rewrites it at each backup.

By content, as the edit was made: of what main holds now, the lines go that hosttune had added, and those come back that it
had removed. Everything else stays, whoever wrote it.
"""

from __future__ import annotations

from collections import Counter
from typing import Counter as Counts
from typing import Dict, List, Tuple

from . import document as doc
from .document import KEY, RAW, Document, parse
from .edit import refuse
from .store import guess_dialect

Said = Tuple[str, str, str]
"""kind, key and value: what a line says, however it is written."""


def applies(effect: str, subject: str, path: str) -> bool:
    """Whether a step is the edit of a container's config on its host."""
    return effect == "replace" and subject.startswith("ct:") and (path.startswith("/etc/pve/") or path.endswith("/config"))


def taken_out(now: str, before: str, after: str, path: str) -> str:
    """The file `now` without what the edit from `before` to `after` put in, and with what it took out.

    Returns `now` where nothing of the edit is left. Raises Refused for a file that must not be edited now.
    """
    old, new, today = (_parse(text, path) for text in (before, after, now))
    added, removed = _said(new) - _said(old), _said(old) - _said(new)
    remove: Dict[int, str] = {}
    for line in today.main:
        said = (line.kind, line.key, line.value)
        if added[said] > 0:
            added[said] -= 1
            remove[line.number] = "put in by hosttune"
    left = _said(today) - Counter((line.kind, line.key, line.value) for line in today.main if line.number in remove)
    missing: Counts[Said] = removed - left
    insert: Dict[int, List[str]] = {}
    for line in old.main:
        said = (line.kind, line.key, line.value)
        if missing[said] > 0 and not (line.kind == KEY and _has_key(today, line.key, remove)):
            missing[said] -= 1
            prefixes = ("dev", "") if line.kind == KEY else (line.key, "lxc.")
            at = doc.after_last(today, line.kind, prefixes)
            insert.setdefault(at, []).append(doc.format_line(today, line.key, line.value))
    if not remove and not insert:
        return now
    refuse(today)
    return doc.render(doc.rewrite(today, remove, insert)).decode("utf-8", "surrogateescape")


def _parse(text: str, path: str) -> Document:
    data = text.encode("utf-8", "surrogateescape")
    return parse(data, guess_dialect(path, data), path=path)


def _said(document: Document) -> Counts[Said]:
    return Counter((line.kind, line.key, line.value) for line in document.main if line.kind in (RAW, KEY))


def _has_key(document: Document, key: str, remove: Dict[int, str]) -> bool:
    """Whether somebody has given that devN to another device since: it is theirs now."""
    return any(line.kind == KEY and line.key == key and line.number not in remove for line in document.main)
