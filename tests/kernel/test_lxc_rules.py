# SPDX-License-Identifier: Apache-2.0
"""What we say a list of device rules opens, against what the real LXC and the real device cgroup let through."""

from __future__ import annotations

import pytest

from hosttune.core.lxc import document as doc
from hosttune.core.lxc.entries import entries
from tests.kernel.conftest import MakeContainer
from tests.kernel.nodes import GpuNodes, bind_entries

ALLOW, DENY = "lxc.cgroup2.devices.allow = ", "lxc.cgroup2.devices.deny = "

LISTS = {
    "none": [],
    "empty-last": [ALLOW + "c 195:* rwm", ALLOW],
    "empty-first": [ALLOW, ALLOW + "c 195:* rwm"],
    "all-then-one": [ALLOW + "a", ALLOW + "c 195:* rwm"],
    "one-then-all": [ALLOW + "c 195:* rwm", ALLOW + "a"],
    "all-but-one": [ALLOW + "a", DENY + "c 511:* rwm"],
    "all-but-one-and-back": [ALLOW + "a", DENY + "c 511:* rwm", ALLOW + "c 511:* rwm"],
    "taken-back": [ALLOW + "c 511:* rwm", DENY + "c 511:* rwm"],
    "not-taken-back": [ALLOW + "c 511:* rwm", DENY + "c 511:0 rwm"],
    "deny-all-between": [ALLOW + "c 511:* rwm", DENY + "a", ALLOW + "c 195:* rwm"],
    "every-char": [ALLOW + "c *:* rwm"],
    "deny-then-allow": [DENY + "c 511:* rwm", ALLOW + "c 511:* rwm"],
    "deny-all-last": [ALLOW + "c 195:* rwm", DENY + "a"],
    "deny-all-then-one": [DENY + "a", DENY + "c 511:* rwm"],
    "one-denied": [DENY + "c 511:* rwm"],
    "empty-deny": [ALLOW + "c 195:* rwm", DENY],
    "all-but-one-empty-allow": [ALLOW + "a", DENY + "c 511:* rwm", ALLOW],
    "empty-then-unreadable": [ALLOW, ALLOW + "c  511:* rwm"],
    "all-but-reading": [ALLOW + "a", DENY + "c 511:* r"],
    "all-but-one-and-less-back": [ALLOW + "a", DENY + "c 511:* rwm", ALLOW + "c 511:0 rwm"],
    "all-but-a-path": [ALLOW + "a", DENY + "/dev/nvidia-uvm rwm"],
    "octal": [ALLOW + "c 0777:* rwm"],
    "quoted": [ALLOW + '"c 511:* rwm"'],
    "with-note": [ALLOW + "c 511:* rwm # note"],
    "note-too-early": [ALLOW + "c 511:* rw # note"],
    "two-blanks": [ALLOW + "c  511:* rwm"],
    "tab": [ALLOW + "c\t511:*\trwm"],
    "minor": [ALLOW + "c 511:1 rwm", ALLOW + "c 195:0 rw"],
    "read-only": [ALLOW + "c 511:* r"],
    "path": [ALLOW + "/dev/nvidia-uvm rwm"],
    "path-with-note": [ALLOW + "/dev/nvidia-uvm   rw  # note"],
}


@pytest.mark.parametrize("unprivileged", [False, True])
@pytest.mark.parametrize("name", LISTS)
def test_what_a_list_of_rules_opens(make_container: MakeContainer, nodes: GpuNodes, name: str, unprivileged: bool) -> None:
    made = nodes.make_all()
    text = "lxc.init.cmd = /bin/sleep infinity\n" + "".join(line + "\n" for line in LISTS[name]) + bind_entries(made)
    container = make_container(text, unprivileged=unprivileged).start()
    document = doc.parse(container.config.read_bytes(), doc.LXC)
    have = entries(document, document.main)
    for path, major, minor in (("/dev/nvidia0", 195, 0), ("/dev/nvidia-uvm", 511, 0)):
        # Nobody drives these numbers: ENXIO means that the device cgroup let it through.
        assert have.opens(path, major, minor) is (container.open_errno(path) == "ENXIO"), path
