# SPDX-License-Identifier: Apache-2.0
"""An edited config is one that starts: real configs in each form, on real LXC behind the lab's pct, every node opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosttune.core.lxc import document as doc
from hosttune.core.lxc.edit import edit
from hosttune.core.lxc.entries import entries
from hosttune.core.lxc.needs import Wanted
from tests.kernel.nodes import GpuNodes
from tests.kernel.proxmox import Proxmox
from tests.unit.lxc_cases import NODES, a_host, real

UVM = "/dev/nvidia-uvm"
DEV, BIND = f"dev0: {UVM},mode=0666\n", f"lxc.mount.entry: {UVM} dev/nvidia-uvm none bind,optional,create=file\n"


@pytest.fixture
def node(proxmox: Proxmox, nodes: GpuNodes) -> Iterator[Proxmox]:
    """The nodes of the host that the cases are described for; nobody drives them, so ENXIO means: let through."""
    for path, one in NODES.items():
        if "nvidia" in path and one.type == "char":
            nodes.make(path[len("/dev/") :], one.major, one.minor, one.mode)
    yield proxmox


@pytest.mark.parametrize("form", ["dev", "path", "number"])
@pytest.mark.parametrize("case", ["01", "02"])
def test_a_real_config_starts_in_each_form_and_every_node_opens(node: Proxmox, case: str, form: str) -> None:
    text = real(case).decode()
    conf = node.container(370, text[text.index("lxc.") :])  # its own base lines name a disk that is not here
    result = edit(doc.parse(conf.read_bytes(), path=str(conf)), Wanted(form=form), a_host(), "ct:370")
    assert result.changes
    conf.write_bytes(result.data)
    started = node.pct("start", "370")
    assert started.returncode == 0, started.stderr
    assert {need.path: node.open_errno(370, need.path) for need in result.needs} == {
        need.path: "ENXIO" for need in result.needs}


@pytest.mark.parametrize("name", ["bare", "denied", "given back", "wiped", "list anew"])
def test_a_raw_line_can_take_back_the_rule_of_a_dev_entry(node: Proxmox, name: str) -> None:
    """Proxmox VE writes the rules of devN above the raw lines: what we say the list opens is what the kernel lets through."""
    lines = {
        "bare": "", "denied": "deny: a", "given back": "deny: a\nallow: c 511:0 rw\nallow: c *:* m\nallow: c 1:* rwm",
        "wiped": "allow:", "list anew": "allow:\nallow: c 195:* rwm\nallow: c 1:* rwm",
    }[name]  # fmt: skip
    conf = node.container(371, DEV + "".join(f"lxc.cgroup2.devices.{line}\n" for line in lines.splitlines()))
    assert node.pct("start", "371").returncode == 0
    document = doc.parse(conf.read_bytes())
    opens = entries(document, document.main).opens(UVM, 511, 0)
    assert node.open_errno(371, UVM) == ("ENXIO" if opens else "EPERM")


@pytest.mark.parametrize("broken", [DEV + DEV.replace("dev0", "dev1"), DEV + BIND, DEV.replace(",", ", ")])
def test_what_keeps_a_container_from_starting_is_told_and_healed(node: Proxmox, broken: str) -> None:
    conf = node.container(372, broken)
    assert node.pct("start", "372").returncode != 0
    result = edit(doc.parse(conf.read_bytes(), path=str(conf)), Wanted(), a_host(), "ct:372")
    assert [f.status for f in result.findings if f.id == "HT426"] == ["fail"]
    conf.write_bytes(result.data)
    healed = node.pct("start", "372")
    assert healed.returncode == 0, healed.stderr
    assert node.open_errno(372, UVM) == "ENXIO"
