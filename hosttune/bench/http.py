# SPDX-License-Identifier: Apache-2.0
"""One HTTP exchange on one connection of its own, over h11: no pool, no retry, no redirect, so that times mean what they say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11

from .. import __version__
from ..core.model import Refused

PIECE = 65536


@dataclass(frozen=True)
class Server:
    """Where an engine answers. `prefix` is a path before /v1, "" for most. `key` is sent as a bearer token, never shown."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """As it was given, without /v1."""
        return "http%s://%s%s" % ("s" if self.tls else "", self.authority, self.prefix)

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them; an IPv6 address in brackets."""
        return ("[%s]:%d" if ":" in self.host else "%s:%d") % (self.host, self.port)


def server(url: str, key: str = "") -> Server:
    """The server of a URL such as http://127.0.0.1:30000 (a /v1 at the end is fine). Refused for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as e:
        raise Refused("%s: %s" % (url, e), "--url", "for example http://127.0.0.1:30000")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise Refused("%r is no address of a server" % url, "--url", "for example http://127.0.0.1:30000")
    tls = parts.scheme == "https"
    return Server(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/").removesuffix("/v1"), key)


class Exchange:
    """An open connection: `send` a request, then read `status` and `pieces`."""

    def __init__(self, to: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._to, self._reader, self._writer = to, reader, writer
        self._state = h11.Connection(h11.CLIENT)

    async def send(self, method: str, path: str, body: Any = None) -> int:
        """Send a request with a JSON body and wait for the answer's head. Returns its status.

        Raises OSError for a lost connection, h11.RemoteProtocolError for what is no HTTP.
        """
        data = b"" if body is None else json.dumps(body).encode()
        headers = [("Host", self._to.authority), ("User-Agent", "hosttune/" + __version__)]
        headers += [("Accept", "*/*"), ("Connection", "close"), ("Content-Length", str(len(data)))]
        if data:
            headers.append(("Content-Type", "application/json"))
        if self._to.key:
            headers.append(("Authorization", "Bearer " + self._to.key))
        head = self._state.send(h11.Request(method=method, target=self._to.prefix + path, headers=headers))
        rest = (self._state.send(h11.Data(data=data)) if data else b"") or b""
        self._writer.write((head or b"") + rest + (self._state.send(h11.EndOfMessage()) or b""))
        await self._writer.drain()
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event.status_code
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("the server closed the connection without an answer")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises h11.RemoteProtocolError when it ends before its end."""
        while not isinstance(event := await self._next(), (h11.EndOfMessage, h11.ConnectionClosed)):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def _next(self) -> Any:
        while (event := self._state.next_event()) is h11.NEED_DATA:
            self._state.receive_data(await self._reader.read(PIECE))
        return event


@contextlib.asynccontextmanager
async def connect(to: Server) -> AsyncIterator[Exchange]:
    """A connection, closed at the end however that comes. Raises OSError."""
    context = ssl.create_default_context() if to.tls else None
    reader, writer = await asyncio.open_connection(to.host, to.port, ssl=context)
    try:
        yield Exchange(to, reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.wait_for(writer.wait_closed(), 1)


@dataclass(frozen=True)
class Reply:
    """A whole answer. status 0: none came, `error` says why."""

    status: int
    text: str = ""
    error: str = ""

    def json(self) -> Mapping[str, Any]:
        """The object that it is, {} for anything else."""
        try:
            found = json.loads(self.text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


async def fetch(to: Server, method: str, path: str, body: Any = None, timeout: float = 20) -> Reply:
    """A short question. Never raises for what the server does."""
    try:
        async with asyncio.timeout(timeout), connect(to) as exchange:
            status = await exchange.send(method, path, body)
            data = b""
            async for piece in exchange.pieces():
                data += piece
            return Reply(status, data.decode("utf-8", "replace"))
    except TimeoutError:
        return Reply(0, error="no answer within %g s" % timeout)
    except (OSError, h11.RemoteProtocolError) as e:
        return Reply(0, error=said(e))


def said(e: BaseException) -> str:
    """What an error of the connection says, in one line."""
    if isinstance(e, ConnectionRefusedError):
        return "connection refused"
    return (getattr(e, "strerror", None) or str(e) or type(e).__name__).splitlines()[0]
