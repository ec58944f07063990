# SPDX-License-Identifier: Apache-2.0
"""What the lines of a section add up to: who is in a user namespace, which entry shows which node, what a list opens."""

from __future__ import annotations

import pytest

from hosttune.core.lxc import document as doc
from hosttune.core.lxc.entries import Entries, entries


def read(text: str, dialect: str = doc.PVE) -> Entries:
    document = doc.parse(text.encode(), dialect)
    return entries(document, document.main)


@pytest.mark.parametrize(("text", "free"), [
    ("unprivileged: 1\n", True), ("unprivileged: yes\n", True), ("unprivileged: 0\n", False), ("unprivileged: no\n", False),
    ("unprivileged: maybe\n", True), ("unprivileged: 1\nunprivileged: 0\n", False), ("lxc.idmap: u 0 100000 65536\n", True),
    ("lxc.id_map: u 0 100000 65536\n", False), (" unprivileged: 1\n", False), ("#unprivileged: 1\n", False),
    ("[old]\nunprivileged: 1\n", False), ("", False),
])  # fmt: skip
def test_who_is_in_a_user_namespace(text: str, free: bool) -> None:
    """As pve-container asks: `$conf->{unprivileged} || has_lxc_entry('lxc.idmap')`, where every string but "0" is true."""
    assert read(text).free is free


@pytest.mark.parametrize(("source", "target", "path", "shown"), [
    ("/dev/nvidia0", "dev/nvidia0", "/dev/nvidia0", True),
    ("/dev//nvidia0", "dev/nvidia0/", "/dev/nvidia0", True),
    ("/dev/nvidia-uvm", "dev/nvidia-uvm-tools", "/dev/nvidia-uvm", False),
    ("/dev/nvidia-uvm", "dev/nvidia-uvm-tools", "/dev/nvidia-uvm-tools", False),
    ("/dev/nvidia1", "dev/nvidia0", "/dev/nvidia1", True),
    ("/dev/nvidia1", "srv/nvidia1", "/dev/nvidia1", False),
    ("/dev/nvidia-caps", "dev/nvidia-caps", "/dev/nvidia-caps/nvidia-cap1", True),
    ("/dev/nvidia-caps", "dev/caps", "/dev/nvidia-caps/nvidia-cap1", False),
    ("/dev", "dev", "/dev/nvidia0", True),
    ("/dev/nvidia", "dev/nvidia", "/dev/nvidia0", False),
])  # fmt: skip
def test_an_entry_shows_a_node_only_at_the_path_where_it_is_opened(source: str, target: str, path: str, shown: bool) -> None:
    """CUDA opens /dev/nvidia-uvm by name: a typing mistake in the target is no entry for it."""
    kind = "dir" if source in ("/dev", "/dev/nvidia-caps") else "file"
    have = read("lxc.mount.entry: %s %s none bind,optional,create=%s\n" % (source, target, kind))
    assert bool(have.binds(path)) is shown


@pytest.mark.parametrize(("rules", "opens"), [
    ("", True),
    ("allow: c 195:* rwm", True),
    ("deny: a", True),
    ("deny: a\nallow: c 511:0 rw", True),
    ("allow:", True),
    ("allow:\nallow: c 195:* rwm", False),
    ("allow: a\nallow: c 195:* rwm", True),
])  # fmt: skip
def test_the_rule_of_a_dev_entry_comes_first_and_a_raw_line_can_take_it_back(rules: str, opens: bool) -> None:
    # `deny: a` as the last word leaves an empty list, and that is no program: all is open.
    lines = "".join("lxc.cgroup2.devices.%s\n" % rule for rule in rules.splitlines())
    assert read(lines + "dev0: /dev/nvidia-uvm\n").opens("/dev/nvidia-uvm", 511, 0) is opens
