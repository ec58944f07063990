# SPDX-License-Identifier: Apache-2.0
"""What every meaning of a code says: one call, one code, what was seen besides, what to do."""

from __future__ import annotations

import shlex
from typing import Any, Callable, Iterable, Optional

from ..catalogue import finding
from ..doctor.survey import Machine
from ..model import FAIL, FITS, PROVED, Finding, Hint

OWN = "the shell or unit that starts the program"
ANEW = "the program has to start anew"
Cause = Callable[[Machine, str, int, str], Optional[Finding]]
"""(machine, call, code, where the host's commands run) -> its meaning here, None if it is another."""


def cause(
    id: str,
    machine: Machine,
    subject: str,
    summary: str,
    have: str,
    want: str,
    evidence: Iterable[str],
    hint: Hint,
    decide: str = "",
) -> Finding:
    """A failure: proved, or fits with the command that decides. where: of whoever has to act."""
    return finding(
        id,
        FAIL,
        subject,
        summary,
        have=have,
        want=want,
        proof=FITS if decide else PROVED,
        decide=decide,
        evidence=tuple(evidence)[:3],
        hint=hint,
        machine=machine.key,
    )


def said(name: str, code: Any) -> str:
    """A call and its code, as evidence."""
    return "%s returned %s" % (name, code)


def without(machine: Machine, folder: str) -> Hint:
    """What keeps the loader out of a folder: the variable that leads there, or the list of ldconfig, which a person edits."""
    named = machine.env.get("LD_LIBRARY_PATH", "").split(":")
    if not any(folder == entry.rstrip("/") for entry in named):
        listed = "grep -rn %s /etc/ld.so.conf /etc/ld.so.conf.d" % shlex.quote(folder)
        return Hint(listed + "   # take that line out, then ldconfig", OWN, ANEW, "look")
    rest = ":".join(entry for entry in named if entry.rstrip("/") != folder)
    return Hint("export LD_LIBRARY_PATH=%s   # without %s" % (shlex.quote(rest), folder), OWN, ANEW, "reconfigure")
