# SPDX-License-Identifier: Apache-2.0
"""What we say a list of mount entries shows, against what the real LXC mounts, and whether it starts at all."""

from __future__ import annotations

import pytest

from hosttune.core.lxc import document as doc
from hosttune.core.lxc.entries import entries
from hosttune.core.lxc.traps import traps
from tests.kernel.conftest import MakeContainer
from tests.kernel.nodes import GpuNodes
from tests.unit.lxc_cases import a_host

ENTRY, GPU, CAPS = "lxc.mount.entry = ", "/dev/nvidia0 dev/nvidia0 ", "/dev/nvidia-caps dev/nvidia-caps "
LISTS = {
    "usual": [ENTRY + GPU + "none bind,optional,create=file"],
    "note": [ENTRY + GPU + "none bind,optional,create=file # mine"],
    "quoted": [ENTRY + '"' + GPU + 'none bind,create=file"'],
    "no create": [ENTRY + GPU + "none bind,optional"],
    "no create, needed": [ENTRY + GPU + "none bind"],
    "a folder for a node": [ENTRY + GPU + "none bind,optional,create=dir"],
    "a folder for a node, needed": [ENTRY + GPU + "none bind,create=dir"],
    "a file for a folder": [ENTRY + CAPS + "none bind,optional,create=file"],
    "folder": [ENTRY + CAPS + "none bind,optional,create=dir"],
    "absolute": [ENTRY + "/dev/nvidia0 /dev/nvidia0 none bind,create=file"],
    "taken back": [ENTRY + GPU + "none bind,create=file", ENTRY],
    "taken back before": [ENTRY, ENTRY + GPU + "none bind,create=file"],
    "comment": [ENTRY + "# " + GPU + "none bind,create=file"],
    "no-break space": [ENTRY + "/dev/nvidia0\u00a0dev/nvidia0 none bind,create=file"],
    "too few": [ENTRY + GPU],
    "another place": [ENTRY + "/dev/nvidia0 dev/elsewhere none bind,create=file"],
    "no such cgroup file": ["lxc.cgroup2.device.allow = c 195:* rwm"],
}


@pytest.mark.parametrize("name", LISTS)
def test_what_a_list_of_mount_entries_shows(make_container: MakeContainer, nodes: GpuNodes, name: str) -> None:
    nodes.make("nvidia0", 195, 0)
    nodes.make("nvidia-caps/nvidia-cap1", 236, 1)
    rules = "lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.cgroup2.devices.allow = c 236:* rwm\n"
    container = make_container("lxc.init.cmd = /bin/sleep infinity\n" + rules + "".join(line + "\n" for line in LISTS[name]))
    document = doc.parse(container.config.read_bytes(), doc.LXC)
    have = entries(document, document.main)
    if any(mount.fatal for _, mount in have.mounts) or traps(document, have, a_host(), "ct"):
        with pytest.raises(RuntimeError, match="did not start"):
            container.start()
        return
    container.start()
    for path in ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1"):
        # Nobody drives these numbers: ENXIO means that the node is there and was let through.
        assert bool(have.binds(path)) is (container.open_errno(path) == "ENXIO"), path
