# SPDX-License-Identifier: Apache-2.0
"""What a placement means on machines on paper."""

from __future__ import annotations

import pytest

from hosttune.core.model import Refused
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.stage import nodes
from hosttune.core.stage.nodes import Copy

MEMINFO = """\
Node 1 MemTotal:       16777216 kB
Node 1 MemFree:         8388608 kB
Node 1 Active(file):    1048576 kB
Node 1 Inactive(file):  1048576 kB
"""


def host(has_memory: str | None) -> ReplayHost:
    told = {"errno": "ENOENT"} if has_memory is None else has_memory
    return ReplayHost({"files": {nodes.SYSFS + "/has_memory": told, nodes.SYSFS + "/node1/meminfo": MEMINFO}})


@pytest.mark.parametrize(("text", "found"), [("0\n", [0]), ("0-1\n", [0, 1]), ("0-1,4\n", [0, 1, 4]), ("\n", [0]), (None, [0])])
def test_nodes_are_those_with_memory(text: str | None, found: list[int]) -> None:
    assert nodes.with_memory(host(text)) == found


@pytest.mark.parametrize(
    ("placement", "copies"),
    [
        ("interleave", (Copy("m"),)),
        ("node:1", (Copy("m", "1"),)),
        ("per-node", (Copy("m", "0"), Copy("m@node1", "1"), Copy("m@node4", "4"))),
    ],
)
def test_the_first_copy_has_the_models_own_name(placement: str, copies: tuple[Copy, ...]) -> None:
    assert nodes.copies(host("0-1,4\n"), "m", placement) == copies


@pytest.mark.parametrize("placement", ["node:2", "node:5"])
def test_node_without_memory_is_refused_and_those_with_it_are_named(placement: str) -> None:
    with pytest.raises(Refused, match=r"nodes with memory: 0, 1, 4"):
        nodes.copies(host("0-1,4\n"), "m", placement)


def test_room_of_a_node_is_what_is_free_and_the_cache_of_files_less_a_sixteenth() -> None:
    assert nodes.room(host("0-1\n"), "1") == (8 + 1 + 1 - 1) << 30
