# SPDX-License-Identifier: Apache-2.0
"""Server-sent events out of bytes, whichever way the network cut them. Source: WHATWG HTML, 9.2.6."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.model import Refused

LIMIT = 16 << 20
"""Bytes of one event: an engine that sends more without an empty line sends no events."""


class Events:
    """Feed it pieces; it gives (event name, data) of each whole event. Comments and empty events are left out."""

    def __init__(self) -> None:
        self._rest = b""
        self._name, self._data = "", list[str]()

    def feed(self, piece: bytes) -> Iterator[tuple[str, str]]:
        """Whole events of what has come so far. Raises Refused for one without end."""
        self._rest += piece
        while (found := self._line()) is not None:
            line = found.decode("utf-8", "replace")
            if not line:
                if self._data:
                    yield self._name or "message", "\n".join(self._data)
                self._name, self._data = "", []
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                self._data.append(value)
            elif field == "event":
                self._name = value
        if len(self._rest) > LIMIT:
            raise Refused("an event of more than %d bytes" % LIMIT)

    @property
    def cut(self) -> bool:
        """Whether the stream ended in the middle of an event."""
        return bool(self._rest or self._data)

    def _line(self) -> bytes | None:
        ends = [n for n in (self._rest.find(b"\n"), self._rest.find(b"\r")) if n >= 0]
        if not ends:
            return None
        end = min(ends)
        if self._rest[end : end + 1] == b"\r" and end + 1 == len(self._rest):
            return None  # a \n may follow in the next piece
        line = self._rest[:end]
        self._rest = self._rest[end + (2 if self._rest[end : end + 2] == b"\r\n" else 1) :]
        return line
