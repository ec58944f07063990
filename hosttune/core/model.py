# SPDX-License-Identifier: Apache-2.0
"""The nouns every room shares. Frozen, JSON-able by `as_dict`, and free of any machine access."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

OK, WARN, FAIL, SKIP, ERROR = "ok", "warn", "fail", "skip", "error"
STATUSES = (OK, WARN, FAIL, SKIP, ERROR)
SEVERITIES = ("correctness", "performance", "hygiene", "security")
LOOK = "look"
PROVED, FITS = "proved", "fits"
"""proved: the errno was seen, the numbers agree and the responsible line was read. fits: all that is known agrees."""

ON, OPT_IN, REPORT = "on", "opt-in", "report"
RECOMMENDED = (ON, OPT_IN, REPORT)
"""What hosttune does about a knob that nobody asked for. on: a value that differs is a failure, and apply mends it.
opt-in: it is shown, as a skip; report: a value that differs is a warning. Neither of the two is applied then. Asked for, by
a want in the profile or by its name on the command line, all three are failures that apply mends where `step` can."""


@dataclass(frozen=True)
class Hint:
    """What to run, where, and what it costs. `action` is for machines: apply, restart, reboot, reconfigure, hardware, look, none.

    look: the command mends nothing. It shows what a person decides by, and `costs` is then what follows from what is seen.
    """

    command: str = ""
    where: str = ""
    costs: str = ""
    action: str = "none"

    @property
    def word(self) -> str:
        """What a command is called for a person: fix, or look where nothing is mended by it."""
        return LOOK if self.action == LOOK else "fix"


@dataclass(frozen=True)
class Finding:
    """One judgement of one subject. `have` and `want` are strings as a person reads them.

    `because` holds ids of findings that caused this one (it is then a symptom, and a skip).
    `evidence` is at most three lines: a path, a number, an errno, a file and line.
    `decide` is, for proof == "fits", the command that would decide it.
    """

    id: str
    name: str
    status: str
    severity: str
    subject: str
    summary: str
    have: str = ""
    want: str = ""
    hint: Hint = Hint()
    because: Tuple[str, ...] = ()
    proof: str = ""
    evidence: Tuple[str, ...] = ()
    decide: str = ""
    machine: str = "host"
    ignored: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError("status %r is not one of %s" % (self.status, ", ".join(STATUSES)))


@dataclass(frozen=True)
class Reading:
    """What a knob saw of one subject: a value, or the reason why it does not apply, or why it could not be told.

    where: what decides the value, for the finding's evidence: "/etc/sysctl.d/50-site.conf:3".
    """

    have: str = ""
    skip: str = ""
    error: str = ""
    where: str = ""


@dataclass(frozen=True)
class Step:
    """A change as data: what it touches, what is there, what shall be there.

    effect  replace: `target` is a file, `before`/`after` its whole text (None: no file). Text stands for bytes
                     through surrogateescape, so any file survives.
            poke:    `target` is a /proc or /sys file, the value is written as it is. With a `*` in it: all files of that
                     pattern, which hold one and the same value before and after.
            run:     `argv` makes it so, `undo` takes it back; read back through the knob's own `read`.
            code:    `target` is a file that holds hosttune's own core, `before`/`after` its digest ("sha256:...").
    mode: of a file that is not there yet.
    """

    knob: str
    subject: str
    effect: str
    target: str
    before: Optional[str]
    after: Optional[str]
    argv: Tuple[str, ...] = ()
    undo: Tuple[str, ...] = ()
    lock: str = ""
    mode: int = 0o644

    def as_diff(self) -> Dict[str, str]:
        """The shape that Ansible's --diff prints."""
        if self.effect == "replace":
            before, after = self.before or "", self.after or ""
        else:
            before, after = "%s\n" % self.before, "%s\n" % self.after
        header = self.target if self.effect == "replace" else "%s %s" % (self.target, self.knob)
        return {"before_header": header, "after_header": header, "before": before, "after": after}


@dataclass(frozen=True)
class Action:
    """What writing the old value back cannot undo: a live rule, a restart, a copy. `destroys` names every loss."""

    name: str
    subject: str
    argv: Tuple[str, ...]
    why: str
    destroys: Tuple[str, ...] = ()
    costs: str = ""


class Refused(Exception):
    """hosttune will not do this: what, where, and the way out. Never a traceback for a person."""

    def __init__(self, what: str, where: str = "", way_out: str = "") -> None:
        self.what, self.where, self.way_out = what, where, way_out
        super().__init__(": ".join(part for part in (where, what) if part) + ("\n  fix: " + way_out if way_out else ""))


