# SPDX-License-Identifier: Apache-2.0
"""The Proxmox face on a whole machine: what only systemd, a boot and true device nodes show. The rest is in tests/kernel."""

from __future__ import annotations

import json

from lab.machine import Machine

OPEN = ("import errno, os, sys\ntry: os.open(sys.argv[1], os.O_RDWR); print('ok')\n"
        "except OSError as refusal: print(errno.errorcode[refusal.errno])")  # fmt: skip
UVM = "/dev/nvidia-uvm"


def opens(guest: Machine, vmid: int, path: str = UVM) -> str:
    return guest.run("pct", "exec", str(vmid), "--", "python3", "-c", OPEN, path, check=True).stdout.strip()


def major(guest: Machine) -> int:
    return int(guest.run("stat", "-c", "%Hr", UVM, check=True).stdout)


def test_boot_has_mounted_etc_pve_and_started_the_onboot_container(module_guest: Machine) -> None:
    assert module_guest.run("systemctl", "is-active", "pve-cluster", "pve-guests").stdout.split() == ["active"] * 2
    assert module_guest.run("findmnt", "-n", "-o", "FSTYPE", "/etc/pve").stdout.strip() == "fuse"
    listed = [line.split()[:2] for line in module_guest.run("pct", "list", check=True).stdout.splitlines()[1:]]
    assert listed == [["200", "running"], ["201", "stopped"], ["202", "stopped"]]
    assert module_guest.run("hostname").stdout.strip() in module_guest.run("readlink", "/etc/pve/lxc").stdout


def test_each_form_meets_the_moved_major_in_its_own_way(module_guest: Machine) -> None:
    for vmid in (201, 202):
        done = module_guest.run("pct", "start", str(vmid))
        assert done.returncode == 0, done.stderr
    numeric = f"c {major(module_guest)}:* rwm" in module_guest.read("/etc/pve/lxc/200.conf")
    assert opens(module_guest, 200) == ("ok" if numeric else "EPERM")
    assert (opens(module_guest, 201), opens(module_guest, 202)) == ("ok", "ok")
    assert (
        "10.0.100.202/24" in module_guest.run("pct", "exec", "202", "--", "ip", "-4", "-o", "address", "show", "eth0").stdout
    )
    assert module_guest.run("ping", "-c1", "-W5", "10.0.100.202").returncode in (0, 127)  # 127: no ping in the image


def test_quorum_can_be_taken_away(module_guest: Machine) -> None:
    module_guest.run("lab-pve", "quorum", "off", check=True)
    try:
        assert json.loads(module_guest.read("/etc/pve/.members"))["cluster"]["quorate"] == 0
        assert module_guest.run("stat", "-c", "%a", "/etc/pve/lxc/200.conf").stdout == "440\n"
        assert "Permission denied" in module_guest.run("pct", "set", "200", "--onboot", "1", "--memory", "1024").stderr
    finally:
        module_guest.run("lab-pve", "quorum", "on", check=True)


def test_a_real_reboot_stops_the_containers_first_and_keeps_the_configs(module_guest: Machine) -> None:
    module_guest.write_pve("/etc/pve/lxc/200.conf", module_guest.read("/etc/pve/lxc/200.conf") + "lxc.environment: KEPT=1\n")
    before = module_guest.read("/etc/pve/lxc/200.conf")
    module_guest.reboot()
    assert module_guest.read("/etc/pve/lxc/200.conf") == before
    assert module_guest.run("pct", "status", "200").stdout == "status: running\n"
    told = module_guest.run("journalctl", "--no-pager", "-b", "-1", "-u", "pve-guests", "-o", "cat").stdout
    assert "Stopping CT 200" in told and "failed" not in told
