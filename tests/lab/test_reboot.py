# SPDX-License-Identifier: Apache-2.0
"""The founding story on a whole machine: the owner says once what is wanted, then reboots are nobody's work any more."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lab import deploy
from lab.image.build import REPOSITORY
from lab.machine import Machine
from tests.lab.hardware import DEVCTL, GPUS, device_controls, last_serial, majors, writes

CU_INIT = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"


def cu_init(guest: Machine) -> int:
    return int(guest.run("pct", "exec", "200", "--", "python3", "-c", CU_INIT, check=True).stdout)


def site(guest: Machine) -> dict[str, int]:
    """Run site.yml against the guest, with the owner's word; the counters of its recap."""
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run([playbook, "-i", deploy.inventory(guest, mode="apply"), "site.yml"], cwd=REPOSITORY, text=True,
                          capture_output=True, timeout=600, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    recap = re.search(r"^lab +: (.*)$", done.stdout, re.MULTILINE)
    assert recap is not None, done.stdout
    return {key: int(number) for key, number in (word.split("=") for word in shlex.split(recap[1]))}


def ours(guest: Machine) -> set[tuple[str, int, int, int]]:
    """Writes of this boot to GPUs that neither the kernel nor the loading of its modules made."""
    return {
        (write.bdf, write.register, write.old, write.value)
        for write in writes(guest)
        if write.bdf in GPUS and not write.by.startswith(("kworker", "systemd-modules"))
    }


@pytest.fixture(scope="module")
def declared(module_guest: Machine) -> Machine:
    """The guest after the founding reboot, and after the owner has run site.yml once."""
    module_guest.reboot()
    module_guest.settle()
    assert (majors(module_guest)["nvidia-uvm"], cu_init(module_guest)) == (511, 999)
    site(module_guest)
    return module_guest


def test_one_run_heals_it_without_a_restart_and_a_second_changes_nothing(declared: Machine) -> None:
    assert cu_init(declared) == 0
    assert device_controls(declared) == {"593f"}
    before = last_serial(declared)
    assert site(declared)["changed"] == 0
    assert writes(declared, before) == []


def test_after_the_next_reboot_all_is_right_before_anybody_looks(declared: Machine) -> None:
    declared.reboot()
    declared.settle()
    assert majors(declared)["nvidia-uvm"] == 509
    assert cu_init(declared) == 0
    assert declared.read("/proc/sys/kernel/numa_balancing") == "0\n"
    assert device_controls(declared) == {"593f"}
    assert ours(declared) == {(bdf, DEVCTL, 0x293F, 0x593F) for bdf in GPUS}
    config = declared.read("/etc/pve/lxc/200.conf")
    assert "c 509:* rwm" in config and "c 511:* rwm" not in config


def test_a_word_for_the_kernel_keeps_hosttune_out_of_the_boot(declared: Machine) -> None:
    config = declared.read("/etc/pve/lxc/200.conf")
    declared.reboot(append="hosttune=off")
    declared.settle()
    assert "hosttune=off" in declared.read("/proc/cmdline").split()
    assert (majors(declared)["nvidia-uvm"], cu_init(declared)) == (511, 999)
    assert ours(declared) == set()
    assert declared.read("/etc/pve/lxc/200.conf") == config
