# SPDX-License-Identifier: Apache-2.0
"""Containers on a whole machine: each form through a restart and through a reboot that moves nvidia-uvm; what cannot be told
without true device nodes, cpusets and a boot.

The tests share one guest and stand in the order in which they run. nvidia-uvm is 509 at first, 511 after the reboot. 200 is
privileged with rules by number and runs, 201 is unprivileged, 202 has `dev[n]`; the last two are stopped.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab import deploy
from lab.machine import Machine
from tests.lab.hardware import majors
from tests.lab.owner import cu_init
from tests.lab.test_proxmox_face import UVM, opens

CONFIG = "/etc/pve/lxc/%d.conf"


def lxc(guest: Machine, *words: str) -> dict[str, Any]:
    """`hosttune lxc ...` as data, with its exit code as `rc`; it must not be refused."""
    done = guest.run("hosttune", "lxc", *words, "-o", "json", timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return {**told, **told["hosts"][0], "rc": done.returncode}


def statuses(told: dict[str, Any], id: str) -> list[str]:
    return [f["status"] for f in told["findings"] if f["id"] == id]


def init(guest: Machine, vmid: int) -> str:
    return guest.run("lxc-info", "-n", str(vmid), "-pH", check=True).stdout.strip()


@pytest.fixture(scope="module")
def node(module_guest: Machine) -> Machine:
    deploy.hosttune(module_guest)
    return module_guest


def test_a_rule_that_only_the_running_container_lacks_is_given_back_at_once(node: Machine) -> None:
    config, before = node.read(CONFIG % 200), init(node, 200)
    node.run("lxc-cgroup", "-n", "200", "devices.deny", "c 509:* rwm", check=True)
    assert opens(node, 200) == "EPERM"
    told = lxc(node, "live", "200")
    assert (told["rc"], opens(node, 200), init(node, 200), node.read(CONFIG % 200)) == (0, "ok", before, config)


def test_fewer_gpus_and_the_cpus_of_their_node_without_a_restart(node: Machine) -> None:
    before = init(node, 200)
    told = lxc(node, "sync", "200", "--gpus", "numa:1", "--cpus", "numa")
    assert told["rc"] == 0 and statuses(told, "HT437") == ["ok"], told["findings"]
    text = node.read(CONFIG % 200)
    gone = [number for number in range(8) if f"/dev/nvidia{number} " not in text]
    assert len(gone) == 4 and "c 195:*" not in text and "c 195:255 rwm" in text and "lxc.cgroup2.cpuset.cpus: 1\n" in text
    assert init(node, 200) == before
    allowed = node.run("grep", "Cpus_allowed_list", f"/proc/{before}/status", check=True).stdout.split()[1]
    assert allowed == "1"
    assert opens(node, 200, f"/dev/nvidia{gone[0]}") == "EPERM", "the rule is taken back; the node goes at the next start"
    assert opens(node, 200, "/dev/nvidiactl") == "ok" and not lxc(node, "sync", "200", "--gpus", "numa:1")["changed"]


def test_forms_are_converted_in_one_write_and_a_reboot_that_moves_the_number_finds_them(node: Machine) -> None:
    for vmid, form in ((200, "path"), (201, "dev"), (202, "number")):
        told = lxc(node, "sync", str(vmid), "--form", form)
        assert told["rc"] == 0 and told["changed"], told["findings"]
        text = node.read(CONFIG % vmid)
        assert ("\ndev0: " in text, "mount.entry" in text) == (form == "dev", form != "dev"), text
        assert ("devices.allow" in text) is (vmid != 201)
    node.reboot()
    node.settle()
    assert majors(node)["nvidia-uvm"] == 511
    assert opens(node, 200) == "ok" and cu_init(node) == 0, "a path is looked up at each start"
    for vmid in (201, 202):
        assert node.run("pct", "start", str(vmid)).returncode == 0
    assert (opens(node, 201), opens(node, 202)) == ("ok", "EPERM"), "a number is not"


def test_all_of_them_in_one_run_and_only_the_stale_one_changes(node: Machine) -> None:
    texts = {vmid: node.read(CONFIG % vmid) for vmid in (200, 201)}
    begun = {vmid: init(node, vmid) for vmid in (200, 201, 202)}
    told = lxc(node, "sync", "--all", "--restart", "always")
    assert told["rc"] == 0, told["findings"]
    assert [step["subject"] for step in told["steps"]] == ["ct:202"]
    assert [action["argv"][-1] for action in told["actions"]] == ["c 511:* rwm", "c 509:* rwm"], "one given, one taken back"
    assert opens(node, 202) == "ok" and {vmid: init(node, vmid) for vmid in begun} == begun, "nothing needed a restart"
    assert {vmid: node.read(CONFIG % vmid) for vmid in texts} == texts


def test_a_node_that_is_missing_at_the_start_stops_one_form_and_leaves_an_empty_file_in_the_other(node: Machine) -> None:
    node.run("rm", UVM, check=True)
    assert node.run("pct", "stop", "201").returncode == 0
    refused = node.run("pct", "start", "201")
    assert refused.returncode != 0 and f"Device {UVM} does not exist" in refused.stderr
    assert node.run("pct", "reboot", "200").returncode == 0
    shown = lxc(node, "show", "200")
    assert statuses(shown, "HT404") == ["fail"] and shown["rc"] == 1
    node.run("nvidia-modprobe", "-u", "-c=0", check=True)
    healed = lxc(node, "sync", "200", "--restart", "idle")
    assert healed["rc"] == 0 and {a["name"] for a in healed["actions"]} == {"restart"}, healed["findings"]
    assert opens(node, 200) == "ok" and statuses(healed, "HT437") == ["ok"]


def test_revert_puts_every_config_back(node: Machine) -> None:
    """Proxmox VE has rewritten none of them since, so they are byte for byte what they were."""
    done = node.run("hosttune", "revert", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "c 509:* rwm" in node.read(CONFIG % 200) and "/dev/nvidia7 " in node.read(CONFIG % 200)
    assert "devices.allow" not in node.read(CONFIG % 201) and "\ndev0: /dev/nvidia0,mode=0666\n" in node.read(CONFIG % 202)
