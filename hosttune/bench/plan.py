# SPDX-License-Identifier: Apache-2.0
"""What is to be measured: a YAML file, read once, checked whole, and known by the digest of its meaning.

name: smoke
prompts:
  fib: {text: "Write a function ..."}
  long: {file: corpus.txt, tokens: 30000}     # repeated and cut to 30,000 tokens, as the server counts them
max_tokens: [128, 256]
concurrency: [1, 4]
trials: 3
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from ..core.model import Refused
from .marked_yaml import Marked, parse

ATTACH = "attach"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}\Z")  # part of file names, where _ separates


@dataclass(frozen=True)
class Prompt:
    """A text, and how many tokens it is meant to be (None: as many as it is)."""

    text: str
    tokens: int | None = None


@dataclass(frozen=True)
class Configuration:
    """One row of the plan: what is asked of which arm, and by how many at once."""

    arm: str
    prompt: str
    max_tokens: int
    concurrency: int

    @property
    def key(self) -> str:
        """Its file name without the ending, unique in a plan."""
        return "%s_%s_t%d_c%d" % (self.arm, self.prompt, self.max_tokens, self.concurrency)

    def of_arm(self, arm: str) -> Configuration:
        """The same asked of another arm."""
        return replace(self, arm=arm)

    def __str__(self) -> str:
        many = "1 request" if self.concurrency == 1 else "%d requests" % self.concurrency
        return "%s: %s, %d tokens, %s at once" % (self.arm, self.prompt, self.max_tokens, many)


@dataclass(frozen=True)
class Plan:
    """A checked plan. arms: {name: engine}, where the engine ATTACH is a server that runs already.

    rounds: requests that each stream sends one after another in a trial. warm_up: rounds before the first trial, thrown
    away. timeout: seconds for one request. vary: engine facts in which arms may differ and still be compared.
    ignore_eos: each answer must be exactly max_tokens long.
    """

    name: str
    prompts: Mapping[str, Prompt]
    max_tokens: tuple[int, ...]
    concurrency: tuple[int, ...] = (1,)
    trials: int = 3
    rounds: int = 1
    warm_up: int = 2
    timeout: float = 600
    ignore_eos: bool = True
    arms: Mapping[str, str] = field(default_factory=lambda: {"attached": ATTACH})
    baseline: str = ""
    vary: tuple[str, ...] = ()
    path: str = ""

    @property
    def configurations(self) -> tuple[Configuration, ...]:
        """In the order of measuring: an arm is started once."""
        return tuple(Configuration(*row) for row in product(self.arms, self.prompts, self.max_tokens, self.concurrency))

    def as_dict(self) -> dict[str, Any]:
        """Its meaning as plain data: texts in place of the files that they came from."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("path", "prompts")}
        prompts = {name: {"text": p.text, "tokens": p.tokens} for name, p in self.prompts.items()}
        out: dict[str, Any] = json.loads(json.dumps(dict(plain, prompts=prompts)))
        return out

    @property
    def digest(self) -> str:
        """The same for two files that mean the same; 64 hex digits."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()


def restore(plain: Mapping[str, Any]) -> Plan:
    """The plan that `as_dict` gave."""
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
    given["prompts"] = {name: Prompt(**p) for name, p in plain["prompts"].items()}
    return Plan(**given)


def load(name: str) -> Plan:
    """The plan of a file, or a shipped one by its name. Refused with file, line and key for what is wrong in it."""
    shipped = {f.name.removesuffix(".yml"): f for f in (files("hosttune.data") / "plans").iterdir()}
    if name in shipped:
        return read(shipped[name].read_text(encoding="utf-8"), name + ".yml", None)
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refused("there is no such plan", name, "name a file, or one of: %s" % ", ".join(sorted(shipped)))
    except (OSError, UnicodeDecodeError) as e:
        raise Refused(getattr(e, "strerror", "") or "it is not UTF-8 text", name, "name a readable YAML file")
    return read(text, name, path.parent)


def read(text: str, path: str, folder: Path | None) -> Plan:
    """The plan of a text. `folder` is where its prompt files are; None for a plan that has none."""
    top = parse(text, path)
    known = ("name", "prompts", "max_tokens", "concurrency", "trials", "rounds", "warm_up", "timeout", "ignore_eos")
    top.keys(known + ("streaming", "temperature", "arms", "baseline", "vary"), required=("prompts", "max_tokens"))
    if top.get("streaming", True).value is not True:
        top["streaming"].refuse("only streaming can be measured: without it there is no time to first token")
    if top.get("temperature", 0).value not in (0, 0.0):
        top["temperature"].refuse("only 0 is measured: sampled answers differ from trial to trial")
    arms = _arms(top)
    baseline = top.get("baseline", "")
    if baseline.value and baseline.value not in arms:
        baseline.refuse("no arm is called %s" % baseline.value, "one of: %s" % ", ".join(arms))
    ignore_eos = top.get("ignore_eos", True)
    if not isinstance(ignore_eos.value, bool):
        ignore_eos.refuse("%s stands here, true or false is wanted" % ignore_eos.seen())
    return Plan(
        name=_name(top.get("name", Path(path).stem)),
        prompts=_prompts(top["prompts"], folder),
        max_tokens=_numbers(top["max_tokens"], 1, 1_000_000),
        concurrency=_numbers(top.get("concurrency", [1]), 1, 1024),
        trials=top.get("trials", 3).whole(1, 1000),
        rounds=top.get("rounds", 1).whole(1, 1000),
        warm_up=top.get("warm_up", 2).whole(0, 1000),
        timeout=top.get("timeout", 600).number(0.1, 86400),
        ignore_eos=ignore_eos.value,
        arms=arms,
        baseline=str(baseline.value),
        vary=tuple(item.text() for item in top.get("vary", []).items()),
        path=path,
    )


def _name(node: Marked) -> str:
    name = node.text()
    if not NAME.match(name):
        node.refuse("%r cannot be part of a file name" % name, "letters, digits, - and . only, at most 64")
    return name


def _arms(top: Marked) -> dict[str, str]:
    arms = top.get("arms", {"attached": ATTACH})
    out = {_name(key): value.text() for key, value in arms.pairs()}
    if not out:
        arms.refuse("there is no arm", "leave the key out to attach to a running engine")
    return out


def _prompts(node: Marked, folder: Path | None) -> dict[str, Prompt]:
    out = {}
    for key, value in node.pairs():
        name = _name(key)
        if isinstance(value.value, str):
            value = replace(value, value={"text": value})
        value.keys(("text", "file", "tokens"))
        if ("text" in value) == ("file" in value):
            value.refuse("a prompt has either a text or a file", 'for example %s: {text: "..."}' % name)
        text = value["text"].text() if "text" in value else _file(value["file"], folder)
        if not text.strip():
            value.refuse("the prompt is empty")
        tokens = value["tokens"].whole(1, 10_000_000) if "tokens" in value else None
        out[name] = Prompt(text, tokens)
    if not out:
        node.refuse("there is no prompt")
    return out


def _file(node: Marked, folder: Path | None) -> str:
    path = (folder or Path()) / node.text()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        node.refuse(
            "%s: %s" % (path, getattr(e, "strerror", "") or "not UTF-8 text"), "paths start at the plan's folder"
        )
        raise AssertionError  # refuse raises


def _numbers(node: Marked, low: int, high: int) -> tuple[int, ...]:
    found = [item.whole(low, high) for item in (node.items() if isinstance(node.value, list) else [node])]
    if not found:
        node.refuse("the list is empty")
    if len(set(found)) < len(found):
        node.refuse("a number stands here twice: %s" % ", ".join(map(str, found)))
    return tuple(found)
