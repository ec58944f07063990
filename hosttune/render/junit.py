# SPDX-License-Identifier: Apache-2.0
"""A Report as JUnit XML: one test suite a machine, one test case a finding."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from ..core.model import ERROR, FAIL, SKIP, Finding, Report
from .visible import visible_report

_ELEMENT = {FAIL: "failure", ERROR: "error", SKIP: "skipped"}


def render(report: Report) -> str:
    """The whole document."""
    report = visible_report(report)
    machines = sorted({f.machine for f in report.findings}) or ["host"]
    root = ET.Element("testsuites", name="hosttune " + report.command)
    for machine in machines:
        mine = [f for f in report.findings if f.machine == machine]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=machine,
            tests=str(len(mine)),
            failures=str(sum(f.status == FAIL and not f.ignored for f in mine)),
            errors=str(sum(f.status == ERROR for f in mine)),
            skipped=str(sum(f.status == SKIP or bool(f.ignored) for f in mine)),
        )
        for f in mine:
            _case(suite, f)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, f: Finding) -> None:
    case = ET.SubElement(suite, "testcase", classname=f.name, name="%s %s" % (f.id, f.subject))
    kind = "skipped" if f.ignored else _ELEMENT.get(f.status)
    if kind:
        child = ET.SubElement(case, kind, message=f.ignored or f.summary)
        child.text = "\n".join([*f.evidence, *(["%s: %s" % (f.hint.word, f.hint.command)] if f.hint.command else [])])
