# SPDX-License-Identifier: Apache-2.0
"""Hypothesis makes the same examples each time, so that a change is judged by what it changed. HOSTTUNE_EXAMPLES=3000 looks for
new ones, as many for each property."""

from __future__ import annotations

import os

from hypothesis import settings

MORE = int(os.environ.get("HOSTTUNE_EXAMPLES", "0"))

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=MORE or 100, deadline=None)
settings.load_profile("search" if MORE else "same")
