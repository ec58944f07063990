# SPDX-License-Identifier: Apache-2.0
"""What a recording may look like, checked before anything is answered from it: people write them by hand.

docs/recording.schema.json says the same for editors; a test holds the two together.
"""

from __future__ import annotations

import errno
from typing import Any, Dict, Mapping, Tuple

from .model import Refused

SCHEMA = "hosttune.recording/1"

_ANSWERS = {
    "files": 'a text, {"hex": ..} or {"errno": ..}',
    "dirs": 'a list of names or {"errno": ..}',
    "links": 'a text or {"errno": ..}',
    "nodes": '{"type": .., "rdev": ..} or {"errno": ..}',
    "statvfs": '{"size": .., "free": .., "used": ..} or {"errno": ..}',
    "commands": '{"rc": .., "out": .., "err": ..} or {"timeout": seconds}',
    "calls": "",
    "holders": 'a list of [pid, name] or {"errno": ..}',
    "writes": '"ignored" or the name of an errno',
}
"""Sections of a machine and what each holds per key. calls: anything that a call can answer."""

_VALUES: Dict[str, Tuple[type, ...]] = {
    "mounts": (str,),
    "env": (dict,),
    "uid": (int,),
    "gid": (int,),
    "caps": (str, int),
    "uname": (str,),
    "clock": (int, float),
    "protected": (bool,),
    "stuck": (str,),
    "declared": (dict,),
    "note": (str,),
    "base": (str,),
}
_TYPES: Dict[str, Tuple[type, ...]] = {
    "files": (str, dict),
    "dirs": (list,),
    "links": (str,),
    "holders": (list,),
    "writes": (str,),
}


def refuse_bad(recording: Any) -> Dict[str, Mapping[str, Any]]:
    """The machines of a recording, by name. Refused for what cannot be one, with the place and what belongs there."""
    if not isinstance(recording, Mapping) or recording.get("schema") != SCHEMA:
        raise Refused(
            'not a recording: "schema" must be "%s"' % SCHEMA, way_out="hosttune doctor --record FILE makes one"
        )
    machines = recording.get("machines")
    if not isinstance(machines, Mapping) or not machines:
        raise Refused('a recording needs "machines": {"host": {...}}', way_out="see docs/recordings.md")
    for name, machine in machines.items():
        _machine(machine, "machines.%s" % name)
    return {str(name): machine for name, machine in machines.items()}


def _machine(machine: Any, where: str) -> None:
    _map(machine, where)
    for key, value in machine.items():
        place = "%s.%s" % (where, key)
        if value is None:
            continue  # takes the base's entry away
        if key in _ANSWERS:
            for path, answer in _map(value, place).items():
                if answer is not None:
                    _answer(key, answer, "%s.%s" % (place, path))
        elif key == "views":
            for view, inner in _map(value, place).items():
                _machine(inner, "%s.%s" % (place, view))
        elif key in _VALUES and (
            not isinstance(value, _VALUES[key]) or isinstance(value, bool) != (key == "protected")
        ):
            raise Refused("%r is not what belongs there" % (value,), place, "see docs/recordings.md")
        elif key == "caps" and isinstance(value, str):
            _hex(value, place)


def _answer(section: str, answer: Any, where: str) -> None:
    if section == "calls":
        return
    fits = isinstance(answer, _TYPES.get(section, (dict,)))
    if isinstance(answer, Mapping) and "errno" in answer:
        _errno(answer["errno"], where)
    elif not fits:
        raise Refused("%r is not %s" % (answer, _ANSWERS[section]), where, "see docs/recordings.md")
    elif section == "files" and isinstance(answer, Mapping):
        _hex(answer.get("hex"), where, 2)
    elif section == "writes" and answer != "ignored":
        _errno(answer, where)
    elif section == "holders" and not all(
        isinstance(h, list) and len(h) == 2 and isinstance(h[0], int) for h in answer
    ):
        raise Refused("%r is not %s" % (answer, _ANSWERS[section]), where, "see docs/recordings.md")


def _map(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Refused("this is a %s, not a map" % type(value).__name__, where, "see docs/recordings.md")
    return value


def _errno(name: Any, where: str) -> None:
    if not isinstance(name, str) or not (name.isdigit() or name.startswith("E") and hasattr(errno, name)):
        raise Refused("%r is not the name of an errno" % (name,), where, 'write "ENOENT", "EACCES" ...')


def _hex(text: Any, where: str, digits: int = 1) -> None:
    if not isinstance(text, str) or len(text) % digits or not all(c in "0123456789abcdefABCDEF" for c in text):
        raise Refused("%r is not hexadecimal" % (text,), where, "two digits a byte, no blanks")
