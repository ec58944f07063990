# SPDX-License-Identifier: Apache-2.0
"""Lines that Proxmox VE cannot read and will drop, put into words that it can: only on request, and only where the meaning is
plain. A blank or a byte order mark before the key, or a blank before the colon, is all that is mended."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, List, Tuple

from ..machine.devices import DeviceTable
from ..model import Refused
from . import document as doc
from .document import DROPPED, KEY, PVE, RAW, Document, effective_keys, parse
from .edit import Edit, edit, refuse
from .needs import Wanted

_BEFORE_COLON = re.compile(r"(lxc\.[a-z0-9_\-.]+|[a-z][a-z_]*\d*)[ \t]+:")


def repaired(document: Document) -> Tuple[Document, Tuple[str, ...]]:
    """The document with such lines of main mended at their place, and a line of text for each.

    An ordinary key that is given elsewhere too is left alone: the last one counts, and mending would change which that is.
    """
    if document.dialect != PVE:
        return document, ()
    given = set(effective_keys(document.main))
    insert: Dict[int, List[str]] = {}
    told = []
    for line in document.main:
        text = _BEFORE_COLON.sub(r"\1:", line.text.lstrip("\ufeff \t")) if line.kind == DROPPED else ""
        (read,) = parse(text.encode("utf-8", "surrogateescape"), PVE, document.pve).lines or (None,)
        if read is None or read.reason or read.kind not in (RAW, KEY) or read.kind == KEY and read.key in given:
            continue
        given.add(read.key)
        insert[line.number] = [text]
        told.append("~ %s  (line %d: %s)" % (text, line.number, line.reason))
    return doc.rewrite(document, set(insert), insert), tuple(told)


def plan(document: Document, wanted: Wanted, devices: DeviceTable, subject: str, raising: bool = True) -> Edit:
    """As edit.edit; where that is wanted, of the mended document. What was wrong is told of the document as it was."""
    mended, told = repaired(document) if wanted.repair else (document, ())
    planned = edit(mended, wanted, devices, subject, raising)
    if not told:
        return planned
    findings = edit(document, wanted, devices, subject, raising=False).findings
    try:
        refuse(document)
    except Refused as e:
        if raising:
            raise
        return replace(planned, data=doc.render(document), changes=(), findings=findings, refusal=e)
    return replace(planned, changes=told + planned.changes, findings=findings)
