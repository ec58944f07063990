# SPDX-License-Identifier: Apache-2.0
"""An engine's declaration as the files that run it: pure, so that render, diff, check and start all speak of the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from ..core.units import MARK
from ..data import template
from . import command, nccl, quote
from .declare import SECRET, Engine
from .devices import Devices

CREDENTIALS = "%d/"
"""systemd's name for the folder of a unit's credentials (systemd 250 or newer)."""


@dataclass(frozen=True)
class Rendered:
    """unit: its name; text: the unit file; mark: digest of all of it, which the running process carries in its environment.

    files {path: text}: all that must lie on the machine, the unit itself last. argv and environment: what the process is to
    have, with "secret:NAME" where systemd puts a path of its own.
    """

    unit: str
    path: str
    text: str
    mark: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Variable:
    """One environment variable, with what a reader of the unit file should know of it."""

    name: str
    value: str
    comments: tuple[str, ...] = ()


def render(engine: Engine, seen: Devices) -> Rendered:
    """The files. Raises Refused for what a unit file cannot hold, with its place in the profile."""
    where = "engines." + engine.name
    variables = environment(engine, seen)
    argv = command.argv(engine)
    extra = {command.LAUNCHER: _launcher()} if engine.kind == "xllamacpp" else {}
    context = _context(engine, seen, argv, where)
    draft = _render(context, variables, where)
    mark = hashlib.sha256("\0".join([draft, *extra.values()]).encode()).hexdigest()[:16]
    variables = [*variables, Variable(MARK, mark, ("by this the running process tells what it was started from",))]
    text = _render(context, variables, where)
    path = engine.path
    return Rendered(
        engine.unit, path, text, mark, tuple(argv), {v.name: v.value for v in variables}, {**extra, path: text}
    )


def environment(engine: Engine, seen: Devices) -> list[Variable]:
    """The variables of the unit in order: devices, the named NCCL set, then what `env` lays over both."""
    made: dict[str, Variable] = {}
    if engine.gpus != "none":
        made["CUDA_DEVICE_ORDER"] = Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", seen.told)
    if seen.visible is not None:
        made["CUDA_VISIBLE_DEVICES"] = Variable("CUDA_VISIBLE_DEVICES", seen.visible)
    preset = nccl.preset(engine.nccl, "engines.%s.nccl" % engine.name)
    for n, (name, value, note) in enumerate(preset):
        head = (
            "NCCL variables of the set %s; the manual calls them debugging aids, so measure again with a new NCCL"
            % engine.nccl,
        )
        made[name] = Variable(name, value, (*(head if n == 0 else ()), *(("%s: %s" % (name, note),) if note else ())))
    for name, value in engine.env.items():
        made.pop(name, None)
        made[name] = Variable(name, value)
    return list(made.values())


def _context(engine: Engine, seen: Devices, argv: list[str], where: str) -> dict[str, Any]:
    folder = engine.model_path.rpartition("/")[0] if engine.kind in ("llama.cpp", "xllamacpp") else engine.model_path
    return {
        "name": engine.name,
        "unit": engine.unit,
        "description": quote.line("%s serving %s (hosttune)" % (engine.kind, engine.model), where + ".model"),
        "model_path": quote.path(engine.model_path, where + ".model"),
        "model_folder": '"%s"' % quote.path(folder or "/", where + ".model").replace("\\", "\\\\").replace('"', '\\"'),
        "user": engine.user,
        "command": _lines(argv, where),
        "secrets": ["%s:%s" % (k, quote.path(v, "%s.secrets.%s" % (where, k))) for k, v in engine.secrets.items()],
        "restart": {"never": "no"}.get(engine.restart, engine.restart),
        "memlock": engine.memlock,
        "node": seen.node,
        "cpus": seen.cpus.replace(",", " "),
    }


def _render(context: Mapping[str, Any], variables: list[Variable], where: str) -> str:
    import jinja2

    lines = [
        {"comments": [quote.line(c, where) for c in v.comments],
         "text": _assignment(v, where + ".env")}
        for v in variables
    ]  # fmt: skip
    made = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    return made.from_string(template("engine.service.j2")).render(**context, environment=lines)


def _assignment(v: Variable, where: str) -> str:
    if v.value.startswith(SECRET):
        return '"%s=%s%s"' % (v.name, CREDENTIALS, v.value[len(SECRET) :])  # declare.py lets plain names through only
    return quote.environment(v.name, v.value, where)


def _word(text: str, where: str) -> str:
    return '"%s%s"' % (CREDENTIALS, text[len(SECRET) :]) if text.startswith(SECRET) else quote.word(text, where)


def _lines(argv: list[str], where: str) -> str:
    """ExecStart= with an option and its value on each line. A quoted word never ends in a backslash, so lines may continue."""
    text = quote.command(argv[:1], where)
    for arg in argv[1:]:
        text += (" \\\n  " if arg.startswith("-") else " ") + _word(arg, where + ".args")
    return text


def _launcher() -> str:
    return (files(__package__) / "xllamacpp_server.py").read_text(encoding="utf-8")
