# SPDX-License-Identifier: Apache-2.0
"""One machine on paper on top of another: a recording states only what differs from its base."""

from __future__ import annotations

from typing import Any, Dict, Mapping

_KINDS = {"errno", "hex", "error", "timeout"}
"""Keys that make an answer one of its own kind."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Dict[str, Any]:
    """`over` on top of `base`, maps merged key by key; a value of None takes the base's entry away.

    An answer of another kind takes the place of the old one whole: a node where there was an errno, bytes for a text.
    """
    out = dict(base)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            was = out.get(key)
            same = isinstance(was, Mapping) and not _KINDS & (set(was) ^ set(value))
            out[key] = merge(was if same and isinstance(was, Mapping) else {}, value)
        else:
            out[key] = value
    return out
