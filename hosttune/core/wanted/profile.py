# SPDX-License-Identifier: Apache-2.0
"""What is wanted: the one variable `hosttune:` of an inventory, /etc/hosttune/profile.json on a target.

`validate` takes the plain dict and gives a Profile, or refuses with the place, what stands there and what may stand there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from ..model import Knob, Refused
from .keys import PROFILE
from .kinds import checked, did_you_mean
from .places import line_of
from .shipped import LEAVE, SHIPPED, resolve

PATH = "/etc/hosttune/profile.json"


@dataclass(frozen=True)
class Container:
    """How one container is wanted."""

    gpus: str = "all"
    gpu: str = "required"
    form: str = "keep"
    restart: str = "never"
    caps: bool = False
    dri: bool = False
    cpus: str = "any"


@dataclass(frozen=True)
class Ignore:
    """A finding that is known: counted, shown, without effect on the exit code."""

    id: str
    reason: str
    subject: str = ""
    until: str = ""


@dataclass(frozen=True)
class Profile:
    """A validated profile. knobs: None when it says nothing of them, {} when it wants none (report-only).

    sources: for each knob where its want stands: "site.yml:7", or "site.yml:6 (conservative)" for an inherited one.
    models, engines and bench stay plain: their rooms read them. plain: the whole of it as it was given.
    """

    mode: str = "plan"
    knobs: Optional[Mapping[str, str]] = None
    sources: Mapping[str, str] = field(default_factory=dict)
    containers: Mapping[str, Container] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    engines: Mapping[str, Any] = field(default_factory=dict)
    bench: Mapping[str, Any] = field(default_factory=dict)
    ignore: Tuple[Ignore, ...] = ()
    plain: Mapping[str, Any] = field(default_factory=dict)


def validate(
    data: Any, where: str = "hosttune", knobs: Mapping[str, Knob] = {}, lines: Mapping[str, int] = {}
) -> Profile:
    """A Profile of plain data. `where` begins every place in an error (a file, or the variable's name).

    knobs: those that exist; without them names and wants of knobs are not judged. lines: the line of each place
    (places.json_lines), where the data is a file's: an error then names "site.yml:7", and the key. Refused for an unknown
    key, a wrong type or an impossible value.
    """
    try:
        return _validate(data, where, knobs, lines)
    except Refused as e:
        key = e.where[len(where) :].lstrip(".")
        line = line_of(lines, key)
        if not line:
            raise
        raise Refused("%s: %s" % (key, e.what), "%s:%d" % (where, line), e.way_out) from None


def _validate(data: Any, where: str, known: Mapping[str, Knob], lines: Mapping[str, int]) -> Profile:
    plain = checked(PROFILE, data, where)
    wants, sources = _wants(plain.get("knobs", {}), where, known, lines)
    return Profile(
        mode=plain["mode"],
        knobs=wants if "knobs" in plain else None,
        sources=sources,
        containers={name: Container(**c) for name, c in plain.get("containers", {}).items()},
        models=plain.get("models", {}),
        engines=plain.get("engines", {}),
        bench=plain.get("bench", {}),
        ignore=tuple(Ignore(**i) for i in plain.get("ignore", ())),
        plain=dict(data or {}),
    )


def _wants(
    given: Mapping[str, str], where: str, known: Mapping[str, Knob], lines: Mapping[str, int]
) -> Tuple[Dict[str, str], Dict[str, str]]:
    """What each knob shall be, and where that stands: the profile's own keys over those of the shipped one it inherits."""
    named = given.get("profile")
    if named is not None and named not in SHIPPED:
        what = "no such profile: %s (known: %s)" % (named, ", ".join(sorted(SHIPPED)))
        raise Refused(what, where + ".knobs.profile", did_you_mean(named, SHIPPED))
    for name in given:
        if known and name not in known and name != "profile":
            near = did_you_mean(name, known) or "hosttune list names all of them"
            raise Refused("no such knob: %s" % name, "%s.knobs.%s" % (where, name), near)
        if not given[name]:
            raise Refused("an empty text stands here", "%s.knobs.%s" % (where, name), "`%s` takes a setting out" % LEAVE)
    inherited = resolve(named) if named else {}
    wants = {name: want for name, (want, _) in inherited.items()}
    sources = {name: "%s (%s)" % (_place(where, "knobs.profile", lines), by) for name, (_, by) in inherited.items()}
    for name, want in given.items():
        if name != "profile":
            wants[name], sources[name] = want, _place(where, "knobs." + name, lines)
    left = [name for name, want in wants.items() if want == LEAVE]
    for name in left:
        del wants[name], sources[name]
    for name, knob in known.items():
        problem = knob.check(wants[name]) if name in wants else ""
        if problem:
            raise Refused(problem, "%s.knobs.%s" % (where, name))
    return wants, sources


def _place(where: str, key: str, lines: Mapping[str, int]) -> str:
    line = line_of(lines, key)
    return "%s:%d" % (where, line) if line else "%s.%s" % (where, key)
