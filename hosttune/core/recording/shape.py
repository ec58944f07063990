# SPDX-License-Identifier: Apache-2.0
"""What a recording may look like, checked before anything is answered from it: people write them by hand.

docs/recording.schema.json says the same for editors; a test holds the two together.
"""

from __future__ import annotations

import errno
import re
from typing import Any, Dict, Mapping, Tuple

from ..model import Refused

SCHEMA = "hosttune.recording/1"
ABSENT = ("HT430", "HT903", "HT904")
"""Why a container could not be asked: it does not run, it gave no usable answer, it has no Python."""
KEPT = ("views", "mounts", "env", "uid", "gid", "caps", "uname", "clock", "protected", "stuck")
"""Keys, beside the sections of answers, that count in what a container says of itself."""

_ANSWERS = {
    "files": 'a text, {"hex": ..} or {"errno": ..}',
    "dirs": 'a list of names or {"errno": ..}',
    "links": 'a text or {"errno": ..}',
    "nodes": '{"type": .., "rdev": ..} or {"errno": ..}',
    "statvfs": '{"size": .., "free": .., "used": ..} or {"errno": ..}',
    "commands": '{"rc": .., "out": .., "err": ..} or {"timeout": seconds}',
    "calls": 'a code, a count, {"error": ..}, {"timeout": seconds} or what a dlopen found',
    "holders": 'a list of [pid, name] or {"errno": ..}',
    "writes": '"ignored" or the name of an errno',
}
"""Sections of a machine and what each holds per key."""

_NODE: Dict[str, str] = {
    "type": r"char|block|file|dir|link|other|",
    "rdev": r"(\d{1,4}:\d{1,7})?",
    "mode": r"[0-7]{1,5}",
    "access": r"(?s)ok|E[A-Z0-9]+|\d+|not-tried.*|error.*|timeout|",
    "open": r"(?s)ok|E[A-Z0-9]+|\d+|not-tried.*|error.*|timeout|",
}
"""Texts of a node. They become parts of commands that people paste: an answer from inside a container is not to be trusted."""
_COUNTS = ("uid", "gid", "nlink", "size", "ctime", "mtime", "rc", "timeout", "class")
_LARGEST = 1 << 64

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


def answer_of(view: Any, where: str) -> Dict[str, Any]:
    """What a container answered, as a machine of a recording: only what it can know of itself. Refused for anything else;
    what it says may be a lie, but it is of the right shape, inherits nothing and excuses nothing."""
    kept = {k: v for k, v in _map(view, where).items() if k in KEPT or k in _ANSWERS}
    if isinstance(kept.get("views"), Mapping):
        kept["views"] = {
            name: {k: v for k, v in _map(inner, where).items() if k in KEPT[1:] or k in _ANSWERS}
            for name, inner in kept["views"].items()
        }
    _machine(kept, where)
    if not kept.get("nodes") or not kept.get("files"):
        raise Refused("it lacks what was asked", where)
    return kept


def _machine(machine: Any, where: str) -> None:
    _map(machine, where)
    if "absent" in machine:
        _absent(machine["absent"], where + ".absent")
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
        _call(answer, where)
        return
    fits = isinstance(answer, _TYPES.get(section, (dict,)))
    if isinstance(answer, Mapping) and "errno" in answer:
        _errno(answer["errno"], where)
    elif not fits:
        raise Refused("%r is not %s" % (answer, _ANSWERS[section]), where, "see docs/recordings.md")
    elif section == "nodes":
        _node(answer, where)
    elif section in ("commands", "statvfs"):
        _fields(answer, where)
    elif section == "dirs" and not all(isinstance(name, str) for name in answer):
        raise Refused("%.80r is not %s" % (answer, _ANSWERS[section]), where, "see docs/recordings.md")
    elif section == "files" and isinstance(answer, Mapping):
        _hex(answer.get("hex"), where, 2)
    elif section == "writes" and answer != "ignored":
        _errno(answer, where)
    elif section == "holders" and not all(
        isinstance(h, list) and len(h) == 2 and isinstance(h[0], int) for h in answer
    ):
        raise Refused("%r is not %s" % (answer, _ANSWERS[section]), where, "see docs/recordings.md")


def _node(node: Mapping[str, Any], where: str) -> None:
    _fields(node, where)
    for key, pattern in _NODE.items():
        value = node.get(key)
        if isinstance(value, str) and not re.fullmatch(pattern, value):
            raise Refused("%.80r is no %s of a node" % (value, key), where, "see docs/recordings.md")
    if node.get("after") is not None:
        _node(_map(node["after"], where + ".after"), where + ".after")


def _fields(answer: Mapping[str, Any], where: str) -> None:
    """Numbers where numbers belong, texts everywhere else, and {"timeout": ..} for what did not return."""
    for key, value in answer.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST
        fits = (
            isinstance(value, (Mapping, type(None)))
            if key in ("after", "then")
            else number
            if key in (*_COUNTS, "free", "used", "inodes") or key == "size"
            else isinstance(value, str) or isinstance(value, Mapping) and set(value) == {"timeout"}
        )
        if not fits and value is not None:
            raise Refused(
                "%.80r is not what belongs there" % (value,), "%s.%s" % (where, key), "see docs/recordings.md"
            )


def _call(answer: Any, where: str) -> None:
    if isinstance(answer, Mapping):
        _fields(answer, where)
    elif isinstance(answer, bool) or not isinstance(answer, (int, type(None))) or answer and abs(answer) >= _LARGEST:
        raise Refused("%.80r is not %s" % (answer, _ANSWERS["calls"]), where, "see docs/recordings.md")


def _absent(why: Any, where: str) -> None:
    told = _map(why, where)
    if told.get("id") not in ABSENT or not all(isinstance(told.get(key, ""), str) for key in ("what", "way_out")):
        raise Refused(
            "%.80r is no reason why a machine could not be asked" % (dict(told),), where, "see docs/recordings.md"
        )


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
