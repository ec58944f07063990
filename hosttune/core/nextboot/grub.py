# SPDX-License-Identifier: Apache-2.0
"""GRUB's generated menu: its entries as a tree, and the one that boots when nobody touches the keyboard.

Read as grub-mkconfig writes it (util/grub.d/00_header.in, 10_linux.in): `menuentry 'TITLE' ... $menuentry_id_option 'ID' {`,
`submenu` in the same way, `linux PATH WORDS` and `initrd PATH` inside. The default is an index, a title or an id; `A>B` leads
into a submenu. `next_entry` of the environment block is used once, before everything else.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

FOLDERS = ("/boot/grub", "/boot/grub2")
"""Each holds grub.cfg and grubenv, the environment block. The second is Fedora's and SUSE's."""
BLS = re.compile(r"(?m)^\s*blscfg\b")
"""Fedora's menu: its entries are files of /boot/loader/entries, and saved_entry is the name of one."""
_DEEPEST = 50

_DEFAULT = re.compile(r'\s*set default="?([^"\n]*?)"?\s*\Z')


@dataclass(frozen=True)
class Entry:
    """A menu entry, or a submenu with `entries`. linux, initrd: as GRUB names them; words: the kernel command line."""

    title: str
    id: str = ""
    line: int = 0
    linux: str = ""
    initrd: str = ""
    words: Tuple[str, ...] = ()
    entries: Optional[Tuple["Entry", ...]] = None


def parse(text: str) -> Tuple[Tuple[Entry, ...], str]:
    """The menu, and what `default` is set to when no entry was asked for once ("" if nothing sets it)."""
    lines = text.splitlines()
    top, _ = _block(lines, 0)
    set_to = [match.group(1) for match in map(_DEFAULT.match, lines) if match and "next_entry" not in match.group(1)]
    return top, set_to[-1] if set_to else ""


def _block(lines: Sequence[str], at: int, depth: int = 0) -> Tuple[Tuple[Entry, ...], int]:
    """Entries from line `at` to the brace that closes the block, and the line after it."""
    found: List[Entry] = []
    while at < len(lines):
        words, here = _words(lines[at]), at
        if depth > _DEEPEST:
            raise ValueError("a menu of more than %d levels" % _DEEPEST)
        at += 1
        if words[:1] == ["}"]:
            break
        if words[:1] in (["menuentry"], ["submenu"]) and words[-1] == "{":
            entry = Entry(words[1], _id(words), here + 1)
            inner, end = _block(lines, at, depth + 1)
            found.append(_submenu(entry, inner) if words[0] == "submenu" else _filled(entry, lines[at:end]))
            at = end
        elif words[-1:] == ["{"]:  # a function
            _, at = _block(lines, at, depth + 1)
    return tuple(found), at


def _submenu(entry: Entry, inner: Tuple[Entry, ...]) -> Entry:
    return Entry(entry.title, entry.id, entry.line, entries=inner)


def _filled(entry: Entry, body: Sequence[str]) -> Entry:
    linux: List[str] = []
    initrd = ""
    for line in body:
        words = _words(line)
        if words[:1] in (["linux"], ["linux16"], ["linuxefi"]):
            linux = words[1:]
        elif words[:1] in (["initrd"], ["initrd16"], ["initrdefi"]):
            initrd = words[-1]  # microcode comes before it
    return Entry(entry.title, entry.id, entry.line, "".join(linux[:1]), initrd, tuple(linux[1:]))


def _words(line: str) -> List[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an apostrophe in an echo
        return line.split()


def _id(words: Sequence[str]) -> str:
    for option, value in zip(words, words[1:]):
        if option in ("$menuentry_id_option", "${menuentry_id_option}", "--id"):
            return value
    return ""


def chosen(menu: Sequence[Entry], wanted: str) -> Optional[Entry]:
    """The entry that a default means: an index, a title or an id, `A>B` into a submenu. None if there is none."""
    head, _, rest = wanted.partition(">")
    entry = next((e for e in menu if head and head in (e.title, e.id)), None)
    if entry is None and head.isdigit() and int(head) < len(menu):
        entry = menu[int(head)]
    if entry is None:
        return None
    return chosen(entry.entries, rest or "0") if entry.entries is not None else entry


def environment(text: str) -> Dict[str, str]:
    """The variables of an environment block."""
    rows = [line.partition("=") for line in text.splitlines() if not line.startswith("#")]
    return {name: value for name, equals, value in rows if equals}
