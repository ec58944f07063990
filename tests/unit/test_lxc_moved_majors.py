# SPDX-License-Identifier: Apache-2.0
"""Majors that move, in every direction: from each pair of numbers that uvm and caps may have to each other pair."""

from __future__ import annotations

import itertools

import pytest

from hosttune.core.lxc import document as doc
from hosttune.core.lxc import sync
from hosttune.core.lxc.edit import Edit, edit
from hosttune.core.lxc.needs import Wanted
from hosttune.core.machine.devices import DeviceTable, Node, device_table
from hosttune.core.recording.replay import ReplayHost
from tests.unit.lxc_cases import NODES, PROC_DEVICES, real
from tests.unit.test_lxc_store import Paper, a_node

NUMBERS = (234, 236, 239, 254, 507, 508, 510, 511)
PAIRS = list(itertools.permutations(NUMBERS, 2))
FIXED = "".join(line for line in PROC_DEVICES.splitlines(True)
                if not any(name in line for name in ("uvm", "caps", "megaraid", "nvme", "ipmi", "watchdog")))  # fmt: skip


def devices_text(uvm: int, caps: int, more: str = "") -> str:
    lines = "%3d nvidia-caps\n%3d nvidia-uvm\n%s" % (caps, uvm, more)
    return FIXED.replace("509 hidraw\n", "509 hidraw\n" + lines)


def host(uvm: int, caps: int, more: str = "", nodes: dict[str, Node] | None = None) -> DeviceTable:
    found = {}
    for path, node in {**NODES, **(nodes or {})}.items():
        major = uvm if "uvm" in path else caps if "nvidia-cap" in path and node.type == "char" else node.major
        found[path] = Node(node.type, major, node.minor, node.mode)
    return device_table(devices_text(uvm, caps, more), found, (6, 1, 10))


def run(data: bytes, devices: DeviceTable, wanted: Wanted = Wanted()) -> Edit:  # noqa: B008
    return edit(doc.parse(data, path="200.conf"), wanted, devices, "ct:200")


def numeric(data: bytes) -> set[int]:
    rules = [line.value for line in doc.parse(data).main if line.key == "lxc.cgroup2.devices.allow"]
    return {int(rule.split()[1].split(":")[0]) for rule in rules if rule.startswith("c ")}


BASE = real("05")[: real("05").index(b"lxc.")]


def test_from_any_pair_of_numbers_to_any_other_and_back() -> None:
    for there in PAIRS:
        home, away = host(511, 236), host(*there)
        data = run(BASE, home, Wanted(gpus=None, caps=True, form="number")).data
        assert numeric(data) == {195, 511, 236}
        moved = run(data, away)
        assert numeric(moved.data) == {195, *there}, there
        assert run(moved.data, away).changes == ()
        back = run(moved.data, home)
        assert numeric(back.data) == {195, 511, 236}
        assert sorted(back.data.splitlines()) == sorted(data.splitlines()), "nothing piles up on the way there and back"


@pytest.mark.parametrize("form", ["dev", "path"])
def test_in_the_forms_without_numbers_no_move_needs_a_change(form: str) -> None:
    data = run(BASE, host(511, 236), Wanted(gpus=None, caps=True, form=form)).data
    for there in PAIRS:
        assert run(data, host(*there)).changes == (), there


def test_the_swap_keeps_the_rule_that_has_got_a_new_meaning() -> None:
    """uvm 511 -> 508 while caps 236 -> 511: 511 is still ours, and not for what it was."""
    data = run(BASE, host(511, 236), Wanted(gpus=None, caps=True, form="number")).data
    swapped = run(data, host(508, 511))
    assert [line.split("  (")[0] for line in swapped.changes] == [
        "- lxc.cgroup2.devices.allow: c 236:* rwm", "+ lxc.cgroup2.devices.allow: c 508:* rwm"]
    assert sorted(run(swapped.data, host(511, 236)).data.splitlines()) == sorted(data.splitlines())


def test_numbers_change_hands() -> None:
    """uvm has the number of caps and caps that of uvm: both rules are there already."""
    data = run(BASE, host(511, 236), Wanted(gpus=None, caps=True, form="number")).data
    assert run(data, host(236, 511)).changes == ()


# ---- a number that was uvm's and is another's now

