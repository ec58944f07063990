# SPDX-License-Identifier: Apache-2.0
"""The gate between what came back and a number. Pure: records in, reasons out; no reason means valid.

Public load generators end with exit code 0 and a plausible figure when the server dies in the middle. Here a single
reason makes its whole configuration invalid, and an invalid one has no figure at all: no mean, no 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .client import Answer, Trial
from .target import State

CEILING = 50_000.0
"""Tokens a second of one stream that no engine reaches: past it, the stream was held back and sent at once."""
LATE = 0.05
"""Seconds that a client may be kept from running without a word about it."""
PROMPT_TOLERANCE = 64
"""Tokens that a chat template and a number in front may add to a prompt, or 2 % of it."""

REASONS = {
    "refused": ("HT801", "the connection was refused"),
    "unreachable": ("HT801", "the server could not be reached"),
    "reset": ("HT801", "the connection was lost"),
    "timeout": ("HT801", "no whole answer in time"),
    "http": ("HT801", "the server answered with an HTTP error"),
    "event": ("HT802", "an error came inside a stream that began with HTTP 200"),
    "torn": ("HT802", "the stream broke off"),
    "json": ("HT802", "an event of the stream is not what the protocol says"),
    "not-done": ("HT802", "the stream ended without [DONE]"),
    "no-usage": ("HT803", "the server did not say how many tokens it made"),
    "usage-disagrees": ("HT803", "the token counts contradict each other"),
    "counter-disagrees": ("HT803", "the server's own counter says otherwise: another client, or a wrong count"),
    "no-tokens": ("HT804", "an answer of no tokens"),
    "short": ("HT804", "an answer shorter than asked"),
    "long": ("HT804", "an answer longer than allowed"),
    "finish-reason": ("HT804", "the answer ended for another reason than planned"),
    "empty-text": ("HT804", "tokens were counted, and no text came"),
    "restarted": ("HT805", "another server process answers now than before"),
    "unhealthy": ("HT805", "the server is not healthy afterwards"),
    "model-changed": ("HT805", "answers name different models"),
    "clock": ("HT806", "times are out of order"),
    "too-fast": ("HT806", "a rate that no engine reaches"),
    "not-streamed": ("HT806", "the whole answer came in one piece, so there is no first token to time"),
    "prompt-length": ("HT807", "the prompt is not as long as planned"),
    "prompt-cached": ("HT807", "the prompt came from the prefix cache"),
    "preempted": ("HT807", "requests were preempted: the KV cache is too small for this many"),
}
"""{code: (finding id, what it means)}."""


@dataclass(frozen=True)
class Reason:
    """Why something is no measurement. detail: numbers seen and wanted. count: how often."""

    code: str
    detail: str
    count: int = 1

    @property
    def finding(self) -> str:
        """The id whose page explains it."""
        return REASONS[self.code][0]

    def __str__(self) -> str:
        times = " (%d times)" % self.count if self.count > 1 else ""
        return "%s: %s%s" % (REASONS[self.code][1], self.detail, times)


@dataclass(frozen=True)
class Wanted:
    """What a valid answer looks like. prompt_tokens: as planned, None if the plan does not say."""

    max_tokens: int
    exact: bool = True
    prompt_tokens: int | None = None


def of_answer(answer: Answer, wanted: Wanted) -> list[Reason]:
    """Everything that is wrong with one answer. What the first error explains is not said again."""
    if answer.error:
        status = "HTTP %d: " % answer.status if answer.error["kind"] == "http" else ""
        return [Reason(answer.error["kind"], status + (answer.error["text"] or "no text"))]
    out = []
    if not answer.done:
        out.append(Reason("not-done", "after %d pieces" % len(answer.pieces)))
    out += _tokens(answer, wanted)
    if not out:
        out += _times(answer)
    return out


def _tokens(answer: Answer, wanted: Wanted) -> list[Reason]:
    usage = answer.usage or {}
    made, prompt, cached = usage.get("completion"), usage.get("prompt"), usage.get("cached") or 0
    if made is None or prompt is None:
        return [Reason("no-usage", "usage is %s" % (answer.usage or "absent"))]
    out = []
    if made <= 0:
        out.append(Reason("no-tokens", "completion_tokens is %d, %d were asked" % (made, wanted.max_tokens)))
    elif made < wanted.max_tokens and wanted.exact:
        ended = "finish_reason %s" % (answer.finish_reason or "absent")
        out.append(Reason("short", "%d tokens, %d were asked (%s)" % (made, wanted.max_tokens, ended)))
    elif made > wanted.max_tokens:
        out.append(Reason("long", "%d tokens, at most %d were asked" % (made, wanted.max_tokens)))
    elif answer.finish_reason not in (("length",) if wanted.exact else ("length", "stop")):
        out.append(Reason("finish-reason", answer.finish_reason or "none was given"))
    if made > 0 and not answer.letters:
        out.append(Reason("empty-text", "completion_tokens is %d" % made))
    if 0 < made < len(answer.pieces) - 1:  # an engine may send one more piece: bytes that it held back at the end
        out.append(Reason("usage-disagrees", "%d pieces of text came for %d tokens" % (len(answer.pieces), made)))
    if prompt <= 0 or cached < 0 or cached > prompt:
        out.append(Reason("usage-disagrees", "a prompt of %d tokens, %d of them cached" % (prompt, cached)))
    elif cached > PROMPT_TOLERANCE or 2 * cached > prompt:
        out.append(Reason("prompt-cached", "%d of %d tokens" % (cached, prompt)))
    plan = wanted.prompt_tokens
    if plan is not None and abs(prompt - plan) > max(PROMPT_TOLERANCE, plan // 50):
        out.append(Reason("prompt-length", "%d tokens, %d were planned" % (prompt, plan)))
    return out


def _times(answer: Answer) -> list[Reason]:
    made = (answer.usage or {}).get("completion") or 0
    sent, first, last, end = answer.sent, answer.first, answer.last, answer.end
    if sent is None or first is None or last is None or end is None or not sent < first <= last <= end:
        return [Reason("clock", "sent %s, first %s, last %s, end %s" % (sent, first, last, end))]
    if made < 2:
        return []
    if first == last:
        return [Reason("not-streamed", "%d tokens in one piece after %.3f s" % (made, first - sent))]
    rate = (made - 1) / (last - first)
    return [Reason("too-fast", "%.0f tokens/s in one stream" % rate)] if rate > CEILING else []


def of_trial(answers: Sequence[Answer], wanted: Wanted, before: State, after: State) -> list[Reason]:
    """Everything that is wrong with one trial. before and after: the server around it."""
    out = [reason for answer in answers for reason in of_answer(answer, wanted)]
    models = sorted({answer.model for answer in answers if answer.model})
    if len(models) > 1:
        out.append(Reason("model-changed", ", ".join(models)))
    out += same_server(before, after)
    if not out and before.generated is not None and after.generated is not None:
        made = sum((answer.usage or {}).get("completion") or 0 for answer in answers)
        counted = after.generated - before.generated
        if counted != made:
            out.append(Reason("counter-disagrees", "it counted %d tokens, the answers have %d" % (counted, made)))
    if before.preempted is not None and after.preempted is not None and after.preempted > before.preempted:
        out.append(Reason("preempted", "%d times" % (after.preempted - before.preempted)))
    return merged(out)


def same_server(before: State, after: State) -> list[Reason]:
    """Whether the same process served all the time."""
    changed = sorted(
        key
        for key in {*before.identity, *after.identity}
        if before.identity.get(key, "") != after.identity.get(key, "")
    )
    said = [
        "%s was %s, is %s" % (k, before.identity.get(k) or "unseen", after.identity.get(k) or "unseen") for k in changed
    ]
    if said:
        return [Reason("restarted", "; ".join(said))]
    if before.generated is not None and after.generated is not None and after.generated < before.generated:
        return [Reason("restarted", "its token counter went back from %d to %d" % (before.generated, after.generated))]
    return []


def flags(trials: Sequence[Trial], known: bool) -> list[str]:
    """What a reader must know of trials, valid or not."""
    out = []
    answers = [answer for trial in trials for answer in trial.answers]
    busy, late = (max((getattr(trial, name) for trial in trials), default=0) for name in ("busy", "late"))
    if not known:
        out.append("the server's process could not be seen: a restart between two requests would go unnoticed")
    if busy > 0.8:
        out.append("the client used %.0f %% of a core: it may have slowed the figures down" % (100 * busy))
    if late > LATE:
        out.append("the client was kept from running for up to %.0f ms: its times are that uncertain" % (1000 * late))
    if any(answer.letters > 32 and answer.distinct_letters <= 2 for answer in answers):
        out.append("an answer repeats one or two characters: look at its text")
    return out


def merged(reasons: Sequence[Reason]) -> list[Reason]:
    """One of each code, with its first detail and how often it came."""
    out: dict[str, Reason] = {}
    for reason in reasons:
        seen = out.get(reason.code)
        out[reason.code] = Reason(reason.code, seen.detail, seen.count + reason.count) if seen else reason
    return list(out.values())
