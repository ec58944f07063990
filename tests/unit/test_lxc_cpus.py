# SPDX-License-Identifier: Apache-2.0
"""A container's CPUs and its GPUs' NUMA node: seen, judged, pinned by one line, and only where that line is taken."""

from __future__ import annotations

from typing import Any

import pytest

from hosttune.core.lxc import cpus, store, sync
from hosttune.core.lxc import document as doc
from hosttune.core.lxc.needs import Wanted
from hosttune.core.lxc.outlook import wanted_of
from hosttune.core.model import Refused
from hosttune.core.recording.merge import merge
from hosttune.core.wanted.profile import Container
from tests.unit.lxc_cases import real
from tests.unit.test_lxc_store import Paper, a_node

BDFS = {"0000:11:00.0": (0, 0), "0000:c1:00.0": (1, 1)}
"""Address: (minor, NUMA node)."""


def two_sockets(config: bytes, **over: Any) -> Paper:
    """The node of the cases with 32 CPUs on two sockets; GPU 0 is on node 0, GPU 1 on node 1."""
    files = {"/sys/devices/system/cpu/online": "0-31\n", "/sys/devices/system/node/node0/cpulist": "0-7,16-23\n",
             "/sys/devices/system/node/node1/cpulist": "8-15,24-31\n", "/sys/devices/system/node/node2/cpulist": "\n",
             cpus.CONTROLLERS: "cpuset cpu io memory\n"}  # fmt: skip
    for bdf, (minor, node) in BDFS.items():
        base = "/sys/bus/pci/devices/%s/" % bdf
        files.update({base + "vendor": "0x10de\n", base + "class": "0x030200\n", base + "numa_node": "%d\n" % node,
                      "/proc/driver/nvidia/gpus/%s/information" % bdf: "Device Minor: \t %d\n" % minor})  # fmt: skip
    dirs = {"/sys/devices/system/node": ["node0", "node1", "node2", "online"], "/sys/bus/pci/devices": list(BDFS),
            "/proc/driver/nvidia/gpus": list(BDFS)}  # fmt: skip
    return a_node(config, **merge({"files": files, "dirs": dirs}, over))


def judged(config: bytes, *gpus: int, **over: Any) -> list[tuple[str, str]]:
    host = two_sockets(config, **over)
    return [(f.status, f.want) for f in cpus.judge(host, store.find(host, "200"), gpus or None)]


@pytest.mark.parametrize(("config", "gpus", "want"), [
    (b"cores: 4\n", (1,), [("warn", "8-15,24-31")]),
    (b"cores: 32\n", (1,), []),
    (b"memory: 512\n", (1,), []),
    (b"cores: 4\n", (0, 1), []),
    (b"lxc.cgroup2.cpuset.cpus: 0-3\n", (1,), [("warn", "8-15,24-31")]),
    (b"cores: 4\nlxc.cgroup2.cpuset.cpus: 8-11\n", (1,), [("ok", "8-15,24-31")]),
    (b"cores: 4\n\n[old]\nlxc.cgroup2.cpuset.cpus: 8-11\n", (1,), [("warn", "8-15,24-31")]),
], ids=["dealt-out", "all-cores", "no-word", "both-nodes", "pinned-astray", "pinned-well", "pinned-in-a-snapshot"])
def test_where_its_cpus_are(config: bytes, gpus: tuple[int, ...], want: list[tuple[str, str]]) -> None:
    assert judged(config, *gpus) == want


def test_a_machine_of_one_node_or_of_unknown_nodes_has_nothing_to_say() -> None:
    one = {"dirs": {"/sys/devices/system/node": ["node0"]}}
    unknown = {"files": {"/sys/bus/pci/devices/0000:c1:00.0/numa_node": "-1\n"}}
    assert judged(b"cores: 4\n", 1, **one) == judged(b"cores: 4\n", 1, **unknown) == []


def test_a_declaration_is_one_line_and_a_second_run_changes_nothing() -> None:
    host = two_sockets(b"cores: 4\n" + real("05"))
    wanted = wanted_of(host, Container(gpus="1", cpus="numa"))
    assert wanted.cpus == "8-15,24-31"
    done = sync.sync(host, "200", wanted)
    assert host.read("/etc/pve/lxc/200.conf").count("lxc.cgroup2.cpuset.cpus: 8-15,24-31\n") == 1 and done.changed
    host.effects.clear()
    assert not sync.sync(host, "200", wanted).changed and host.effects == []
    moved = sync.sync(host, "200", wanted_of(host, Container(gpus="1", cpus="8,9")))
    assert moved.changed and host.read("/etc/pve/lxc/200.conf").count("cpuset") == 1


@pytest.mark.parametrize(("declared", "over", "what"), [
    ("numa", {"files": {"/sys/bus/pci/devices/0000:c1:00.0/numa_node": "-1\n"}}, "cannot be told"),
    ("0-40", {}, "no CPU 32"),
    ("numa", {"files": {cpus.CONTROLLERS: "io memory\n"}}, "no cpuset controller"),
])
def test_what_cannot_be_pinned_is_refused_before_a_line_is_written(declared: str, over: dict[str, Any], what: str) -> None:
    with pytest.raises(Refused, match=what):
        wanted_of(two_sockets(b"", **over), Container(gpus="1", cpus=declared))


@pytest.mark.parametrize("text", ["0", "0-3", "0-3,8", "0-7,16-23", "5,7,9"])
def test_a_list_of_cpus_comes_back_as_it_was(text: str) -> None:
    assert cpus.format_list(cpus.parse_list(text)) == text


def test_the_same_cpus_in_other_words_are_the_same() -> None:
    remove: dict[int, str] = {}
    add: list[tuple[str, str, str]] = []
    cpus.pin(remove, add, doc.parse(b"lxc.cgroup2.cpuset.cpus: 0,1,2-3\n"), "0-3")
    assert (remove, add) == ({}, [])
    assert Wanted().cpus == ""
