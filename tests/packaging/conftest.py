# SPDX-License-Identifier: Apache-2.0
"""Targets of tests/kernel, for the links of the chain that end on another machine."""

from __future__ import annotations

import pytest

from tests.kernel import view
from tests.kernel.conftest import _cannot, lxc, old_target

__all__ = ["lxc", "old_target", "private_namespace"]


@pytest.fixture(scope="session")
def private_namespace() -> None:
    """Enter the namespace of tests/kernel once a run, and only for a test that asks for it."""
    reason = view.obstacle()
    if reason is not None:
        _cannot(reason)
    if not view.SCRATCH.is_mount():
        view.enter()
