# SPDX-License-Identifier: Apache-2.0
"""Files that a config includes: judged like its own lines, told by their own place, never edited. How LXC itself takes them is
asked in tests/kernel/test_lxc_includes.py."""

from __future__ import annotations

from typing import Any

import pytest

from hosttune.core.lxc import sync
from hosttune.core.lxc.facts import container_facts
from hosttune.core.lxc.gets import gets
from hosttune.core.lxc.needs import Wanted
from hosttune.core.lxc.store import find
from hosttune.core.model import Report
from tests.unit.lxc_cases import a_host
from tests.unit.test_lxc_store import Paper, a_node

OWN, GPU = "/etc/pve/lxc/200.conf", "/etc/lxc/gpu.conf"
INCLUDE = "lxc.include: %s\n" % GPU
NAMES = ("nvidia0", "nvidiactl", "nvidia-uvm")
BINDS = "".join("lxc.mount.entry: /dev/%s dev/%s none bind,optional,create=file\n" % (name, name) for name in NAMES)
RULES = "".join("lxc.cgroup2.devices.allow: c %d:* rwm\n" % major for major in (195, 511))


def lxcs(text: str) -> str:
    """The same lines as LXC writes them."""
    return text.replace("allow:", "allow =").replace("entry:", "entry =")


def host(config: str, files: dict[str, str | None], **nodes: Any) -> Paper:
    texts = {path: text for path, text in files.items() if text is not None}
    kinds = {path: {"type": "file" if text is not None else "dir", "mode": "0644"} for path, text in files.items()}
    inside = {path: [name.rpartition("/")[2] for name in files if name.rpartition("/")[0] == path]
              for path, text in files.items() if text is None}  # fmt: skip
    return a_node(config.encode(), files=texts, nodes={**kinds, **nodes}, dirs=inside)


def told(report: Report, *ids: str) -> list[tuple[str, str, str]]:
    return [(f.id, f.status, f.evidence[0] if f.evidence else "") for f in report.findings if f.id in ids]


@pytest.mark.parametrize(("own", "included"), [(BINDS, RULES), (RULES, BINDS), ("", BINDS + RULES)])
def test_what_an_included_file_gives_is_neither_missing_nor_added_again(own: str, included: str) -> None:
    report = sync.show(host(own + INCLUDE, {GPU: lxcs(included)}), "200", Wanted(gpus=()))
    assert report.steps == () and told(report, "HT421", "HT426", "HT431") == [], report.findings
    alone = sync.show(host(own, {}), "200", Wanted(gpus=(0,)))
    assert alone.steps, "without the include there is something to do"


def test_each_line_is_told_with_its_own_place_where_it_counts() -> None:
    door = host("arch: amd64\n" + INCLUDE + RULES, {GPU: "# mine\n" + lxcs(BINDS)})
    places = [one.place for one in gets(find(door, "200").document, a_host())]
    assert places == [GPU + ":2", GPU + ":3", GPU + ":4", OWN + ":3", OWN + ":4"]
    facts = container_facts(door, "200")
    assert facts.passing("/dev/nvidia-uvm") == GPU + ":4" and facts.allowing("/dev/nvidia-uvm", "511:0") == OWN + ":4"


def test_a_stale_rule_of_an_included_file_is_told_there_and_left_there() -> None:
    door = host(BINDS + INCLUDE, {GPU: lxcs(RULES) + "lxc.cgroup2.devices.allow = c 509:* rwm\n"})
    before = door.read(GPU), door.read(OWN)
    done = sync.sync(door, "200", Wanted(gpus=(), prune=True, drop=(509,)))
    assert not done.changed and (door.read(GPU), door.read(OWN)) == before and door.effects == []
    (stale,) = [f for f in done.findings if f.id == "HT420"]
    assert stale.evidence[0] == GPU + ":3" and "hosttune never edits" in stale.hint.command


PATHS = "".join("lxc.cgroup2.devices.allow: /dev/%s rwm\n" % name for name in NAMES)


@pytest.mark.parametrize("form", ["keep", "dev", "path", "number"])
@pytest.mark.parametrize(("own", "included"), [("", BINDS), (BINDS, RULES), (RULES, BINDS), (PATHS, BINDS), (BINDS, PATHS),
                                               ("", BINDS + RULES), (RULES, BINDS + RULES), (BINDS, BINDS)])  # fmt: skip
