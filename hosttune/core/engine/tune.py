# SPDX-License-Identifier: Apache-2.0
"""The settings that are wanted: which, and all that `hosttune apply` does with them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from ..door.glance import Glance
from ..door.host import Host
from ..model import Finding, Knob, Refused, Step
from .apply import made_by
from .judge import check, plan


def wants_of(names: Sequence[str], declared: Optional[Mapping[str, str]], knobs: Mapping[str, Knob]) -> Dict[str, str]:
    """Which knobs, with which want: those named, else those declared, else (declared: None, nothing is said) all of them as
    recommended, which is the want "": nobody asked for them, and those whose reading starts a program are left out. To name a
    knob is to ask for it. Refused for an unknown name or an impossible want.
    """
    said = declared or {}
    for name in list(names) + list(said):
        if name not in knobs:
            near = [knob.name for knob in knobs.values() if knob.id == name.upper()] or difflib.get_close_matches(name, knobs, 1)
            raise Refused("no such knob: %s" % name, way_out="did you mean %s?" % near[0] if near else "hosttune list")
    everything = [name for name, knob in knobs.items() if not knob.starts]
    wants = {name: said.get(name, "") for name in (everything if declared is None else said)}
    if names:
        wants = {name: said.get(name) or knobs[name].want for name in names}
    for name, want in wants.items():
        problem = knobs[name].check(want) if want else ""
        if problem:
            raise Refused(problem, "knob " + name)
    return wants


@dataclass(frozen=True)
class Tuned:
    """What tune saw and did. `findings` are those after the change; `steps` those that it has made itself (another run may have
    been faster), or in a dry run those to do."""

    findings: List[Finding]
    steps: List[Step]
    changed: bool


def tune(
    host: Host, wants: Mapping[str, str], knobs: Mapping[str, Knob], by_id: Mapping[str, Knob], dry_run: bool
) -> Tuned:
    """Check, plan and (unless dry_run) apply the wanted knobs: what `hosttune apply` and the Ansible module both do."""
    look = Glance(host)
    planned = [plan(knobs[name], look, want) for name, want in wants.items()]
    steps = [step for _, more in planned for step in more]
    if dry_run or not steps:
        return Tuned([f for found, _ in planned for f in found], steps, bool(steps))
    told, made = made_by(host, steps, by_id)
    undone = {(f.id, f.subject) for f in told}
    look = Glance(host)
    after = [
        f for name, want in wants.items() for f in check(knobs[name], look, want) if (f.id, f.subject) not in undone
    ]
    return Tuned(told + after, made, bool(made))