@dataclass(frozen=True)
class Knob:
    """A setting that hosttune keeps.

    read(host) -> {subject: Reading}; one knob, many subjects (each GPU; now and over a reboot).
    step(host, subject, have, want) -> Step; raises Refused when it must not be written, with the edit to make by hand where
    hosttune never makes it (kernel command line, firmware).
    check(want) -> error text for an impossible want, "" if fine.
    want: what is recommended; "" when no value is better than another: it is then shown, and never wrong.
    recommend: on, opt-in or report, see RECOMMENDED. meets(have, want): whether that will do; default: it is the same text.
    cost: what it costs when the value is wrong. evidence: where the recommended value comes from, and how sure that is.
    persists: where the value is kept over a reboot: "/etc/sysctl.d", "kernel command line", "firmware".
    if_ignored: the likely reason when a value that was written is not read back.
    read_one(host, subject) -> Reading: one subject alone, to read a write back; without it all are read again.
    wait(host, subject): raises Refused while a subject must not be written in either direction. `step` asks it by itself, a
    revert asks it too.
    after_driver: at boot it is kept once the driver's nodes are there, not before the driver touches the GPUs.
    starts: the program that reading starts, where the driver alone knows the answer: such a knob is asked only when somebody
    asks for it, since that program may load the driver and make device nodes.
    grave: of a report: a value that differs is a failure although nobody asked, because something is broken.
    passing: the value moves by itself (a counter, a link's speed), so two measurements may differ in it and still compare.
    """

    id: str
    name: str
    title: str
    why: str
    want: str
    read: Callable[[Any], Mapping[str, Reading]]
    step: Callable[[Any, str, str, str], Step]
    check: Callable[[str], str]
    skip: Callable[[Any], str] = field(default=lambda host: "")
    recommend: str = ON
    meets: Callable[[str, str], bool] = field(default=lambda have, want: have == want)
    cost: str = ""
    evidence: str = ""
    persists: str = ""
    if_ignored: str = ""
    read_one: Optional[Callable[[Any, str], Reading]] = None
    wait: Optional[Callable[[Any, str], None]] = None
    after_driver: bool = False
    starts: str = ""
    grave: bool = False
    passing: bool = False

    def __post_init__(self) -> None:
        if self.recommend not in RECOMMENDED:
            raise ValueError("recommend %r is not one of %s" % (self.recommend, ", ".join(RECOMMENDED)))


@dataclass(frozen=True)
class Probe:
    """One diagnosis. `run` maps what is known of each machine ("host", "ct:200") to findings; it asks nothing itself.

    `needs` are names of probes: when one of them failed on a machine, this one is skipped there, `because` of it.
    """

    name: str
    needs: Tuple[str, ...]
    run: Callable[[Mapping[str, Any]], List[Finding]]


@dataclass(frozen=True)
class Report:
    """What every face takes. `effects` is the door's own log of what was written: empty means nothing was."""

    command: str
    machine: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    findings: Tuple[Finding, ...] = ()
    steps: Tuple[Step, ...] = ()
    actions: Tuple[Action, ...] = ()
    effects: Tuple[Mapping[str, Any], ...] = ()
    changed: bool = False
    mode: str = ""
    version: str = ""
    duration_ms: int = 0


_NUMBERS = re.compile(r"(\d+)")


def natural(text: str) -> List[Any]:
    """Sort key that puts nvidia2 before nvidia10."""
    return [int(part) if part.isdigit() else part for part in _NUMBERS.split(text)]


def as_dict(value: Any) -> Any:
    """Plain JSON-able data of any noun above."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): as_dict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_dict(v) for v in value]
    return value


def counts(findings: Tuple[Finding, ...]) -> Dict[str, int]:
    """How many findings of each status, and how many are ignored (those count nowhere else)."""
    out = dict.fromkeys(STATUSES, 0)
    out["ignored"] = 0
    for f in findings:
        out["ignored" if f.ignored else f.status] += 1
    return out


def exit_code(report: Report, strict: bool = False) -> int:
    """0 clean, 1 at least one fail or error that is not ignored (strict: warn too). 2 is for "no report could be made"."""
    n = counts(report.findings)
    return 1 if n[FAIL] or n[ERROR] or (strict and n[WARN]) else 0


def first_cause(findings: Tuple[Finding, ...]) -> Optional[Finding]:
    """The first failure that no other finding explains."""
    return next((f for f in findings if f.status == FAIL and not f.because and not f.ignored), None)
