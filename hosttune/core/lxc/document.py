# SPDX-License-Identifier: Apache-2.0
"""A container's config file, line by line and without loss: `render(parse(data)) == data` for any bytes.

Two dialects. "pve" is /etc/pve/lxc/ID.conf as pve-container reads it (parse_pct_config): sections, `#` lines that are
the container's notes, a fixed list of raw `lxc.*` keys, and lines that the next write of Proxmox VE forgets.
"lxc" is /var/lib/lxc/NAME/config as liblxc reads it: `key = value`, comments, no sections.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Collection, Dict, List, Mapping, Sequence, Tuple

from . import keys

PVE, LXC = "pve", "lxc"
PENDING = "pve:pending"

BLANK, HEADER, NOTE, LEGACY_NOTE, RAW, KEY = "blank", "header", "note", "legacy-note", "raw", "key"
SNAPSTATE, DELETE, IGNORED, DROPPED = "snapstate", "delete", "ignored", "dropped"

_PENDING = re.compile(rb"\[pve:pending\]\s*\Z", re.IGNORECASE)
_HEADER = re.compile(rb"\[([a-z][a-z0-9_\-]+)\]\s*\Z", re.IGNORECASE)
_RAW = re.compile(rb"(lxc\.[a-z0-9_\-.]+)(?::|\s*=)")
_KEY = re.compile(rb"([a-z][a-z_]*[0-9]*):")
_SNAPSTATE = re.compile(rb"snapstate:\s*(prepare|delete)\Z")


@dataclass(frozen=True)
class Line:
    """One line. `raw` is every byte of it with its line ending; `part` counts sections (0 is main), because a section
    that comes twice is two parts of one name, of which Proxmox VE keeps the later. `reason` says why a line is dropped.
    `origin` is file:line of one that an included file brings in; its number is below zero, and no edit touches it."""

    number: int
    raw: bytes
    part: int
    section: str
    kind: str
    key: str = ""
    value: str = ""
    reason: str = ""
    origin: str = ""

    @property
    def text(self) -> str:
        """The line without its ending, as text in which any byte survives (surrogateescape)."""
        return self.raw.rstrip(b"\r\n").decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Included:
    """What one lxc.include line brings in (includes.py). broken: why the container does not start with it. unread: what could
    not be looked at."""

    lines: Tuple[Line, ...] = ()
    broken: str = ""
    unread: str = ""


@dataclass(frozen=True)
class Document:
    """All lines of one file. `pve` is the Proxmox VE major version whose rules were applied (7, 8 or 9). `included`: by the value
    of each lxc.include line that was followed."""

    lines: Tuple[Line, ...]
    dialect: str
    pve: int
    path: str
    included: Mapping[str, Included] = field(default_factory=dict)

    @property
    def main(self) -> Tuple[Line, ...]:
        """The lines that configure the container itself: not pending, not a snapshot."""
        return tuple(line for line in self.lines if line.part == 0)

    @property
    def judged(self) -> Tuple[Line, ...]:
        """The same, each lxc.include line followed by what it brings in: what counts when the container starts."""
        none = Included()
        return tuple(one for line in self.main for one in (
            line, *(self.included.get(line.value, none).lines if line.kind == RAW and line.key == "lxc.include" else ())))

    def place(self, line: Line) -> str:
        """`file:line`, for messages."""
        return line.origin or "%s:%d" % (self.path or "config", line.number)

    def words(self, lines: Sequence[Line]) -> str:
        """Lines as the subject of a sentence: "line 3", "lines 3, 5", or a place in an included file."""
        own = [str(line.number) for line in lines if not line.origin]
        numbers = ["line%s %s" % ("s" * (len(own) > 1), ", ".join(own))] if own else []
        return ", ".join(numbers + [line.origin for line in lines if line.origin])


def parse(data: bytes, dialect: str = PVE, pve: int = 9, path: str = "") -> Document:
    """Any bytes -> Document. Never fails: what nobody understands is a line of kind `dropped` or `ignored`."""
    lines: List[Line] = []
    part, section = 0, ""
    for number, raw in enumerate(_split(data), 1):
        bare = raw[:-1] if raw.endswith(b"\n") else raw
        if dialect == LXC:
            kind, key, value, reason = _classify_lxc(bare)
        else:
            header = _header(bare)
            if header:
                part, section = part + 1, header
            kind, key, value, reason = (HEADER, "", "", "") if header else _classify_pve(bare, section, pve)
        lines.append(Line(number, raw, part, section, kind, key, value, reason))
    return Document(tuple(lines), dialect, pve, path)


def render(document: Document) -> bytes:
    """The file's bytes."""
    return b"".join(line.raw for line in document.lines)


