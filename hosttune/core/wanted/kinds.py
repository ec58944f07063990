# SPDX-License-Identifier: Apache-2.0
"""The kinds of values that a profile is made of, and a value held against its kind: what stands there, what may stand there."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from ..model import Refused


@dataclass(frozen=True)
class Text:
    """A string. `pattern` is an anchored regular expression, `says` describes it to a person."""

    doc: str
    default: Optional[str] = None
    choices: Tuple[str, ...] = ()
    pattern: str = ""
    says: str = ""


@dataclass(frozen=True)
class Flag:
    """true or false."""

    doc: str
    default: bool = False


@dataclass(frozen=True)
class Number:
    """A whole number in a range."""

    doc: str
    low: int = 0
    high: int = 65535
    default: Optional[int] = None


@dataclass(frozen=True)
class Texts:
    """A map of free names to strings (environment, engine arguments)."""

    doc: str


@dataclass(frozen=True)
class Record:
    """A map with known keys. Required: those whose default is None and which are named in `required`."""

    doc: str
    keys: Mapping[str, Any]
    required: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Named:
    """A map from free names to records. `pattern` says which names are possible."""

    doc: str
    each: Record
    pattern: str = r".+"
    says: str = "a name"


@dataclass(frozen=True)
class Listed:
    """A list of records."""

    doc: str
    each: Record


def checked(spec: Record, data: Any, where: str) -> Dict[str, Any]:
    """The keys that are given and the defaults of those that are not. `where` begins the place in each error: "site.containers".

    Refused for an unknown key, one that is missing, a wrong type or an impossible value."""
    given = _map({} if data is None else data, where)
    for key in given:
        if key not in spec.keys:
            raise Refused(
                "no such key (known: %s)" % ", ".join(sorted(spec.keys)),
                "%s.%s" % (where, key),
                did_you_mean(key, spec.keys),
            )
    for key in spec.required:
        if given.get(key) is None:
            raise Refused("the key is missing: %s" % spec.keys[key].doc, "%s.%s" % (where, key))
    out = {key: value(spec.keys[key], given[key], "%s.%s" % (where, key)) for key in given}
    for key, kind in spec.keys.items():
        if key not in out and getattr(kind, "default", None) is not None:
            out[key] = kind.default
    return out


def _map(data: Any, where: str) -> Dict[str, Any]:
    if not isinstance(data, Mapping):
        raise Refused("%s stands here, a map of keys is wanted" % _seen(data), where)
    return {str(k): v for k, v in data.items()}  # YAML reads the key 200 as a number


def _seen(data: Any) -> str:
    words = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        type(None): "nothing",
    }
    return "%s (%.40s)" % (next((w for t, w in words.items() if isinstance(data, t)), "a map"), data)


def value(kind: Any, data: Any, where: str) -> Any:
    """The value, if it is one of this kind. Refused otherwise."""
    if isinstance(kind, Record):
        return checked(kind, data, where)
    if isinstance(kind, Named):
        rows = _map({} if data is None else data, where)
        for name in rows:
            if not re.fullmatch(kind.pattern, name):
                raise Refused("%s is not %s" % (name, kind.says), where)
        return {name: checked(kind.each, row, "%s.%s" % (where, name)) for name, row in rows.items()}
    if isinstance(kind, Listed):
        if not isinstance(data, (list, tuple)):
            raise Refused("%s stands here, a list is wanted" % _seen(data), where)
        return [checked(kind.each, row, "%s[%d]" % (where, n)) for n, row in enumerate(data)]
    if isinstance(kind, Texts):
        return {
            name: _text(Text(kind.doc), text, "%s.%s" % (where, name)) for name, text in _map(data or {}, where).items()
        }
    if isinstance(kind, Flag):
        if not isinstance(data, bool):
            raise Refused("%s stands here, true or false is wanted" % _seen(data), where)
        return data
    if isinstance(kind, Number):
        if isinstance(data, bool) or not isinstance(data, int) or not kind.low <= data <= kind.high:
            raise Refused(
                "%s stands here, a whole number from %d to %d is wanted" % (_seen(data), kind.low, kind.high), where
            )
        return data
    return _text(kind, data, where)


def _text(spec: Text, data: Any, where: str) -> str:
    if not isinstance(data, str):
        raise Refused("%s stands here, a text is wanted%s" % (_seen(data), _in_quotes(data)), where)
    if spec.choices and data not in spec.choices:
        raise Refused(
            "%s is none of %s" % (data or "an empty text", ", ".join(spec.choices)),
            where,
            did_you_mean(data, spec.choices),
        )
    if spec.pattern and not re.fullmatch(spec.pattern, data):
        raise Refused("%s is not %s" % (data or "an empty text", spec.says), where)
    return data


def _in_quotes(data: Any) -> str:
    """YAML makes a truth value of on, off, yes and no, and a number of digits."""
    if isinstance(data, bool):
        return '; write the word in quotes: "%s"' % ("on" if data else "off")
    return '; write it in quotes: "%s"' % data if isinstance(data, (int, float)) else ""


def did_you_mean(word: str, known: Any) -> str:
    """A question that helps who mistyped; "" if nothing is like it."""
    close = difflib.get_close_matches(str(word), [str(k) for k in known], 1)
    return "did you mean %s?" % close[0] if close else ""
