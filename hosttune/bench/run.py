# SPDX-License-Identifier: Apache-2.0
"""A plan, carried out: each arm started, each configuration warmed up, measured, judged and written, one file at a time."""

from __future__ import annotations

import asyncio
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, Protocol

from .. import __version__
from ..core.door.host import Host
from ..core.model import Refused
from . import figures, prompt, validity
from .client import Answer, Question, Trial, trial
from .plan import Configuration, Plan
from .results import INVALID, SCHEMA, VALID, Results
from .target import Arm, Seen, State, Target, healthy, look, state
from .validity import Reason, Wanted

OPTIONAL = ("ignore_eos",)
"""Fields beyond OpenAI's, left out when the server refuses a request that has them (transformers serve: HTTP 422)."""
READ_AGAIN = (0.05, 0.2, 0.5, 1.0)
"""Seconds between looks at the server's counters until they have caught up with the last token."""


class Watch(Protocol):
    """Who is told how it goes."""

    def line(self, text: str) -> None:
        """Something happened."""

    def begins(self, k: int, n: int, configuration: Configuration, requests: int) -> None:
        """Configuration k of n, with so many requests, warm-up included."""

    def answered(self, answer: Answer) -> None:
        """One request ended."""

    def ended(self, configuration: Configuration, result: Mapping[str, Any]) -> None:
        """A result was written."""


@dataclass(frozen=True)
class Session:
    """An arm that serves, ready for its configurations. seed makes the numbers in front of prompts this run's own."""

    target: Target
    seen: Seen
    texts: Mapping[str, prompt.Text]
    measured: Mapping[str, int | None]
    extra: Mapping[str, Any]
    left_out: tuple[str, ...]
    seed: str


def to_do(plan: Plan, results: Results, retry: bool) -> list[Configuration]:
    """What is still to be measured: what is missing first, then (retry) what was invalid."""
    status = {configuration: results.status(configuration) for configuration in plan.configurations}
    missing = [c for c in plan.configurations if not status[c]]
    return missing + [c for c in plan.configurations if retry and status[c] == INVALID]


def run(
    plan: Plan,
    arms: Sequence[Arm],
    results: Results,
    host: Host,
    snapshot: Callable[[], Mapping[str, Any]],
    watch: Watch,
    retry: bool = False,
    wait: float = 60,
) -> bool:
    """Measure what is to be measured. True when all of it was; False when a server stayed away for `wait` seconds, or one
    of several arms could not be started. What ran before the arms is brought back however this ends.

    Raises Refused when the only arm cannot start, when a prompt cannot fit, or when an arm leaves something behind.
    """
    rest = to_do(plan, results, retry)
    complete, started = True, list[Arm]()
    try:
        for arm in arms:
            mine = [configuration for configuration in rest if configuration.arm == arm.name]
            if not mine:
                continue
            started.append(arm)
            try:
                complete &= _one_arm(plan, arm, mine, rest, results, host, snapshot, watch, wait)
            except Refused as e:
                if len(arms) == 1:
                    raise
                watch.line("arm %s: %s" % (arm.name, e))
                complete = False
            finally:
                arm.stop()
            if left := arm.leftovers():
                way_out = "end that, then run the same command again: it goes on where it stopped"
                raise Refused("it left behind: %s" % "; ".join(left), "arm " + arm.name, way_out)
    finally:
        for arm in reversed(started):
            arm.restore()
    return complete


def _one_arm(
    plan: Plan,
    arm: Arm,
    mine: Sequence[Configuration],
    rest: Sequence[Configuration],
    results: Results,
    host: Host,
    snapshot: Callable[[], Mapping[str, Any]],
    watch: Watch,
    wait: float,
) -> bool:
    target = arm.start()
    session = asyncio.run(prepare(plan, target))
    for configuration in mine:
        if not asyncio.run(_awaited(session.seen, wait)):
            left = len(mine) - mine.index(configuration)
            watch.line("the server has not been healthy for %g s; still to measure: %d" % (wait, left))
            return False
        requests = configuration.concurrency * (plan.rounds * plan.trials + plan.warm_up)
        watch.begins(rest.index(configuration) + 1, len(rest), configuration, requests)
        result = asyncio.run(measure(plan, configuration, session, host, snapshot(), watch))
        results.write(configuration, result)
        watch.ended(configuration, result)
    return True


async def prepare(plan: Plan, target: Target) -> Session:
    """Ask the server who it is, cut the prompts, and have each answered once by a token.

    Refused when the server answers none, or when a prompt and its answer do not fit into the context that it tells. A
    healthy server that dies on its first token is found here.
    """
    seen = await look(target)
    seed = secrets.token_hex(8)
    texts = {name: await prompt.fit(seen, name, wanted) for name, wanted in plan.prompts.items()}
    counted = {name: text.tokens for name, text in texts.items()}
    prompt.refuse_unfit(plan, counted, seen.context)
    extra: dict[str, Any] = {"ignore_eos": True} if plan.ignore_eos else {}
    measured: dict[str, int | None] = {}
    left_out: list[str] = []
    for name, text in texts.items():
        answer = await _once(plan, seen, prompt.numbered(text.text, seed, "first", name), extra)
        refused = [
            key for key in OPTIONAL if answer.status in (400, 422) and key in (answer.error or {}).get("text", "")
        ]
        if refused:
            extra = {key: value for key, value in extra.items() if key not in refused}
            left_out += refused
            answer = await _once(plan, seen, prompt.numbered(text.text, seed, "first", name), extra)
        reasons = validity.of_answer(answer, Wanted(1, exact=False))
        if answer.status != 400 and any(r.finding in ("HT801", "HT802") for r in reasons):
            raise Refused(
                "the server does not answer a first question: %s" % "; ".join(map(str, reasons)),
                seen.server.url,
                "look at its log; a benchmark would measure nothing",
            )
        measured[name] = (answer.usage or {}).get("prompt")
    prompt.refuse_unfit(plan, measured, seen.context)
    return Session(target, seen, texts, measured, extra, tuple(left_out), seed)


