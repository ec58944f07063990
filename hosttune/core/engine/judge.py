# SPDX-License-Identifier: Apache-2.0
"""A setting judged: what each of its subjects is, whether that will do, and the one step that would mend it.

check    read a knob, compare with what is wanted -> findings
plan     the findings, and one Step for each that failed and may be mended
"""

from __future__ import annotations

import re
from typing import List, Mapping, Optional, Tuple

from ..catalogue import finding
from ..door.host import Host, Unrecorded, errname
from ..model import ERROR, FAIL, LOOK, OK, ON, OPT_IN, SKIP, WARN, Finding, Hint, Knob, Reading, Refused, Step

_LOOKS = re.compile(r"(?:cat|grep|journalctl|lspci|modinfo|nvidia-smi -q|hosttune (?:check|explain))\b[^&;#]*(?:#|$)")
"""Ways out of a refusal that mend nothing: a person looks, and decides."""


def check(knob: Knob, host: Host, want: str = "") -> List[Finding]:
    """One finding a subject. An exception in the knob is status "error": could not tell is never ok."""
    return [f for f, _ in _judge(knob, host, want)]


def plan(knob: Knob, host: Host, want: str = "") -> Tuple[List[Finding], List[Step]]:
    """The findings, and one Step for each that can be mended. Writes nothing."""
    judged = _judge(knob, host, want)
    return [f for f, _ in judged], [s for _, s in judged if s]


def _judge(knob: Knob, host: Host, want: str) -> List[Tuple[Finding, Optional[Step]]]:
    asked, want = bool(want), want or knob.want
    try:
        reason = knob.skip(host)
        if reason:
            return [(finding(knob.id, SKIP, knob.name, reason, want=want), None)]
        readings: Mapping[str, Reading] = knob.read(host)
    except (OSError, Unrecorded) as e:
        return [(_could_not_tell(knob, want, _why(knob, e)), None)]
    return [_judge_one(knob, host, subject, reading, want, asked) for subject, reading in readings.items()]


def _could_not_tell(knob: Knob, want: str, why: str, subject: str = "") -> Finding:
    return finding(knob.id, ERROR, subject or knob.name, "could not be read: " + why, want=want)


def _why(knob: Knob, e: Exception) -> str:
    return "%s: %s" % (e.filename or knob.name, errname(e)) if isinstance(e, OSError) else str(e)


def _judge_one(
    knob: Knob, host: Host, subject: str, reading: Reading, want: str, asked: bool
) -> Tuple[Finding, Optional[Step]]:
    """asked: somebody wants this value, in a profile or by name; else it is hosttune's recommendation (model.RECOMMENDED)."""
    have, seen = reading.have, tuple(where for where in (reading.where,) if where)
    if reading.error:
        return finding(knob.id, ERROR, subject, reading.error, want=want, evidence=seen), None
    if reading.skip:
        return finding(knob.id, SKIP, subject, reading.skip, have=have, want=want, evidence=seen), None
    if not want or knob.meets(have, want):
        return finding(knob.id, OK, subject, "%s is %s" % (knob.title, have), have=have, want=want, evidence=seen), None
    hint = Hint("hosttune apply " + knob.name, "host", "nothing is restarted", "apply")
    if knob.recommend == OPT_IN and not asked:
        summary = "%s is %s; %s is opt-in" % (knob.title, have, want)
        return finding(knob.id, SKIP, subject, summary, have=have, want=want, hint=hint, evidence=seen), None
    summary, step = "%s is %s, want %s" % (knob.title, have, want), None
    try:
        step = knob.step(host, subject, have, want)
    except (OSError, Unrecorded) as e:  # what stands in the way could not be looked at: then nothing is written
        return _could_not_tell(knob, want, _why(knob, e), subject), None
    except Refused as e:
        summary += "; not changed: %s" % e.what
        hint = Hint(command=e.way_out, where=str(e.where), action=LOOK if _LOOKS.match(e.way_out) else "reconfigure")
        seen += (e.where,) if e.where and e.where not in seen else ()
    status = FAIL if asked or knob.recommend == ON or knob.grave else WARN
    found = finding(knob.id, status, subject, summary, have=have, want=want, hint=hint, evidence=seen)
    return found, step if status == FAIL else None
