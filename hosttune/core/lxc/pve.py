# SPDX-License-Identifier: Apache-2.0
"""What Proxmox VE makes of a container config: what it keeps of each section, and the file as its next write leaves it.

Measured against pve-container of Proxmox VE 7, 8 and 9 (tests/cases/lxc holds its own outputs). That write is not
rare: `pct set`, a GUI edit, a snapshot, and every vzdump backup do it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Tuple
from urllib.parse import unquote_to_bytes

from .document import DELETE, HEADER, KEY, LEGACY_NOTE, NOTE, PENDING, RAW, SNAPSTATE, Document, Line
from .keys import BOOLEANS, INTEGERS, truth

_ENCODED = {pve: re.compile(rb"[^\x20-\x39\x3b-\x7e]" if pve < 8 else rb"[^\x20-\x24\x26-\x39\x3b-\x7e]") for pve in (7, 8)}


@dataclass
class Section:
    """What is kept of one section: its notes, its ordinary keys (the last one won), its raw lines in order."""

    notes: str = ""
    keys: Dict[str, str] = field(default_factory=dict)
    raw: List[Tuple[str, str]] = field(default_factory=list)


def kept(document: Document) -> Dict[str, Section]:
    """Section name -> what Proxmox VE keeps of it; "" is main. Of a section that comes twice the later one is kept."""
    sections = {"": Section()}
    for line in document.lines:
        if line.kind == HEADER:
            sections[line.section] = Section()
        else:
            _keep(sections[line.section], line)
    sections[""].keys.pop("snapstate", None)
    return sections


def lost(document: Document) -> List[Tuple[Line, str]]:
    """Lines that the next write of Proxmox VE forgets, each with the reason."""
    latest = {line.section: line.part for line in document.lines}
    out: List[Tuple[Line, str]] = []
    for line in document.lines:
        if line.part != latest[line.section]:
            if line.kind == HEADER:
                out.append((line, "section [%s] comes again below, and Proxmox VE keeps only the last" % line.section))
        elif line.reason:
            out.append((line, line.reason))
    return out


def written(document: Document) -> bytes:
    """The file as Proxmox VE writes it: notes first, ordinary keys sorted, raw lines in order, sections sorted."""
    sections = kept(document)
    main = sections.pop("")
    volumes = _volumes(main)
    main.keys = {key: value for key, value in main.keys.items() if not (key.startswith("unused") and value in volumes)}
    out = [_section(main, document.pve)]
    pending = sections.pop(PENDING, Section())
    if pending != Section():
        out += [b"\n[pve:pending]\n", _section(pending, document.pve)]
    for name in sorted(sections):
        out += [b"\n[%s]\n" % name.encode(), _section(sections[name], document.pve)]
    return b"".join(out)


def _keep(section: Section, line: Line) -> None:
    if line.kind == NOTE:
        section.notes += _decode(line.value) + "\n"
    elif line.kind == LEGACY_NOTE:
        section.notes += _decode(line.value)
    elif line.kind == RAW:
        section.raw.append((line.key, line.value))
    elif line.kind in (KEY, SNAPSTATE, DELETE):
        section.keys[line.key] = _normal(line.key, line.value)


def _decode(text: str) -> str:
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")


def _normal(key: str, value: str) -> str:
    if key in BOOLEANS:
        return truth(value) or value
    if key in INTEGERS and value.isdigit():
        return str(int(value))
    return value


def _volumes(main: Section) -> List[str]:
    values = [value for key, value in main.keys.items() if re.match(r"(rootfs|mp\d+)\Z", key)]
    volumes = [value.split(",")[0].replace("volume=", "", 1) for value in values]
    return [volume for volume in volumes if not volume.startswith("/")]


def _section(section: Section, pve: int) -> bytes:
    out: List[str] = []
    notes = section.notes.rstrip("\n").split("\n") if section.notes.strip("\n") else []
    unsafe = _ENCODED[7 if pve < 8 else 8]
    for note in notes:
        encoded = unsafe.sub(lambda m: b"%%%02X" % m.group(0)[0], note.encode("utf-8"))
        out.append("#" + encoded.decode("ascii"))
    out += ["%s: %s" % (key, section.keys[key]) for key in sorted(section.keys)]
    early = [pair for pair in section.raw if pair[0] == "lxc.environment.runtime"]
    out += ["%s: %s" % pair for pair in early + [pair for pair in section.raw if pair not in early]]
    return "".join(line + "\n" for line in out).encode("utf-8", "surrogateescape")
