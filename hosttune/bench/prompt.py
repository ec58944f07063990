# SPDX-License-Identifier: Apache-2.0
"""Prompts as long as they are meant to be, as the server itself counts, and each different from its first token on.

A prompt that the server has seen before is answered from its prefix cache: the second trial would measure the cache (TTFT
1224 ms, then 4 ms, seen with llama.cpp). So each request begins with a number of its own, of a fixed count of digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from ..core.model import Refused
from . import http
from .plan import Plan, Prompt
from .target import Seen
from .validity import PROMPT_TOLERANCE

STEPS = 40
"""Questions to the tokenizer at most while a prompt is cut; bisection of a million characters takes 20."""


LARGEST = 1 << 26
"""Characters that a repeated prompt may have at most."""


@dataclass(frozen=True)
class Text:
    """A prompt ready to be sent. tokens: as /tokenize counts it, without the chat template; None if the server cannot."""

    text: str
    tokens: int | None


def numbered(text: str, seed: str, *place: object) -> str:
    """The text behind a number that no other place of this run has (nine digits: one count of tokens for all of them)."""
    number = int(hashlib.sha256(":".join([seed, *map(str, place)]).encode()).hexdigest(), 16) % 10**9
    return "%09d %s" % (number, text)


async def count(seen: Seen, text: str) -> int | None:
    """Tokens of a text by POST /tokenize (vllm and sglang read `prompt`, llama.cpp `content`), None without it."""
    told = await http.fetch(
        seen.server, "POST", "/tokenize", {"model": seen.model, "prompt": text, "content": text}, timeout=120
    )
    tokens, counted = told.json().get("tokens"), told.json().get("count")
    if told.status != 200:
        return None
    return counted if isinstance(counted, int) else len(tokens) if isinstance(tokens, list) else None


async def fit(seen: Seen, name: str, prompt: Prompt) -> Text:
    """The prompt, repeated and cut to its wanted tokens if it names a number. Refused when that cannot be counted."""
    have = await count(seen, numbered(prompt.text, "sample"))
    if prompt.tokens is None:
        return Text(prompt.text, have)
    if not have:
        raise Refused(
            "it shall be %d tokens long, and the server cannot count tokens (no /tokenize)" % prompt.tokens,
            "prompts." + name,
            "take `tokens` out and give a file that is as long",
        )
    source = prompt.text
    while have < prompt.tokens and len(source) < LARGEST:
        source = source + "\n" + source
        have = await count(seen, numbered(source, "sample")) or LARGEST  # no answer: the next question says so
    short, long, best = 0, len(source), ("", 0)
    for _ in range(STEPS):
        middle = (short + long + 1) // 2
        tokens = await count(seen, numbered(source[:middle], "sample")) or 0
        if tokens <= prompt.tokens:
            short, best = middle, max(best, (source[:middle], tokens), key=lambda found: found[1])
        else:
            long = middle - 1
        if tokens == prompt.tokens or short >= long:
            break
    if not 0 < best[1] <= prompt.tokens or prompt.tokens - best[1] > max(PROMPT_TOLERANCE, prompt.tokens // 50):
        what = "it could not be cut to %d tokens: the server counted %d" % (prompt.tokens, best[1])
        raise Refused(what, "prompts." + name, "another `tokens`, or a text of ordinary words")
    return Text(*best)


def refuse_unfit(plan: Plan, measured: Mapping[str, int | None], context: int | None) -> None:
    """Refused, with every sum, when a prompt and its answer are longer than the context that the server tells.

    measured: tokens of each prompt with the chat template around it, as the server counts them; None if it would not say.
    """
    sums = [
        "%s: %d + %d = %d" % (name, tokens, n, tokens + n)
        for name, tokens in measured.items()
        for n in plan.max_tokens
        if context is not None and tokens is not None and tokens + n > context
    ]
    if sums:
        raise Refused(
            "the server's context is %s tokens; prompt and answer do not fit: %s" % (context, "; ".join(sums)),
            plan.path or "plan",
            "lower `max_tokens` or the prompt's `tokens`, or start the engine with a longer context",
        )
