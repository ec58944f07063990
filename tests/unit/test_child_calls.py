# SPDX-License-Identifier: Apache-2.0
"""Which calls a doctor puts to the driver's libraries: each costs a process, and cuInit of eight GPUs takes seconds."""

from __future__ import annotations

import pytest

from hosttune.core.doctor.survey import CALLS
from hosttune.core.door import child


@pytest.mark.parametrize("env, processes", [({"PATH": "/bin"}, 3), ({"CUDA_VISIBLE_DEVICES": ""}, 4)])
def test_a_clean_environment_is_not_asked_again_without_what_it_has_not(
    env: dict[str, str], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def calls(names: list[str], variables: object, uid: object, timeout: object) -> tuple[dict[str, int], bool, str]:
        started.append(names)
        return {name: len(started) for name in names}, True, ""

    monkeypatch.setattr(child, "_calls", calls)
    told = child.inquire([], CALLS, env=env).calls
    assert set(told) == set(CALLS)
    assert len(started) == processes
    assert (told["cuInit"] == told["cuInit@clean-env"]) is (processes == 3)
