# SPDX-License-Identifier: Apache-2.0
"""What is told of a change that was not made, or not wholly: what happened, why that is likely, and one command."""

from __future__ import annotations

from typing import Mapping, Optional

from .. import journal
from ..catalogue import finding
from ..door.host import Host, Ran, errname
from ..model import ERROR, FAIL, LOOK, Finding, Hint, Knob, Refused, Step


class Unclosed(Exception):
    """The change is made, and what comes after it failed: the read-back, or the journal's last word."""

    def __init__(self, what: str, e: OSError) -> None:
        self.what, self.error = what, e
        super().__init__(what)


def unclosed(step: Step, e: Unclosed) -> Finding:
    """A change that stands, and that the next run has to settle."""
    why = "%s%s" % (errname(e.error), " (%s)" % e.error.filename if e.error.filename else "")
    return finding(
        "HT906",
        ERROR,
        step.target,
        "was changed, but %s: %s; the next run settles it" % (e.what, why),
        hint=_hint(e.error, step),
    )


_WAYS_OUT = {
    "EACCES": "run it as root; on Proxmox VE EACCES under /etc/pve also means: no quorum (pvecm status)",
    "EPERM": "run it as root",
    "EROFS": "the file system is read-only: is this a container?",
    "ENOSPC": "df -h %s  # free space on that file system",
    "EDQUOT": "df -h %s  # free space on that file system",
    "EIO": "systemctl status pve-cluster",
}
PACKAGES = {"setpci": "pciutils"}
_PROSE = ("EACCES", "EPERM", "EROFS")
"""Of these the way out is no command: in a hint, which people paste, it stands behind a `#`."""


def way_out(e: OSError) -> str:
    """What helps against an error of this machine, "" when nothing is known."""
    text = _WAYS_OUT.get(errname(e), "")
    return text % (e.filename or journal.STATE) if "%s" in text else text


def _hint(e: OSError, step: Step) -> Hint:
    text = way_out(e)
    return Hint(("# " if errname(e) in _PROSE else "") + text, "host") if text else _explain(step)


def _explain(step: Step) -> Hint:
    return Hint("hosttune explain " + step.knob, "host", action=LOOK)


def failed(host: Host, step: Step, e: Exception, knobs: Mapping[str, Knob]) -> Finding:
    """A change that was not made. e: an OSError, or Refused with its own way out."""
    if isinstance(e, OSError):
        text = "%s: %s%s" % (errname(e), e.strerror, " (%s)" % e.filename if e.filename else "")
        hint, likely = _hint(e, step), _likely(step, knobs)
        if not way_out(e) or errname(e) == "EPERM" and host.who().uid == 0:
            text, hint = text + likely, _explain(step)
    else:
        text, command = getattr(e, "what", str(e)), getattr(e, "way_out", "")
        text = text if command else text + _likely(step, knobs)
        hint = Hint(command, "host") if command else _explain(step)
    values = {} if step.effect == "replace" else {"have": step.before or "", "want": step.after or ""}
    return finding(step.knob, FAIL, step.subject, "%s was not written: %s" % (step.target, text), hint=hint, **values)


def program_failed(step: Step, ran: Ran) -> Refused:
    """A program that exited with another code than 0: what it says, each line once."""
    program, said = step.argv[0], "; ".join(dict.fromkeys((ran.err or ran.out).strip().splitlines()))
    install = "apt install " + PACKAGES[program] if ran.rc == 127 and program in PACKAGES else ""
    return Refused("%s exited %d: %s" % (program, ran.rc, said), step.target, install)


def _likely(step: Step, knobs: Mapping[str, Knob]) -> str:
    """Why a value is not taken: the last words of what is told."""
    knob = knobs.get(step.knob)
    return "; likely: " + (knob.if_ignored if knob and knob.if_ignored else "the device or the kernel ignores this value")


def short(value: Optional[str]) -> str:
    """A value, or the length of a text."""
    return "nothing" if value is None else value if len(value) < 40 else "%d characters" % len(value)
