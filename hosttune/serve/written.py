# SPDX-License-Identifier: Apache-2.0
"""An engine's unit: as declared, read by systemd as it was meant, with variables that exist."""

from __future__ import annotations

from ..core.model import FAIL, OK, WARN, Finding, Hint
from . import command, nccl, quote
from .declare import SECRET
from .see import Seen, about, steps


def files(seen: Seen) -> Finding:
    """HT601: are its files as declared?"""
    differ = [step.target for step in steps(seen)]
    if not differ:
        return about(seen, "HT601", OK, "the unit is as declared", have=seen.rendered.mark)
    absent = seen.told["files"].get(seen.rendered.path) is None
    return about(
        seen,
        "HT601",
        FAIL,
        "the unit is not there yet" if absent else "the unit differs from what is declared",
        evidence=tuple(differ),
        hint=Hint(
            "hosttune unit start %s" % seen.engine.name,
            "host",
            "starts the engine; `hosttune unit diff` shows the lines first",
            "apply",
        ),
    )


def lint(seen: Seen) -> list[Finding]:
    """HT604: what is wrong with the variables of the unit."""
    found = []
    for a in nccl.lint(seen.rendered.environment, seen.engine.kind):
        if a.level != nccl.INFO:
            status = FAIL if a.level == nccl.ERROR else WARN
            fix = Hint(
                "%s: %s" % (a.name, a.fix) if a.fix else "",
                "engines.%s.env in the profile" % seen.engine.name,
                "",
                "reconfigure",
            )
            found.append(
                about(
                    seen,
                    "HT604",
                    status,
                    "%s: %s" % (a.name, a.text),
                    have=seen.rendered.environment[a.name],
                    want=a.fix,
                    hint=fix,
                    severity="correctness" if status == FAIL else "performance",
                )
            )
    return found or [about(seen, "HT604", OK, "every NCCL variable is one that NCCL reads")]


def verified(seen: Seen, analyzed: bool = False) -> list[Finding]:
    """HT603: systemd-analyze has nothing to say, and what systemd has read is what was meant. analyzed: it was asked of this
    text just now."""
    if not analyzed and (objection := _objection(seen)):
        return [objection]
    if not seen.same_files:
        return [about(seen, "HT603", OK, "systemd-analyze has nothing to say of it")]
    have = quote.read_back(seen.told["show"].get("Environment", ""))
    wrong = [name for name, value in seen.rendered.environment.items() if not _same(have.get(name), value)]
    if wrong:
        return [
            about(
                seen,
                "HT603",
                FAIL,
                "systemd has read %s differently" % ", ".join(wrong),
                have=str(have.get(wrong[0])),
                want=seen.rendered.environment[wrong[0]],
                hint=Hint(
                    "systemctl show -p Environment,DropInPaths %s" % seen.engine.unit,
                    seen.engine.place,
                    "a drop-in of another hand may change it",
                    "look",
                ),
            )
        ]
    return [
        about(
            seen, "HT603", OK, "systemd has read all %d variables as they were meant" % len(seen.rendered.environment)
        )
    ]


def _objection(seen: Seen) -> Finding | None:
    told = seen.place.ask("verify", unit=seen.engine.unit, text=seen.rendered.text)
    program = command.program(seen.engine)
    absent = bool(program) and seen.told["paths"].get(program) != "file"  # told by HT602
    said = [line for line in told["said"] if not (absent and "is not executable" in line)]
    if not said and (absent or not told["rc"]):
        return None
    summary = "systemd-analyze does not take the unit"
    hint = Hint("hosttune unit render %s" % seen.engine.name, "host", "", "look")
    return about(seen, "HT603", FAIL, summary, evidence=tuple(said[:3]), hint=hint)


def _same(have: str | None, want: str) -> bool:
    if want.startswith(SECRET):
        return bool(have) and str(have).endswith("/" + want[len(SECRET) :])
    return have == want