async def _once(plan: Plan, seen: Seen, content: str, extra: Mapping[str, Any]) -> Answer:
    found = await trial(seen.server, lambda stream, n: Question(seen.model, content, 1, extra), 1, 1, plan.timeout)
    return found.answers[0]


async def _awaited(seen: Seen, wait: float) -> bool:
    end = time.monotonic() + wait
    while await healthy(seen.server):
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(min(2, wait / 10))
    return True


async def measure(
    plan: Plan,
    configuration: Configuration,
    session: Session,
    host: Host,
    snapshot: Mapping[str, Any],
    watch: Watch,
) -> dict[str, Any]:
    """The result of one configuration, valid or not. It stops at its first trial that is not valid."""
    started = time.time()
    planned = plan.prompts[configuration.prompt].tokens
    wanted = Wanted(configuration.max_tokens, plan.ignore_eos, planned)
    first = await _settled(session, host)
    reasons: list[Reason] = []
    warm_up: Trial | None = None
    trials: list[Trial] = []
    before = first
    if plan.warm_up:
        warm_up = await _load(plan, configuration, session, "warm-up", plan.warm_up, watch)
        before = await _caught_up(session, host, first, warm_up)
        reasons = validity.of_trial(warm_up.answers, wanted, first, before)
    while len(trials) < plan.trials and not reasons:
        trials.append(await _load(plan, configuration, session, len(trials), plan.rounds, watch))
        after = await _caught_up(session, host, before, trials[-1])
        reasons = validity.of_trial(trials[-1].answers, wanted, before, after)
        before = after
    if why := await healthy(session.seen.server):
        reasons = validity.merged([*reasons, Reason("unhealthy", why)])
    if not reasons:
        reasons = validity.same_server(first, before)
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "key": configuration.key,
        "status": INVALID if reasons else VALID,
        "configuration": asdict(configuration),
        "plan": plan.name,
        "plan_digest": plan.digest,
        "reasons": [dict(asdict(reason), finding=reason.finding, text=str(reason)) for reason in reasons],
        "flags": validity.flags(trials, before.known),
        "started": started,
        "finished": time.time(),
        "target": _told(session),
        "server": {"before": dict(first.identity), "after": dict(before.identity)},
        "host": dict(snapshot),
        "versions": {"hosttune": __version__, "python": platform.python_version(), "h11": version("h11")},
        "seed": session.seed,
        "warm_up": _plain(warm_up) if warm_up else None,
        "trials": [_plain(t) for t in trials],
    }
    if not reasons:
        result["figures"] = figures.of_trials(trials)
    return result


async def _load(
    plan: Plan, configuration: Configuration, session: Session, name: object, rounds: int, watch: Watch
) -> Trial:
    text = session.texts[configuration.prompt].text

    def question(stream: int, n: int) -> Question:
        content = prompt.numbered(text, session.seed, configuration.key, name, stream, n)
        return Question(session.seen.model, content, configuration.max_tokens, session.extra)

    return await trial(session.seen.server, question, configuration.concurrency, rounds, plan.timeout, watch.answered)


async def _settled(session: Session, host: Host) -> State:
    """The server once its counter stands still: a last token of what came before may be counted late."""
    found = await state(session.target, session.seen, host)
    for pause in READ_AGAIN:
        if found.generated is None:
            break
        await asyncio.sleep(pause)
        earlier, found = found, await state(session.target, session.seen, host, found)
        if earlier.generated == found.generated:
            break
    return found


async def _caught_up(session: Session, host: Host, before: State, done: Trial) -> State:
    """The server after a trial, once its counter has all tokens that were answered (engines count a little later)."""
    made = sum((answer.usage or {}).get("completion") or 0 for answer in done.answers)
    for pause in (*READ_AGAIN, 0):
        found = await state(session.target, session.seen, host, before)
        if found.generated is None or before.generated is None:
            break
        if not 0 <= found.generated - before.generated < made:  # below 0: another process counts now
            break
        await asyncio.sleep(pause)
    return found


def _told(session: Session) -> dict[str, Any]:
    return {
        "url": session.seen.server.url,
        "model": session.seen.model,
        "engine": {**session.seen.facts, **session.target.engine},
        "left_out": list(session.left_out),
        "prompt_tokens": dict(session.measured),
    }


def _plain(found: Trial) -> dict[str, Any]:
    plain = asdict(replace(found, answers=()))
    plain["answers"] = [_rounded(asdict(answer)) for answer in found.answers]
    return plain


def _rounded(plain: dict[str, Any]) -> dict[str, Any]:
    """Times to the microsecond: a result of 2048 tokens and 32 streams stays at a few megabytes."""
    out = {key: round(value, 6) if isinstance(value, float) else value for key, value in plain.items()}
    out["pieces"] = [round(when, 6) for when in plain["pieces"]]
    return out