SHARED = {
    "apex": ("509 apex", "/dev/apex_0"), "kfd": ("509 kfd", "/dev/kfd"), "hidraw": ("509 hidraw", "/dev/hidraw3"),
    "accel": ("509 accel", "/dev/accel/accel0"), "ipmi": ("509 ipmidev", "/dev/ipmi0"),
}  # fmt: skip
FOREIGN = ("c 10:200 rwm", "c 188:* rwm", "c 189:* rwm", "c 166:0 rwm", "c 81:* rwm", "c 116:* rwm", "c 226:128 rw", "b 8:0 r",
           "c *:* m", "c 5:1 rwm")  # fmt: skip
ENTRIES = ("/dev/net/tun", "/dev/ttyUSB0", "/dev/bus/usb", "/dev/ttyACM0", "/dev/video0", "/dev/snd", "/dev/dri/renderD128")


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("name", SHARED)
def test_a_rule_that_another_passed_device_needs_is_never_touched(name: str, is_there: bool) -> None:
    """Its node is there with that number, or it is unplugged and its driver has the number."""
    line, path = SHARED[name]
    nodes = {path: Node("char", 509, 0)} if is_there else {}
    devices = host(511, 236, line + "\n", nodes)
    given = b"lxc.mount.entry: %s dev/x none bind,optional,create=file\n" % path.encode()
    data = run(BASE, host(509, 236), Wanted(gpus=None, form="number")).data + given
    assert numeric(data) == {195, 509}
    for form in ("keep", "number", "path", "dev"):
        result = run(data, devices, Wanted(form=form))
        assert 509 in numeric(result.data) and given in result.data, result.changes


@pytest.mark.parametrize("form", ["keep", "number", "path", "dev"])
def test_rules_and_entries_of_other_devices_stay_in_every_form(form: str) -> None:
    lines = ["lxc.cgroup2.devices.allow: " + rule for rule in FOREIGN]
    lines += ["lxc.mount.entry: %s %s none bind,optional,create=file" % (path, path[1:]) for path in ENTRIES]
    lines += ["dev5: /dev/ttyUSB1,gid=20", "dev7: /dev/net/tun"]
    data = run(BASE, host(508, 511), Wanted(gpus=None, caps=True, form="number")).data + "".join(
        line + "\n" for line in lines).encode()
    after = run(data, host(511, 239), Wanted(form=form)).data.decode().splitlines()
    assert [line for line in after if line in lines] == lines


# ---- several containers of one host

def test_several_containers_each_gets_what_it_needs_and_no_more() -> None:
    """One move of the numbers: only privileged containers with rules by number need a write."""
    home = host(511, 236)
    configs = {
        "200": run(BASE, home, Wanted(gpus=None, form="number")).data,
        "1001": run(BASE, home, Wanted(gpus=None, form="dev")).data,
        "1002": run(BASE, home, Wanted(gpus=None, form="path")).data,
        "1003": run(BASE + b"unprivileged: 1\n", home, Wanted(gpus=None, form="number")).data,
        "1004": BASE,
        "1005": run(BASE, home, Wanted(gpus=(1,), form="number")).data,
    }
    node = several(configs, uvm=508)
    changed = {ct_id for ct_id in configs if sync.sync(node, ct_id, Wanted()).changed}
    assert changed == {"200", "1005"}
    now = {ct_id: node.read_bytes("/etc/pve/lxc/%s.conf" % ct_id) for ct_id in configs}
    assert numeric(now["200"]) == {195, 508} and b"c 508:0 rwm" in now["1005"]
    assert {ct_id for ct_id in configs if now[ct_id] != configs[ct_id]} == changed
    node.effects.clear()
    assert not any(sync.sync(node, ct_id, Wanted()).changed for ct_id in configs) and node.effects == []


def several(configs: dict[str, bytes], uvm: int) -> ReplayHost:
    """A node with these containers, all stopped, after its numbers have moved."""
    view = {
        "files": {"/proc/devices": devices_text(uvm, 236), **{
            "/etc/pve/lxc/%s.conf" % ct_id: data.decode() for ct_id, data in configs.items()}},
        "nodes": {**{"/etc/pve/lxc/%s.conf" % ct_id: {"type": "file", "mode": "0640"} for ct_id in configs},
                  **{"/dev/" + name: {"type": "char", "rdev": "%d:%d" % (uvm, minor), "mode": "0666"}
                     for minor, name in enumerate(("nvidia-uvm", "nvidia-uvm-tools"))}},
        "commands": {"lxc-info -n %s -p -H" % ct_id: {"rc": 1, "err": "not running"} for ct_id in configs},
        "dirs": {"/etc/pve/lxc": ["%s.conf" % ct_id for ct_id in configs]},
    }
    made: Paper = a_node(configs["200"], **view)
    return made
