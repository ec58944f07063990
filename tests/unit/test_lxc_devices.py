# SPDX-License-Identifier: Apache-2.0
"""The Ansible module lxc_devices has every option that `hosttune lxc sync` has, and foresees in check mode what it then does.

On paper: what Proxmox VE would drop of a config can only be had with one. tests/ansible runs it on a real container.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from hosttune.cli.lxc import sync_
from hosttune.core.wanted.keys import CONTAINER
from tests.unit.test_lxc_store import a_node, inside, running

MODULE = importlib.import_module("ansible_collections.hosttune.hosttune.plugins.modules.lxc_devices")
CONFIG = "arch: amd64\n" + "".join(
    "lxc.mount.entry: /dev/%s dev/%s none bind,optional,create=file\n" % (name, name)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")) + "".join(
    "lxc.cgroup2.devices.allow: c %d:* rwm\n" % major for major in (195, 511, 200))  # fmt: skip
PATH = "/etc/pve/lxc/200.conf"
WRITABLE = {"/etc/pve/lxc": {"type": "dir", "mode": "0755"}}


def task(door: Any, check: bool = False, **options: Any) -> dict[str, Any]:
    given = {name: row.get("default") for name, row in MODULE.SPEC.items()}
    told: dict[str, Any] = MODULE.synced(door, {**given, "mode": "apply", **options}, check)
    return told


def test_each_option_of_the_command_is_one_of_the_task_or_of_a_container() -> None:
    given = [option for option in sync_.params if isinstance(option, click.Option)]
    options = {max(option.opts, key=len).lstrip("-").replace("-", "_") for option in given}
    face = {"dry_run", "output", "strict", "verbose", "ascii", "color"}  # check mode is the dry run; no terminal is looked at
    assert options - face - set(MODULE.SPEC) - set(CONTAINER.keys) == set()


def test_repair_is_foreseen_done_and_then_nothing_is_left_to_do() -> None:
    indented = CONFIG.replace("lxc.cgroup2.devices.allow: c 195", "\tlxc.cgroup2.devices.allow: c 195").encode()
    mine: dict[str, Any] = {"containers": {"200": {"gpus": "all"}}, "repair": True}
    (mended,) = [step["after"] for step in task(a_node(indented, nodes=WRITABLE), True, **mine)["steps"]]
    (kept,) = [step["after"] for step in task(a_node(indented, nodes=WRITABLE), True, containers=mine["containers"])["steps"]]
    assert "\tlxc." in kept and "\tlxc." not in mended
    door = a_node(indented, nodes=WRITABLE)
    seen = task(door, True, **mine)
    assert seen["changed"] and door.effects == []
    done = task(door, **mine)
    assert done["changed"] and done["diff"] == seen["diff"] and door.read(PATH) == mended
    door.effects.clear()
    assert not task(door, **mine)["changed"]


def test_a_major_that_was_named_is_dropped_and_one_that_is_none_is_refused() -> None:
    door = a_node(CONFIG.encode(), nodes=WRITABLE)
    assert not task(door, True, containers={"200": {"gpus": "all"}})["changed"]
    assert task(door, containers={"200": {"gpus": "all"}}, drop=[200])["changed"] and "c 200:" not in door.read(PATH)
    (refused,) = task(door, True, containers={"200": {}}, drop=[512])["findings"]
    assert refused["id"] == "HT428" and "512 is no major" in refused["summary"]


def test_all_takes_those_with_gpus_that_nobody_declared_and_restarts_none_of_them() -> None:
    door = running(CONFIG.encode(), inside(nvidia_uvm={"rdev": "509:0", "nlink": 0}))
    assert task(door)["findings"] == []
    told = task(door, all=True)
    assert told["actions"] == [] and door.effects == [], "a restart is never done where nobody said so"
    assert "HT406" in {f["id"] for f in told["findings"] if f["status"] == "fail" and f["machine"] == "ct:200"}
    assert "ct:200" not in str(task(running(b"arch: amd64\n", {}), all=True)["findings"])