def test_an_edit_keeps_the_included_file_in_mind_and_comes_to_rest(own: str, included: str, form: str) -> None:
    """A second devN for a node that the included file binds would keep the container from starting."""
    wanted = Wanted(gpus=(0,), form=form, required=True)
    door = host("memory: 512\n" + own + INCLUDE, {GPU: lxcs(included)})
    sync.sync(door, "200", wanted)
    devs = [line for line in door.read(OWN).splitlines() if line.startswith("dev")]
    assert door.read(GPU) == lxcs(included)
    assert included.count("mount.entry") == 0 or not any("/dev/%s," % name in line for line in devs for name in NAMES)
    again = sync.sync(door, "200", wanted)
    assert not again.changed and told(again, "HT421") == [], door.read(OWN)


def test_an_included_id_map_makes_it_unprivileged() -> None:
    door = host(BINDS + INCLUDE, {GPU: "lxc.idmap = u 0 100000 65536\n"})
    assert sync.show(door, "200", Wanted(gpus=())).facts["kind"] == "unprivileged"
    assert told(sync.show(door, "200", Wanted(gpus=())), "HT421") == []


@pytest.mark.parametrize(("config", "files", "status", "says"), [
    (INCLUDE, {}, "fail", "there is no " + GPU),
    ("lxc.include: /etc/lxc/none/\n", {}, "", ""),
    (INCLUDE, {GPU: "lxc.include = %s\n" % GPU}, "fail", "includes itself"),
    (INCLUDE, {GPU: "lxc.include = /etc/lxc/b.conf\n", "/etc/lxc/b.conf": "lxc.include = %s\n" % GPU}, "fail", "includes itself"),
    (INCLUDE, {GPU: "lxc.include = /etc/lxc/none.conf\n"}, "fail", "there is no /etc/lxc/none.conf"),
    (INCLUDE, {GPU: "lxc.cgroup2.devices.allow: c 195:* rwm\n"}, "fail", GPU + ":1: there is no `=`"),
    ("lxc.include: /etc/lxc/d\n", {"/etc/lxc/d": None, "/etc/lxc/d/a.conf": "# fine\n", "/etc/lxc/d/b.txt": "lxc.no\n"}, "", ""),
    ("lxc.include: /usr/share/lxc/config/nesting.conf\n", {}, "", ""),
])  # fmt: skip
def test_what_keeps_the_container_from_starting_is_told(
    config: str, files: dict[str, str | None], status: str, says: str
) -> None:
    found = [f for f in sync.show(host("arch: amd64\n" + config, files), "200", Wanted()).findings if f.id == "HT431"]
    assert [f.status for f in found] == ([status] if status else []) and all(says in f.summary for f in found)
    assert all(f.evidence == (OWN + ":2",) for f in found)


def test_links_are_followed_and_what_is_no_file_is_not_opened() -> None:
    links = {GPU: "../srv/real.conf", "/etc/lxc/pipe": "/run/fifo"}
    types = {GPU: "link", "/etc/srv/real.conf": "file", "/etc/lxc/pipe": "link", "/run/fifo": "fifo"}
    kinds = {path: {"type": kind} for path, kind in types.items()}
    config = BINDS + INCLUDE + "lxc.include: /etc/lxc/pipe\nlxc.include: here.conf\n"
    door = a_node(config.encode(), files={GPU: lxcs(RULES)}, nodes=kinds, links=links)
    found = sync.show(door, "200", Wanted(gpus=())).findings
    assert [f for f in found if f.id == "HT421"] == []
    assert [f.summary.rpartition(": ")[0].partition(":")[2].strip() for f in found if f.id == "HT431"] == [
        "/etc/lxc/pipe", "here.conf"]  # fmt: skip
    assert not [question for question in door.unrecorded if "fifo" in question], "a pipe would never end"


def test_what_nobody_could_read_is_no_nothing() -> None:
    door = a_node(INCLUDE.encode(), files={GPU: {"errno": "EACCES"}}, nodes={GPU: {"type": "file"}})
    (found,) = [f for f in sync.show(door, "200", Wanted()).findings if f.id == "HT431"]
    assert found.status == "warn" and "EACCES" in found.summary
    copy, _ = sync.preview(INCLUDE.encode(), "copy.conf", Wanted(), a_host())
    assert [(f.id, f.status) for f in copy.findings if f.id == "HT431"] == [("HT431", "warn")], "a copy has no files beside it"
