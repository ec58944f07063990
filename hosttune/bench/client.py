# SPDX-License-Identifier: Apache-2.0
"""The load: streaming chat completions, so many at once, each written down as it came. What it is worth, validity.py says.

Tokens are the server's own count (`usage`); pieces of a stream are never counted as tokens, because speculation sends
several tokens in one. Times are seconds of the monotonic clock since the trial began.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import h11

from ..core.model import Refused
from . import http
from .sse import Events

TEXT_KEPT = 400
"""Characters of an answer or an error that stay in the record: enough to see what it was."""

TICK = 0.005
"""Seconds between looks at whether the client still gets to run."""


@dataclass(frozen=True)
class Question:
    """One request. `extra` are more fields of its body (ignore_eos, min_tokens)."""

    model: str
    content: str
    max_tokens: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Its JSON body."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": self.content}],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }


@dataclass
class Answer:
    """What came back. `first` and `last` are the first and last piece with text, `pieces` all of them.

    error: {"kind": refused | reset | torn | timeout | unreachable | http | event | json, "text": what was said}.
    usage: prompt, completion and cached tokens as the server says; None without usage.
    """

    stream: int = 0
    round: int = 0
    sent: float | None = None
    head: float | None = None
    first: float | None = None
    last: float | None = None
    end: float | None = None
    status: int = 0
    done: bool = False
    usage: dict[str, int | None] | None = None
    finish_reason: str = ""
    model: str = ""
    error: dict[str, str] | None = None
    text: str = ""
    text_sha256: str = ""
    letters: int = 0
    distinct_letters: int = 0
    pieces: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Trial:
    """Answers of one trial. started: seconds since the epoch. busy: share of one core that the client itself used.

    late: the longest time in seconds that the client was kept from running; its times are that uncertain.
    """

    started: float
    wall: float
    busy: float
    late: float
    answers: tuple[Answer, ...]


async def trial(
    to: http.Server,
    question: Callable[[int, int], Question],
    concurrency: int,
    rounds: int,
    timeout: float,
    told: Callable[[Answer], None] = lambda answer: None,
) -> Trial:
    """`concurrency` streams, each of which asks question(stream, round) `rounds` times, one after another.

    timeout: seconds for one request, whole. After a failure no stream begins another round.
    """
    started, zero, cpu = time.time(), time.perf_counter(), time.process_time()
    answers: list[Answer] = []
    failed = asyncio.Event()

    async def one_stream(stream: int) -> None:
        for n in range(rounds):
            if failed.is_set():
                return
            answer = Answer(stream, n)
            answers.append(answer)
            await _ask(to, question(stream, n), answer, zero, timeout)
            if answer.error:
                failed.set()
            told(answer)

    lateness = [0.0]
    looking = asyncio.create_task(_look_for_lateness(lateness))
    try:
        async with asyncio.TaskGroup() as group:
            for stream in range(concurrency):
                group.create_task(one_stream(stream))
    finally:
        looking.cancel()
    wall = time.perf_counter() - zero
    busy = (time.process_time() - cpu) / wall
    answers.sort(key=lambda answer: (answer.round, answer.stream))
    return Trial(started, wall, busy, max(lateness), tuple(answers))


async def _look_for_lateness(found: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(TICK)
        found[0] = max(found[0], time.perf_counter() - begin - TICK)


async def _ask(to: http.Server, question: Question, answer: Answer, zero: float, timeout: float) -> None:
    text: list[str] = []
    try:
        async with asyncio.timeout(timeout), http.connect(to) as exchange:
            answer.sent = time.perf_counter() - zero
            answer.status = await exchange.send("POST", "/v1/chat/completions", question.body())
            answer.head = time.perf_counter() - zero
            if answer.status == 200:
                await _stream(exchange, answer, text, zero)
            else:
                answer.error = {"kind": "http", "text": await _rest(exchange)}
    except TimeoutError:
        answer.error = answer.error or {"kind": "timeout", "text": "not whole after %g s" % timeout}
    except (OSError, h11.RemoteProtocolError, Refused) as e:
        answer.error = answer.error or {"kind": _kind(e, answer), "text": http.said(e)}
    answer.end = time.perf_counter() - zero
    whole = "".join(text)
    answer.text, answer.text_sha256 = whole[:TEXT_KEPT], hashlib.sha256(whole.encode()).hexdigest()
    answer.letters, answer.distinct_letters = len(whole), len(set(whole))


def _kind(e: BaseException, answer: Answer) -> str:
    if isinstance(e, ConnectionRefusedError):
        return "refused"
    if answer.sent is None:
        return "unreachable"
    return "reset" if isinstance(e, OSError) else "torn"


async def _rest(exchange: http.Exchange) -> str:
    data = b""
    async for piece in exchange.pieces():
        data += piece
        if len(data) > 1 << 20:
            break
    return " ".join(data.decode("utf-8", "replace").split())[:TEXT_KEPT]


async def _stream(exchange: http.Exchange, answer: Answer, text: list[str], zero: float) -> None:
    events = Events()
    async for piece in exchange.pieces():
        now = time.perf_counter() - zero
        for name, data in events.feed(piece):
            if data.strip() == "[DONE]":
                answer.done = True
            else:
                _event(name, data, answer, text, now)


def _event(name: str, data: str, answer: Answer, text: list[str], now: float) -> None:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        answer.error = answer.error or {"kind": "event" if name == "error" else "json", "text": data[:TEXT_KEPT]}
        return
    if event.get("error") or name == "error" or event.get("object") == "error":
        said = event.get("error") or event
        message = said.get("message") if isinstance(said, dict) else said
        answer.error = answer.error or {"kind": "event", "text": str(message or said)[:TEXT_KEPT]}
        return
    answer.model = str(event.get("model") or answer.model)
    if isinstance(event.get("usage"), dict):
        answer.usage = _usage(event["usage"])
    for choice in event.get("choices") or ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if not isinstance(delta, dict):
            answer.error = answer.error or {"kind": "json", "text": data[:TEXT_KEPT]}
            return
        new = "".join(str(delta[key]) for key in ("reasoning_content", "reasoning", "content") if delta.get(key))
        if new:
            answer.first = now if answer.first is None else answer.first
            answer.last = now
            answer.pieces.append(now)
            text.append(new)
        answer.finish_reason = str(choice.get("finish_reason") or answer.finish_reason)


def _usage(given: Mapping[str, Any]) -> dict[str, int | None]:
    cached = given.get("prompt_tokens_details") or {}
    raw = {
        "prompt": given.get("prompt_tokens"),
        "completion": given.get("completion_tokens"),
        "cached": cached.get("cached_tokens") if isinstance(cached, dict) else None,
    }
    return {
        key: value if isinstance(value, int) and not isinstance(value, bool) else None for key, value in raw.items()
    }