def rewrite(document: Document, remove: Collection[int], insert: Mapping[int, Sequence[str]]) -> Document:
    """The document without the lines whose numbers are in `remove`, and with new lines of text after given numbers
    (0: at the top). New lines take the ending of the line they follow; every other byte stays as it is."""
    out: List[bytes] = []
    ending = _ending(document, 0)
    for number in range(len(document.lines) + 1):
        if number and number not in remove:
            out.append(document.lines[number - 1].raw)
        if insert.get(number):
            ending = _ending(document, number)
            if out and not out[-1].endswith(b"\n"):  # the file's last line; in a note a carriage return would be text
                out[-1] += b"\n" if document.lines[-1].kind == NOTE else ending
            out.extend(text.encode("utf-8", "surrogateescape") + ending for text in insert[number])
    return replace(parse(b"".join(out), document.dialect, document.pve, document.path), included=document.included)


def after_last(document: Document, kind: str, prefixes: Sequence[str]) -> int:
    """Where a new line of main belongs: after the last main line of that kind whose key starts with the first prefix
    that any has, else after main's last line that is not blank (so above the blank line before the first section)."""
    main = document.main
    for prefix in prefixes:
        numbers = [line.number for line in main if line.kind == kind and line.key.startswith(prefix)]
        if numbers:
            return numbers[-1]
    return max([line.number for line in main if line.kind != BLANK], default=0)


def format_line(document: Document, key: str, value: str) -> str:
    """`key: value` in the document's dialect; ordinary Proxmox keys and raw keys look the same there."""
    return "%s %s %s" % (key, "=", value) if document.dialect == LXC else "%s: %s" % (key, value)


def _split(data: bytes) -> List[bytes]:
    pieces = data.split(b"\n")
    lines = [piece + b"\n" for piece in pieces[:-1]]
    return lines + [pieces[-1]] if pieces[-1] else lines


def _ending(document: Document, number: int) -> bytes:
    near = document.lines[max(0, number - 1):number] + document.lines[:1]
    for line in near:
        if line.raw.endswith(b"\n"):
            return b"\r\n" if line.raw.endswith(b"\r\n") else b"\n"
    return b"\n"


def _header(bare: bytes) -> str:
    if _PENDING.match(bare):
        return PENDING
    match = _HEADER.match(bare)
    return match.group(1).decode("ascii") if match else ""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _classify_pve(bare: bytes, section: str, pve: int) -> Tuple[str, str, str, str]:
    """kind, key, value, reason of a line that is no header, in the order in which pve-container tries its patterns."""
    stripped = bare.strip()
    if not stripped:
        return BLANK, "", "", ""
    if bare.startswith(b"#"):
        return NOTE, "", _text(bare[1:]), ""
    match = _RAW.match(bare)
    if match:
        key = _text(match.group(1))
        reason = keys.refusal(key, pve)
        return (DROPPED if reason else RAW), key, _text(bare[match.end():].strip()), reason
    if stripped.startswith(b"description:") and bare.startswith(b"description:") and stripped != b"description:":
        return LEGACY_NOTE, "description", _text(stripped[len(b"description:"):].strip()), ""
    match = _SNAPSTATE.search(stripped)
    if match:
        return SNAPSTATE, "snapstate", _text(match.group(1)), ""
    if bare.startswith(b"delete:") and bare[len(b"delete:"):].strip():
        # The section is called "pending" inside pve-container, so a snapshot of that name may hold the key too.
        fits = section in (PENDING, "pending")
        return (DELETE if fits else DROPPED), "delete", _text(bare[len(b"delete:"):].strip()), (
            "" if fits else "`delete` only means something inside [pve:pending]")
    match = _KEY.match(bare)
    if match and bare[match.end():]:
        rest = bare[match.end():]
        return KEY, _text(match.group(1)), _text(rest.strip() or rest[-1:]), ""
    return DROPPED, "", "", _why_dropped(bare)


def _why_dropped(bare: bytes) -> str:
    stripped = bare.strip()
    if bare.startswith(b"\xef\xbb\xbf"):
        return "a UTF-8 byte order mark stands before the key"
    if bare[:1].isspace():
        return "a blank stands before the key"
    if stripped.startswith(b"["):
        return "this is no section header for Proxmox VE, so the lines below it belong to the section above"
    if re.match(rb"lxc\.\S+\s+:", bare):
        return "a blank stands before the colon"
    if re.match(rb"[a-z][a-z_]*[0-9]*:\Z", stripped):
        return "the value is empty"
    if b":" not in stripped:
        return "there is no colon"
    return "a key is lower case letters and underscores, then digits"


def _classify_lxc(bare: bytes) -> Tuple[str, str, str, str]:
    """The same for liblxc: it skips comments and keys that do not start with `lxc.`, and refuses the whole file for an
    `lxc.` line without `=`."""
    stripped = bare.strip()
    if not stripped:
        return BLANK, "", "", ""
    if stripped.startswith(b"#"):
        return NOTE, "", _text(stripped[1:]), ""
    if not stripped.startswith(b"lxc."):
        return IGNORED, "", "", ""
    key, equals, value = stripped.partition(b"=")
    if not equals:
        return DROPPED, "", "", "there is no `=`, and LXC refuses the whole file for it"
    return RAW, _text(key.strip()), _text(value.strip()), ""


def effective_keys(lines: Sequence[Line]) -> Dict[str, Line]:
    """Ordinary keys of one section, the last line of each: that is the one that counts."""
    return {line.key: line for line in lines if line.kind == KEY}
