# SPDX-License-Identifier: Apache-2.0
"""Every cause has a finding whose page answers for it, and docs/taxonomy.md says what the tests show."""

from __future__ import annotations

from tests.unit import taxonomy
from tests.unit.test_finding_pages import CAUSES


def test_every_cause_has_a_finding() -> None:
    assert taxonomy.uncovered() == []
    assert taxonomy.letters() == CAUSES


def test_the_table_is_what_is_there() -> None:
    assert taxonomy.PAGE.read_text(encoding="utf-8") == taxonomy.text(), "python -m tests.unit.taxonomy writes it"
