# SPDX-License-Identifier: Apache-2.0
"""The proof that an edit did what it said, and nothing else. Without it no file is written."""

from __future__ import annotations

from typing import Collection, List, Sequence, Tuple, TypeVar

from . import document as doc
from . import pve
from .document import KEY, RAW, Document
from .entries import DEV_KEY

T = TypeVar("T")


def prove(old: Document, new: Document, remove: Collection[int], add: Sequence[Tuple[str, str]]) -> None:
    """Both files, without the lines (by number) that were removed and the (key, value) that were added, must be the same:
    line by line, and as Proxmox VE reads them. Raises AssertionError: then the mistake is ours."""
    for line in old.lines:
        if line.number in remove and not (line.kind == RAW or line.kind == KEY and DEV_KEY.match(line.key)):
            raise AssertionError("an edit wanted to remove %r from %s" % (line.text, old.path))
    if [line.raw for line in old.lines if line.part] != [line.raw for line in new.lines if line.part]:
        raise AssertionError("an edit of main reached another section of %s" % old.path)
    texts = [doc.format_line(old, key, value) for key, value in add]
    if _without(texts, [line.text for line in new.main]) != [line.text for line in old.main if line.number not in remove]:
        raise AssertionError("an edit changed more than it said in %s" % old.path)
    before, after = pve.kept(doc.rewrite(old, remove, {}))[""], pve.kept(new)[""]
    for key, value in add:
        if DEV_KEY.match(key) and (key in before.keys or after.keys.pop(key, None) != value):
            raise AssertionError("%s: %s did not arrive in %s" % (key, value, old.path))
    after.raw = _without([(key, value) for key, value in add if not DEV_KEY.match(key)], after.raw)
    if before != after:
        raise AssertionError("an edit changed what Proxmox VE reads in %s" % old.path)


def _without(gone: Sequence[T], items: Sequence[T]) -> List[T]:
    """The items without the last occurrence of each that is gone: a new line stands below the old ones of its kind."""
    out = list(items)
    for item in gone:
        for index in range(len(out) - 1, -1, -1):
            if out[index] == item:
                del out[index]
                break
        else:
            raise AssertionError("%r did not arrive" % (item,))
    return out
