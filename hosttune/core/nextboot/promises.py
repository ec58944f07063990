# SPDX-License-Identifier: Apache-2.0
"""What the profile declares, and whether anything brings it back after the boot: models (HT710) and settings (HT711)."""

from __future__ import annotations

from typing import List, Sequence

from .. import engine
from ..catalogue import finding
from ..door.host import Host, errname, list_or_empty
from ..knobs.boot_units import KNOBS_UNIT, NAME, STAGE_UNIT, UNITS
from ..model import FAIL, OK, PROVED, WARN, Finding, Hint, Refused
from ..stage import declared, source, whole
from ..unattended import bound
from ..wanted.profile import PATH, Profile
from . import remedy

WANTS = UNITS + "/multi-user.target.wants"


def models(host: Host, profile: Profile, caches: Sequence[str]) -> List[Finding]:
    """HT710 for each declared model: its source is whole on this machine, and a unit stages it at boot."""
    names = list_or_empty(host, WANTS) if remedy.acts(profile) else []
    found = []
    for name, spec in declared.sources(profile).items():
        if source.ssh_of(spec) and STAGE_UNIT in names:
            words = "it comes from another machine, which has to answer when this one boots"
            found.append(finding("HT710", WARN, name, words, have=spec, want="whole on a disk of this machine"))
            continue
        try:
            read = source.read(host, spec, declared.caches_of(profile, name, caches))
            whole.refuse_unless_whole(host, read)
        except (Refused, OSError) as e:
            why = "%s: %s" % (e.where, e.what) if isinstance(e, Refused) else "%s: %s" % (e.filename, errname(e))
            found.append(
                finding(
                    "HT710",
                    FAIL,
                    name,
                    "it is in memory only until the reboot: its source is not whole here",
                    have="not whole",
                    want="whole on a disk",
                    proof=PROVED,
                    evidence=(why,),
                    hint=Hint(e.way_out, "host") if isinstance(e, Refused) else Hint("ls -lL %s" % spec, "host", "", "look"),
                )
            )
            continue
        if STAGE_UNIT not in names:
            found.append(
                finding(
                    "HT710",
                    WARN,
                    name,
                    "its source is whole, but nothing stages it at boot",
                    have="by hand",
                    want=STAGE_UNIT,
                    proof=PROVED,
                    evidence=("%s: no %s" % (WANTS, STAGE_UNIT),),
                    hint=remedy.boot_units(host, profile),
                )
            )
        else:
            found.append(finding("HT710", OK, name, "%s stages it at boot from %s" % (STAGE_UNIT, read.folder)))
    return found


def settings(host: Host, profile: Profile) -> List[Finding]:
    """HT711 for each declared setting: by its own file, or by hosttune's boot unit, else it falls back."""
    by_name, _ = bound.with_profile(profile)
    kept = KNOBS_UNIT in list_or_empty(host, WANTS) and remedy.has_profile(host) and remedy.acts(profile)
    found = remedy.unjudged(profile)
    for name, want in engine.wants_of((), profile.knobs or {}, by_name).items():
        knob = by_name[name]
        if name == NAME or knob.skip(host):
            continue
        have = knob.read(host).get("boot")
        if have is not None and have.have == want:
            found.append(
                finding("HT711", OK, name, "%s is set at boot by its own file" % knob.title, have=have.have, want=want)
            )
        elif kept:
            found.append(finding("HT711", OK, name, "%s sets it at boot" % KNOBS_UNIT, want=want))
        else:
            found.append(
                finding(
                    "HT711",
                    WARN,
                    name,
                    "%s falls back to the machine's default at the next boot" % knob.title,
                    have="not kept",
                    want=want,
                    proof=PROVED,
                    hint=remedy.boot_units(host, profile),
                    evidence=("%s or %s: not there" % (WANTS + "/" + KNOBS_UNIT, PATH),),
                )
            )
    return found
