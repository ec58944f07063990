# SPDX-License-Identifier: Apache-2.0
"""On which line of a JSON text each key stands, so that a mistake is told by file and line. Pure."""

from __future__ import annotations

import json
import re
from typing import Dict, List, Mapping, Optional, Set

from ..model import Refused

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')


def json_lines(text: str, file: str) -> Dict[str, int]:
    """{"knobs.numa-balancing": 7, "ignore[0].id": 12}, the lines counted from 1, of a text that is JSON.

    Refused for a key that stands in one map twice: json would take the last one in silence.
    """
    lines: Dict[str, int] = {}
    keys: List[Optional[Set[str]]] = []  # of each map that is open, its keys so far; None for a list
    counts: List[int] = []  # of each list that is open, its next index
    place: List[str] = [""]
    key, after_colon, line, at = "", False, 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", at, token.start())
        at, word = token.start(), token.group()
        if word in "}]":
            keys.pop()
            counts.pop()
            place.pop()
        elif word == ",":
            after_colon = False
        elif word == ":":
            after_colon = True
        elif keys and keys[-1] is not None and not after_colon:
            key = json.loads(word)
            if key in keys[-1]:
                raise Refused(
                    'the key "%s" stands here a second time' % key, "%s:%d" % (file, line), "take one of them out"
                )
            keys[-1].add(key)
            lines[_below(place[-1], key)] = line
        else:
            here = place[-1]
            if keys and keys[-1] is not None:
                here = _below(here, key)
            elif keys:
                here = "%s[%d]" % (here, counts[-1])
                counts[-1] += 1
                lines.setdefault(here, line)
            if word in "{[":
                keys.append(set() if word == "{" else None)
                counts.append(0)
                place.append(here)
                after_colon = False
    return lines


def _below(place: str, key: str) -> str:
    return "%s.%s" % (place, key) if place else key


def line_of(lines: Mapping[str, int], place: str) -> int:
    """The line of a place, or of the nearest known one around it; 0 if none is known."""
    while place:
        if place in lines:
            return lines[place]
        cut = max(place.rfind("."), place.rfind("["))
        place = place[:cut] if cut > 0 else ""
    return 0
