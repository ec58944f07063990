# SPDX-License-Identifier: Apache-2.0
"""Findings that are known and accepted stay in the report, are counted, and do not change the exit code."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import List, Sequence

from ..catalogue import finding
from ..model import FAIL, WARN, Finding, Hint
from .profile import Ignore


def apply_ignores(findings: Sequence[Finding], ignores: Sequence[Ignore], now: float) -> List[Finding]:
    """The findings, matching ones marked; and HT901 for an ignore that has run out or matches nothing at all.

    now: seconds since the epoch. An ignore holds through its last day (UTC).
    """
    today = time.strftime("%Y-%m-%d", time.gmtime(now))
    out = list(findings)
    for ignore in ignores:
        label = ignore.id + (" " + ignore.subject if ignore.subject else "")
        if ignore.until and ignore.until < today:
            out.append(
                finding(
                    "HT901",
                    WARN,
                    label,
                    "this ignore ran out on %s" % ignore.until,
                    hint=Hint("take it out of `ignore:`, or give it a new day", action="reconfigure"),
                )
            )
            continue
        matched = False
        for n, found in enumerate(out):
            if found.id == ignore.id and ignore.subject in ("", found.subject):
                matched = True
                if found.status in (WARN, FAIL) and not found.ignored:
                    out[n] = replace(found, ignored=ignore.reason)
        if not matched:
            out.append(
                finding(
                    "HT901",
                    WARN,
                    label,
                    "this ignore matches nothing here",
                    hint=Hint("take it out of `ignore:`", action="reconfigure"),
                )
            )
    return out
