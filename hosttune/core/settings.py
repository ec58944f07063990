# SPDX-License-Identifier: Apache-2.0
"""What a person wants to know of a setting beside its value: why, who wants it, how sure that is, what being wrong costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping

from . import engine
from .catalogue import finding
from .model import OPT_IN, REPORT, SKIP, Finding, Hint, Knob
from .wanted.profile import Profile

_RECOMMENDED = {OPT_IN: "opt-in: nobody asked for it", REPORT: "only reported"}


@dataclass(frozen=True)
class Setting:
    """One knob. source: where the wanted value comes from ("site.yml:6 (conservative)", "recommended"); evidence: how sure it
    is; cost: what it costs when it is wrong; persists: where it is kept over a reboot."""

    name: str
    title: str
    want: str
    why: str
    source: str
    evidence: str
    cost: str
    persists: str
    recommend: str


def wants(
    profile: Profile, knobs: Mapping[str, Knob], names: "tuple[str, ...]" = (), driver: bool = False
) -> Dict[str, str]:
    """What is looked at, and against which want ("": as recommended, which nobody asked for): those named, else what the
    profile declares and, beside it, what is only ever reported; else everything. driver: also what the driver alone knows."""
    declared = profile.knobs or None
    found = engine.wants_of(names, declared, knobs)
    rest = {
        name: ""
        for name, knob in knobs.items()
        if not names and (driver if knob.starts else declared is not None and knob.recommend == REPORT)
    }
    return {name: {**rest, **found}[name] for name in knobs if name in found or name in rest}


def unasked(knobs: Mapping[str, Knob], wanted: Mapping[str, str]) -> List[Finding]:
    """A skip for each setting that the driver alone knows and that was not asked."""
    why = "only %s can tell, and it may load the driver and make its nodes"
    hint = Hint("hosttune check --nvml", "host", "may load the driver")
    return [
        finding(knob.id, SKIP, knob.name, why % knob.starts, hint=hint)
        for name, knob in knobs.items()
        if knob.starts and name not in wanted
    ]


def settings(profile: Profile, knobs: Mapping[str, Knob], wanted: Mapping[str, str]) -> Dict[str, Setting]:
    """By finding id."""
    return {knobs[name].id: _setting(profile, knobs[name], want) for name, want in wanted.items()}


def _setting(profile: Profile, knob: Knob, want: str) -> Setting:
    said = profile.sources.get(knob.name, "")
    source = said or ("asked for by name" if want else _RECOMMENDED.get(knob.recommend, "recommended"))
    return Setting(
        knob.name,
        knob.title,
        want or knob.want,
        knob.why,
        source,
        knob.evidence,
        knob.cost,
        knob.persists,
        knob.recommend,
    )
