# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible server that is honest until told to lie, one way at a time, as real engines were seen to.

It runs in a thread of the test. Honest, it behaves as vLLM does: it streams, counts, has /health, /metrics, /tokenize.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

PIECE_SECONDS = 0.0005


@dataclass
class Server:
    """lie: the name of a lie, "" for none. after: how many completions are honest first. tokens_a_piece: speculation."""

    lie: str = ""
    after: int = 0
    tokens_a_piece: int = 1
    context: int = 4096
    key: str = ""
    port: int = 0
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    generated: int = 0
    preempted: int = 0
    started: float = 1000.5
    lied: int = 0

    def __enter__(self) -> Server:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()

        def serve() -> None:
            asyncio.set_event_loop(self._loop)
            self._server = self._loop.run_until_complete(asyncio.start_server(self._connection, "127.0.0.1", 0))
            self.port = self._server.sockets[0].getsockname()[1]
            ready.set()
            self._loop.run_forever()

        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        async def end() -> None:
            self._server.close()
            mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in mine:
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._loop.close()

    @property
    def url(self) -> str:
        return "http://127.0.0.1:%d" % self.port

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if self.key and headers.get("authorization") != "bearer " + self.key.lower():
                await plain(writer, 401, {"error": {"message": "no key"}})
            elif path == "/v1/chat/completions":
                await self._completion(writer, json.loads(body))
            else:
                await self._other(writer, path, json.loads(body or b"{}"))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone, or was sent away
        finally:
            writer.close()

    async def _other(self, writer: asyncio.StreamWriter, path: str, body: Mapping[str, Any]) -> None:
        lying = self.lied > 0
        if path == "/health":
            await plain(writer, 503 if self.lie == "unhealthy" and lying else 200, {})
        elif path == "/v1/models":
            name = "another" if self.lie == "renamed" and lying else "honest"
            row = {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": self.context}
            await plain(writer, 200, {"object": "list", "data": [row]})
        elif path == "/metrics":
            started = self.started + (self.lie == "restarted" and lying)
            generated = self.generated
            if lying:
                generated += {"other client": 7, "counter reset": -self.generated}.get(self.lie, 0)
            text = 'vllm:generation_tokens_total{model_name="honest"} %d.0\n' % generated
            text += 'vllm:num_preemptions_total{model_name="honest"} %d.0\n' % self.preempted
            await plain(writer, 200, text + "process_start_time_seconds %.2f\n" % started)
        elif path == "/tokenize" and self.lie != "no tokenizer":
            await plain(writer, 200, {"count": len(body["prompt"].split()), "max_model_len": self.context})
        else:
            await plain(writer, 404, {"error": "not found"})

    async def _completion(self, writer: asyncio.StreamWriter, body: Mapping[str, Any]) -> None:
        self.asked.append(body)
        lie = self.lie if len(self.asked) > self.after else ""
        self.lied += bool(lie)
        prompt, wanted = len(body["messages"][0]["content"].split()) + 5, int(body["max_tokens"])
        if prompt >= self.context:
            await plain(writer, 400, {"error": {"message": "maximum context length is %d tokens" % self.context}})
            return
        if lie == "unknown field" and "ignore_eos" in body:
            await plain(writer, 422, {"detail": "Unexpected keys in the request: {'ignore_eos'}"})
            return
        if lie in HTTP:
            await plain(writer, HTTP[lie], {"error": {"message": "this model's maximum context length is 8 tokens"}})
            return
        if lie == "hang":
            await asyncio.sleep(60)
        if lie == "no http":
            writer.write(b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n")
            await writer.drain()
            return
        if lie == "preempted":
            self.preempted += 1
        made = {"clamped": wanted - 3, "stops early": wanted - 3, "too long": wanted + 3}.get(lie, wanted)
        made = min(made, self.context - prompt)  # vLLM's silent clamp
        if lie == "zero tokens":
            made = 0
        await self._stream(writer, lie, prompt, made)

    async def _stream(self, writer: asyncio.StreamWriter, lie: str, prompt: int, made: int) -> None:
        send = chunked(writer)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        name = "another" if lie == "other model" and self.lied % 2 else "honest"

        def piece(delta: Mapping[str, Any], finish: str | None = None) -> str:
            return data({"model": name, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        await send(piece({"role": "assistant", "content": ""}))
        if lie == "dies on the first token":
            await send(data({"error": {"message": "EngineCore encountered an issue", "code": 500}}))
            await send("data: [DONE]\n\n")
            await send("")
            return
        pieces = [piece({"content": "" if lie == "no text" else "word "})] * -(-made // self.tokens_a_piece)
        if lie in ("held back", "burst"):
            pieces = pieces[:1] if lie == "held back" else pieces[:2]
            await asyncio.sleep(0.02)
        if lie == "counts too little":
            pieces *= 2
        for n, text in enumerate(pieces):
            if n == len(pieces) // 2 and lie in MIDDLE:
                await MIDDLE[lie](writer, send)
                return
            if lie == "burst":
                writer.write(b"".join(chunk(p) for p in pieces))
                break
            await send(text)
            await asyncio.sleep(PIECE_SECONDS)
        self.generated += made
        finish = {"stops early": "stop", "filtered": "content_filter", "zero tokens": "stop"}.get(lie, "length")
        await send(piece({}, finish))
        if lie == "error at the end":
            await send("event: error\n" + data({"message": "CUDA error: an illegal instruction was encountered"}))
        if lie != "no usage":
            cached = {"cached": prompt - 1}.get(lie, 0)
            tokens = {"prompt_tokens": prompt * (3 if lie == "longer prompt" else 1), "completion_tokens": made}
            usage = {**tokens, "prompt_tokens_details": {"cached_tokens": cached}}
            await send(data({"model": name, "choices": [], "usage": usage}))
        if lie != "no done":
            await send("data: [DONE]\n\n")
        await send("")


HTTP = {"context": 400, "server error": 500, "overloaded": 503}

Send = Callable[[str], Any]


async def _reset(writer: asyncio.StreamWriter, send: Send) -> None:
    linger_not = struct.pack("ii", 1, 0)  # close(2) then sends RST
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)
    writer.transport.abort()


async def _broken_off(writer: asyncio.StreamWriter, send: Send) -> None:
    """The connection is closed in good order, the body is not."""


async def _hang(writer: asyncio.StreamWriter, send: Send) -> None:
    await asyncio.sleep(60)


async def _error_event(writer: asyncio.StreamWriter, send: Send) -> None:
    await send(data({"error": {"message": "illegal instruction", "type": "InternalServerError", "code": 500}}))
    await send("data: [DONE]\n\n")
    await send("")


async def _no_json(writer: asyncio.StreamWriter, send: Send) -> None:
    await send("data: Internal Server Error\n\n")
    await send("data: [DONE]\n\n")
    await send("")


MIDDLE: Mapping[str, Callable[[asyncio.StreamWriter, Send], Any]] = {
    "reset": _reset,
    "broken off": _broken_off,
    "hangs in the middle": _hang,
    "error event": _error_event,
    "no json": _no_json,
}


def data(event: Mapping[str, Any]) -> str:
    return "data: %s\n\n" % json.dumps(event)


def chunk(text: str) -> bytes:
    raw = text.encode()
    return b"%x\r\n%s\r\n" % (len(raw), raw)


def chunked(writer: asyncio.StreamWriter) -> Send:
    async def send(text: str) -> None:
        """One chunk; an empty text ends the body."""
        writer.write(chunk(text))
        await writer.drain()

    return send


async def plain(writer: asyncio.StreamWriter, status: int, answer: Mapping[str, Any] | str) -> None:
    raw = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(raw), raw))
    await writer.drain()
