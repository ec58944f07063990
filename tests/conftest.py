# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: which may run side by side, and that hypothesis makes the same examples each time, so that a change
is judged by what it changed. HOSTTUNE_EXAMPLES=3000 looks for new ones, as many for each property."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

MORE = int(os.environ.get("HOSTTUNE_EXAMPLES", "0"))

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=MORE or 100, deadline=None)
settings.load_profile("search" if MORE else "same")

ONE_AFTER_THE_OTHER = {"lab": "lab"} | dict.fromkeys(("ansible", "bench", "gpu", "kernel", "packaging"), "machine")
"""Folders of tests, by what they share: the lab's guest, or this machine's containers, mounts and ports."""


class SideBySide(LoadScopeScheduling):  # type: ignore[misc]
    """What shares something stays in one process; any other file goes to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return ONE_AFTER_THE_OTHER.get(Path(file).relative_to("tests").parts[0], file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SideBySide:
    """For `pytest -n 2` (make test, make check)."""
    return SideBySide(config, log)
