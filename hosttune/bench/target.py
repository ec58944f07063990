# SPDX-License-Identifier: Apache-2.0
"""The server that is measured: where it is, what it says of itself, and whether it is still the one that it was."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.door.host import Host
from ..core.model import Refused
from . import http
from .listener import is_local, listeners

GENERATED = ("vllm:generation_tokens_total", "sglang:generation_tokens_total", "llamacpp:tokens_predicted_total")
PREEMPTED = ("vllm:num_preemptions_total",)
STARTED = ("process_start_time_seconds",)


@dataclass(frozen=True)
class Target:
    """A running engine, as whoever started it declares it.

    url      http://127.0.0.1:30000, with or without /v1
    model    the name that it serves; "" takes the only one there is
    engine   facts that must be equal for two results to be compared: engine, version, tp, gpus, context, args ...
    identity asked before and after each trial: anything that changes when the server is restarted (MainPID,
             InvocationID, NRestarts of its unit). None: the process that listens on the port, if it can be seen from here
    key      sent as a bearer token, never written anywhere
    """

    url: str
    model: str = ""
    engine: Mapping[str, str] = field(default_factory=dict)
    identity: Callable[[], Mapping[str, str]] | None = None
    key: str = field(default="", repr=False)


class Arm(Protocol):
    """An engine that a benchmark starts, or finds running. start and stop may take minutes; they raise Refused."""

    name: str

    def start(self) -> Target:
        """Make it serve; what ran before in its place is stopped. Returns once it is healthy."""

    def stop(self) -> None:
        """Stop what start started. Does nothing the second time, or if it never started."""

    def leftovers(self) -> tuple[str, ...]:
        """After stop: workers, GPU memory or new Xids that are still there, each a line. The next arm waits for none."""

    def restore(self) -> None:
        """Bring back what ran before start."""


@dataclass
class Attached:
    """The arm that starts nothing: a server that runs already, and runs on afterwards."""

    name: str
    target: Target

    def start(self) -> Target:
        """The server as it is."""
        return self.target

    def stop(self) -> None:
        """Nothing: it is not ours."""

    def leftovers(self) -> tuple[str, ...]:
        """None: nothing was started."""
        return ()

    def restore(self) -> None:
        """Nothing was taken away."""


@dataclass(frozen=True)
class Seen:
    """What the server says of itself. context: tokens of prompt and answer together, None when it does not tell."""

    server: http.Server
    model: str
    models: tuple[str, ...]
    context: int | None
    facts: Mapping[str, str]


@dataclass(frozen=True)
class State:
    """The server at one moment. generated, preempted: its own counters, None when it has none.

    identity: what changes when it is restarted; `known` is False when nothing but model names could be seen.
    """

    identity: Mapping[str, str]
    known: bool
    generated: float | None
    preempted: float | None


async def look(target: Target) -> Seen:
    """Ask the server who it is, once. Refused when it does not answer or does not serve the model."""
    to = http.server(target.url, target.key)
    told = await http.fetch(to, "GET", "/v1/models")
    if told.status in (401, 403):
        raise Refused("the server wants a key (HTTP %d)" % told.status, to.url, "--api-key-file FILE")
    if told.status != 200:
        why = told.error or "HTTP %d for /v1/models" % told.status
        raise Refused("no engine answers: %s" % why, to.url, "is it running? curl -i %s/v1/models" % to.url)
    rows = [row for row in told.json().get("data") or () if isinstance(row, dict) and row.get("id")]
    models = tuple(sorted(str(row["id"]) for row in rows))
    model = target.model or (models[0] if len(models) == 1 else "")
    row = next((row for row in rows if model in (row["id"], *_list(row.get("aliases")))), None)
    if row is None:
        what = "it serves no model called %s" % model if model else "it serves %d models" % len(models)
        raise Refused(what, to.url, "--model with one of: %s" % (", ".join(models) or "none are listed"))
    props, version = await asyncio.gather(http.fetch(to, "GET", "/props"), http.fetch(to, "GET", "/version"))
    slots = props.json()
    context = _context(row, slots)
    facts = {
        "served by": str(row.get("owned_by") or ""),
        "version": str(version.json().get("version") or slots.get("build_info") or ""),
        "context": "" if context is None else str(context),
        "slots": str(slots.get("total_slots") or ""),
    }
    return Seen(to, model, models, context, {key: value for key, value in facts.items() if value})


def _context(row: Mapping[str, Any], props: Mapping[str, Any]) -> int | None:
    """max_model_len: vllm and sglang. n_ctx of one slot: llama.cpp (n_ctx_train is the model's, not what is served)."""
    settings, meta = props.get("default_generation_settings"), row.get("meta")
    for source, key in ((row, "max_model_len"), (settings, "n_ctx"), (meta, "n_ctx")):
        found = source.get(key) if isinstance(source, Mapping) else None
        if isinstance(found, int) and found > 0:
            return found
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


async def healthy(to: http.Server) -> str:
    """ "" when it is; else what it said. SGLang generates a token for this question: not while something is measured."""
    told = await http.fetch(to, "GET", "/health")
    if told.status == 404:
        told = await http.fetch(to, "GET", "/v1/models")
    if told.status == 200:
        return ""
    return told.error or "HTTP %d: %s" % (told.status, " ".join(told.text.split())[:200])


async def state(target: Target, seen: Seen, host: Host, before: State | None = None) -> State:
    """Who serves now, and what it has counted. A question that fails leaves its part out, and the two states differ.

    before: an earlier state, which makes the look for the process cheap while it has not changed.
    """
    metrics, models = await asyncio.gather(
        http.fetch(seen.server, "GET", "/metrics"), http.fetch(seen.server, "GET", "/v1/models")
    )
    rows = _list(models.json().get("data"))
    identity = {"models": ", ".join(sorted(str(row.get("id")) for row in rows)) or models.error or "none"}
    if target.identity is not None:
        identity.update(await asyncio.to_thread(target.identity))
    elif is_local(seen.server.host):
        held = await asyncio.to_thread(
            listeners, host, seen.server.port, before.identity.get("process", "") if before else ""
        )
        if held:
            identity["process"] = held
    text = metrics.text if metrics.status == 200 else ""
    begun = counter(text, STARTED)
    if begun is not None:
        identity["started"] = "%.3f" % begun
    return State(identity, len(identity) > 1, counter(text, GENERATED), counter(text, PREEMPTED))


def counter(text: str, names: tuple[str, ...]) -> float | None:
    """The sum over all labels of a counter in Prometheus' text format; None when it is not there."""
    found = re.findall(r"(?m)^(?:%s)(?:\{[^}\n]*\})?\s+([-+0-9.eE]+)" % "|".join(map(re.escape, names)), text)
    return sum(float(value) for value in found) if found else None
