# SPDX-License-Identifier: Apache-2.0
"""The Proxmox face on a whole machine: what only systemd, a boot and true device nodes show. The rest is in tests/kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from lab.machine import Machine

OPEN = ("import errno, os, sys\ntry: os.open(sys.argv[1], os.O_RDWR); print('ok')\n"
        "except OSError as refusal: print(errno.errorcode[refusal.errno])")  # fmt: skip
UVM = "/dev/nvidia-uvm"


@pytest.fixture(scope="module")
def guest() -> Iterator[Machine]:
    """A guest from the snapshot, for this module alone."""
    if not os.environ.get("HOSTTUNE_LAB"):
        pytest.skip("HOSTTUNE_LAB=1 is not set: this boots a virtual machine, for minutes where there is no image yet")
    from lab import snapshot
    from lab.image.build import image

    machine = snapshot.resume(f"proxmox-face-{os.getpid()}", image())
    yield machine
    print(machine.console(), machine.journal())  # shown when a test has failed
    machine.destroy()


def opens(guest: Machine, vmid: int, path: str = UVM) -> str:
    return guest.run("pct", "exec", str(vmid), "--", "python3", "-c", OPEN, path, check=True).stdout.strip()


def major(guest: Machine) -> int:
    return int(guest.run("stat", "-c", "%Hr", UVM, check=True).stdout)


def test_boot_has_mounted_etc_pve_and_started_the_onboot_container(guest: Machine) -> None:
    assert guest.run("systemctl", "is-active", "pve-cluster", "pve-guests").stdout.split() == ["active"] * 2
    assert guest.run("findmnt", "-n", "-o", "FSTYPE", "/etc/pve").stdout.strip() == "fuse"
    listed = [line.split()[:2] for line in guest.run("pct", "list", check=True).stdout.splitlines()[1:]]
    assert listed == [["200", "running"], ["201", "stopped"], ["202", "stopped"]]
    assert guest.run("hostname").stdout.strip() in guest.run("readlink", "/etc/pve/lxc").stdout


def test_each_form_meets_the_moved_major_in_its_own_way(guest: Machine) -> None:
    for vmid in (201, 202):
        done = guest.run("pct", "start", str(vmid))
        assert done.returncode == 0, done.stderr
    numeric = f"c {major(guest)}:* rwm" in guest.read("/etc/pve/lxc/200.conf")
    assert opens(guest, 200) == ("ok" if numeric else "EPERM")
    assert (opens(guest, 201), opens(guest, 202)) == ("ok", "ok")
    assert "10.0.100.202/24" in guest.run("pct", "exec", "202", "--", "ip", "-4", "-o", "address", "show", "eth0").stdout
    assert guest.run("ping", "-c1", "-W5", "10.0.100.202").returncode in (0, 127)  # 127: no ping in the image


def test_quorum_can_be_taken_away(guest: Machine) -> None:
    guest.run("lab-pve", "quorum", "off", check=True)
    try:
        assert json.loads(guest.read("/etc/pve/.members"))["cluster"]["quorate"] == 0
        assert guest.run("stat", "-c", "%a", "/etc/pve/lxc/200.conf").stdout == "440\n"
        assert "Permission denied" in guest.run("pct", "set", "200", "--onboot", "1", "--memory", "1024").stderr
    finally:
        guest.run("lab-pve", "quorum", "on", check=True)


def test_a_real_reboot_stops_the_containers_first_and_keeps_the_configs(guest: Machine) -> None:
    guest.write_pve("/etc/pve/lxc/200.conf", guest.read("/etc/pve/lxc/200.conf") + "lxc.environment: KEPT=1\n")
    before = guest.read("/etc/pve/lxc/200.conf")
    guest.reboot()
    assert guest.read("/etc/pve/lxc/200.conf") == before
    assert guest.run("pct", "status", "200").stdout == "status: running\n"
    told = guest.run("journalctl", "--no-pager", "-b", "-1", "-u", "pve-guests", "-o", "cat").stdout
    assert "Stopping CT 200" in told and "failed" not in told
