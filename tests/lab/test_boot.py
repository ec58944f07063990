# SPDX-License-Identifier: Apache-2.0
"""What can be in the way of hosttune at a boot, and that it is never in the way of anybody else.

The tests of `kept` share one guest and stand in the order in which they run: each boot moves nvidia-uvm, 509, 511, 509 ...
"""

from __future__ import annotations

import json
import time

import pytest

from lab import cases, deploy
from lab.machine import Machine
from tests.lab.hardware import device_control, device_controls, majors
from tests.lab.owner import cu_init, said, site

CONFIG = "/etc/pve/lxc/200.conf"
DEVICES = "hosttune-devices.service"
RNG = "0000:01:00.0"
"""One of QEMU's own devices; its Device Control register takes no MaxReadReq."""
WAITS = "no quorum: waiting up to 60 s"


def until_it_says(guest: Machine, unit: str, words: str, limit: float = 240) -> None:
    end = time.monotonic() + limit
    while words not in said(guest, unit):
        assert time.monotonic() < end, said(guest, unit)
        time.sleep(1)


def until_it_is(guest: Machine, unit: str, state: str, limit: float = 240) -> None:
    end = time.monotonic() + limit
    while guest.run("systemctl", "show", "-P", "ActiveState", unit, check=True).stdout.strip() != state:
        assert time.monotonic() < end, said(guest, unit)
        time.sleep(1)


@pytest.fixture(scope="module")
def kept(module_guest: Machine) -> Machine:
    """A guest whose owner has run site.yml; nvidia-uvm has 509, as container 200 allows."""
    deploy.hosttune(module_guest)
    site(module_guest, "host,containers")
    return module_guest


def test_a_write_that_does_not_stick_is_a_failure_whatever_setpci_says(kept: Machine) -> None:
    """For a moment QEMU's random number generator passes for a ninth GPU."""
    folder = kept.run("readlink", "-f", "/sys/bus/pci/devices/" + RNG, check=True).stdout.strip()
    before = device_control(kept, RNG)
    for name, text in (("vendor", "0x10de\n"), ("class", "0x030200\n")):
        kept.write("/run/played/" + name, text)
        kept.run("mount", "--bind", "/run/played/" + name, f"{folder}/{name}", check=True)
    try:
        done = kept.run("hosttune", "apply", "pcie-max-read-request", "-o", "json")
    finally:
        kept.run("umount", folder + "/vendor", folder + "/class", check=True)
    assert done.returncode == 1, done.stdout
    (found,) = [f for f in json.loads(done.stdout)["hosts"][0]["findings"] if f["subject"] == RNG]
    assert found["status"] == "fail" and "did not stick: wrote 4096, read back 128; likely: " in found["summary"], found
    assert device_control(kept, RNG) == before
    assert device_controls(kept) == {"593f"}


def test_a_quorum_that_comes_late_is_waited_for(kept: Machine) -> None:
    kept.run("lab-pve", "quorum", "off", check=True)
    kept.reboot()
    until_it_says(kept, DEVICES, WAITS)
    kept.run("lab-pve", "quorum", "on", check=True)
    kept.settle()
    assert majors(kept)["nvidia-uvm"] == 511
    assert "c 511:* rwm" in kept.read(CONFIG)
    assert cu_init(kept) == 0
    assert "devices: all is as wanted" in said(kept, DEVICES)


def test_a_quorum_that_does_not_come_delays_no_guest_for_ever(kept: Machine) -> None:
    """hosttune gives up in time and says so; guests then wait for the quorum only, as Proxmox VE has them."""
    config = kept.read(CONFIG)
    kept.run("lab-pve", "quorum", "off", check=True)
    kept.reboot()
    until_it_is(kept, DEVICES, "failed")
    told = said(kept, DEVICES)
    assert WAITS in told and "devices: 1 not as wanted" in told and "quorum" in told.split(WAITS)[1]
    until_it_is(kept, "pve-guests.service", "activating")
    kept.run("lab-pve", "quorum", "on", check=True)
    kept.settle()
    assert kept.run("pct", "status", "200").stdout == "status: running\n"
    assert (majors(kept)["nvidia-uvm"], kept.read(CONFIG), cu_init(kept)) == (509, config, 999)


def test_without_the_drivers_modules_a_container_that_can_do_without_starts(kept: Machine) -> None:
    """A kernel came without them. Container 202 has `dev[n]`, which lets it start only with its GPUs."""
    site(kept, "host,containers", deploy.inventory(kept, mode="apply", gpu="optional"))
    cases.apply("no-module", kept)
    assert kept.run("pct", "status", "200").stdout == "status: running\n"
    assert cu_init(kept) == 100
    assert "modprobe nvidia:" in said(kept, DEVICES), said(kept, DEVICES)
    told = kept.run("hosttune", "doctor", "--ct", "200")
    assert told.returncode == 1 and "HT315" in told.stdout.splitlines()[0], told.stdout
    refused = kept.run("pct", "start", "202")
    assert refused.returncode != 0 and "/dev/nvidia" in refused.stderr


def test_a_container_converted_to_dev_form_survives_the_next_move_untouched(guest: Machine) -> None:
    deploy.hosttune(guest)
    done = guest.run("hosttune", "lxc", "sync", "200", "--form", "dev", "--restart", "always", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    config = guest.read(CONFIG)
    assert "dev0: /dev/nvidia0" in config and "c 509:* rwm" not in config and "dev/nvidia-uvm none bind" not in config
    assert cu_init(guest) == 0
    guest.reboot()
    guest.settle()
    assert majors(guest)["nvidia-uvm"] == 511
    assert (guest.read(CONFIG), cu_init(guest)) == (config, 0)
