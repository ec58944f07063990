# SPDX-License-Identifier: Apache-2.0
"""A Report as JSON, schema hosttune.report/1 (docs/report.schema.json). Additions only; a break raises the number."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..core.model import Refused, Report, as_dict, counts, exit_code, first_cause

if TYPE_CHECKING:  # it brings the engine, which only a check needs
    from ..core.settings import Setting

SCHEMA = "hosttune.report/1"


def data(report: Report, started: float = 0, strict: bool = False) -> dict[str, Any]:
    """The document as plain data. started: seconds since the epoch."""
    cause = first_cause(report.findings)
    return {
        "schema": SCHEMA,
        "tool": {"name": "hosttune", "version": report.version or __version__},
        "command": report.command,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "duration_ms": report.duration_ms,
        "mode": report.mode,
        "ok": exit_code(report, strict) == 0,
        "changed": report.changed,
        "counts": counts(report.findings),
        "first_cause": cause.id if cause else None,
        "hosts": [
            {
                "name": report.machine,
                "facts": as_dict(report.facts),
                "findings": [dict(as_dict(f), doc="docs/findings/%s.md" % f.id) for f in report.findings],
                "steps": [dict(as_dict(s), diff=s.as_diff()) for s in report.steps],
                "actions": as_dict(report.actions),
                "effects": as_dict(report.effects),
            }
        ],
    }


def render(
    report: Report, started: float = 0, strict: bool = False, settings: Mapping[str, Setting] | None = None
) -> str:
    """One JSON document, indented. settings: what is known of each setting, by finding id, under `settings` of the host."""
    document = data(report, started, strict)
    if settings is not None:
        document["hosts"][0]["settings"] = as_dict(settings)
    return json.dumps(document, indent=2) + "\n"


def refusal(command: str, e: Refused) -> str:
    """The document when no report could be made."""
    return (
        json.dumps(
            {
                "schema": SCHEMA,
                "tool": {"name": "hosttune", "version": __version__},
                "command": command,
                "ok": False,
                "error": {"what": e.what, "where": e.where, "way_out": e.way_out},
            },
            indent=2,
        )
        + "\n"
    )
