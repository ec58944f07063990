# SPDX-License-Identifier: Apache-2.0
"""HT511: how an engine loads a staged model, and how long that took beside the staging.

Loading from memory is the CPU's work: with one thread it takes about twice as long as with eight (sglang PR 7277: 60 s and
32 s). In a tmpfs there is nothing to prefetch, and what llama.cpp maps it need not copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.catalogue import finding
from ..core.door.host import Host
from ..core.model import OK, WARN, Finding, Hint, Refused
from ..core.stage import manifest
from .declare import Engine
from .see import Seen

THREADED = "model-loader-extra-config"
WANT = '{"enable_multithread_load": true, "num_threads": 8}'
COPIES = {"no-mmap": "reads all of the model into memory of its own, beside the copy that lies there",
          "direct-io": "reads past the page cache, which is where a tmpfs lies",
          "mlock": "locks pages that a tmpfs without swap never gives away"}  # fmt: skip
_LOADED = (re.compile(r"Load weight end\. elapsed=(\d+\.?\d*) s"), re.compile(r"Loading weights took (\d+\.?\d*) seconds"))
"""SGLang's model runner, vLLM's default loader: one line a rank."""
_BEGUN, _ENDED = re.compile(r"\bloading model\b"), re.compile(r"\bmodel loaded\b")
"""llama.cpp's server counts no seconds, and says when."""


def advice(engine: Engine) -> tuple[str, str]:
    """(what is slow, what to write under args) for an engine with a staged model; ("", "") where nothing is."""
    args = {name.lstrip("-"): value for name, value in engine.args.items()}
    if engine.kind in ("sglang", "vllm") and not _threaded(args) and "load-format" not in args:
        return "it loads its model with one thread", "%s: '%s'" % (THREADED, WANT)
    if engine.kind in ("llama.cpp", "xllamacpp"):
        wrong = next((name for name in COPIES if name in args), "")
        return ("%s %s" % (wrong, COPIES[wrong]), "leave %s out" % wrong) if wrong else ("", "")
    return "", ""


def _threaded(args: Mapping[str, str]) -> bool:
    try:
        return bool(json.loads(args.get(THREADED, "{}")).get("enable_multithread_load"))
    except (ValueError, AttributeError):
        return True  # of another form: its owner knows what he does


def seconds(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """How long the slowest rank loaded, by these lines of an engine's journal (core/units.py); None if they do not say."""
    found = [float(part[1]) for row in rows for mark in _LOADED for part in [mark.search(row["text"])] if part]
    begun = [row["at"] for row in rows if _BEGUN.search(row["text"])]
    ended = [row["at"] for row in rows if _ENDED.search(row["text"])]
    if begun and ended and not found:
        found = [max(ended) - min(begun)]
    return max(found, default=None)


def judge(host: Host, seen: Seen) -> list[Finding]:
    """HT511 for an engine whose model is staged. host: where models are staged."""
    engine = seen.engine
    if not engine.model_name:
        return []
    took = times(host, engine, seen.told.get("journal", ()))
    slow, write = advice(engine)
    if slow:
        hint = Hint("args: {%s}" % write if ":" in write else write, "engines.%s in the profile" % engine.name,
                    "counts from the next start on, which loads the model anew", "reconfigure")  # fmt: skip
        return [finding("HT511", WARN, engine.name, slow + took, machine=engine.place, want=write, hint=hint)]
    return [finding("HT511", OK, engine.name, "it loads its staged model as it should" + took, machine=engine.place)]


def times(host: Host, engine: Engine, rows: Sequence[Mapping[str, Any]]) -> str:
    """; weights were loaded in 32 s (staging them took 3.1 s): as much of it as is known, "" for nothing."""
    loaded = seconds(rows)
    try:
        staged = manifest.load(host, engine.model_name)
    except (Refused, OSError):
        staged = None
    said = [] if loaded is None else ["weights were loaded in %.1f s" % loaded]
    if staged and staged.seconds:
        said.append("staging them took %.1f s" % staged.seconds)
    return "; " + ", ".join(said) if said else ""
