# SPDX-License-Identifier: Apache-2.0
"""Which results may stand beside each other. A ratio of figures from different circumstances is no speed-up.

A campaign that had measured its baseline twice, at 26.4 and at 37.6 tokens/s, could claim 6.5 times or 4.6 times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .plan import Plan
from .results import VALID
from .statistics import Ratio, Summary, ratio

PROMPT_SLACK = 8
"""Tokens by which two prompts may differ: numbers in front of them are cut into tokens differently."""


@dataclass(frozen=True)
class Row:
    """One configuration against the same one of the baseline. ratio is None for a single trial."""

    prompt: str
    max_tokens: int
    concurrency: int
    value: Summary
    baseline: Summary
    ratio: Ratio | None


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline: rows, or what differs and forbids them."""

    arm: str
    baseline: str
    rows: tuple[Row, ...]
    differs: tuple[str, ...]
    missing: int


def circumstances(result: Mapping[str, Any]) -> dict[str, str]:
    """All that must be equal: {"host: kernel": "6.12", "engine: tp": "4", "model": ..}."""
    out = {"host: " + key: str(value) for key, value in (result["host"].get("stable") or {}).items()}
    out.update({"engine: " + key: str(value) for key, value in result["target"]["engine"].items()})
    out["model"] = str(result["target"]["model"])
    return out


def differences(a: Mapping[str, str], b: Mapping[str, str], vary: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
    """{what: (in a, in b)} of circumstances. vary: engine facts that arms may differ in."""
    keys = [key for key in dict.fromkeys([*a, *b]) if key not in ["engine: " + name for name in vary]]
    return {key: (a.get(key, ""), b.get(key, "")) for key in keys if a.get(key, "") != b.get(key, "")}


def compare(plan: Plan, results: Mapping[str, Mapping[str, Any]]) -> list[Comparison]:
    """Every other arm against the plan's baseline; none without one. results: {key: result}."""
    if not plan.baseline:
        return []
    return [_one(plan, arm, results) for arm in plan.arms if arm != plan.baseline]


def _one(plan: Plan, arm: str, results: Mapping[str, Mapping[str, Any]]) -> Comparison:
    rows, missing, differs = [], 0, dict[str, tuple[str, str]]()
    for configuration in plan.configurations:
        if configuration.arm != arm:
            continue
        mine = results.get(configuration.key)
        base = results.get(configuration.of_arm(plan.baseline).key)
        if not mine or not base or mine["status"] != VALID or base["status"] != VALID:
            missing += 1
            continue
        differs.update(differences(circumstances(base), circumstances(mine), plan.vary))
        differs.update(_prompts(base, mine))
        value, other = Summary(**mine["figures"]["output"]), Summary(**base["figures"]["output"])
        row = (configuration.prompt, configuration.max_tokens, configuration.concurrency)
        rows.append(Row(*row, value, other, ratio(value, other)))
    said = tuple(
        "%s is %s for %s and %s for %s" % (key, a or "not told", plan.baseline, b or "not told", arm)
        for key, (a, b) in differs.items()
    )
    return Comparison(arm, plan.baseline, () if said else tuple(rows), said, missing)


def _prompts(base: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Prompts of other lengths are other prompts (another tokenizer, another template)."""
    a, b = base["figures"]["prompt_tokens"], mine["figures"]["prompt_tokens"]
    if abs(max(a) - max(b)) <= PROMPT_SLACK and abs(min(a) - min(b)) <= PROMPT_SLACK:
        return {}
    return {"length of prompt %s" % mine["configuration"]["prompt"]: (_span(a), _span(b))}


def _span(tokens: Sequence[int]) -> str:
    return "%d tokens" % tokens[0] if len(tokens) == 1 else "%d to %d tokens" % (min(tokens), max(tokens))


def groups(results: Sequence[Mapping[str, Any]]) -> list[tuple[dict[str, str], list[str]]]:
    """Results of equal circumstances together: [(circumstances, keys)], in the order of their first result."""
    out: list[tuple[dict[str, str], list[str]]] = []
    for result in sorted(results, key=lambda r: float(r["started"])):
        mine = circumstances(result)
        for known, keys in out:
            if known == mine:
                keys.append(result["key"])
                break
        else:
            out.append((mine, [result["key"]]))
    return out
