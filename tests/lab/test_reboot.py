# SPDX-License-Identifier: Apache-2.0
"""The founding story on a whole machine: the owner says once what is wanted, then reboots are nobody's work any more.

The tests share one guest and stand in the order in which they run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.machine import Machine
from tests.lab.hardware import DEVCTL, GPUS, device_controls, last_serial, majors, writes
from tests.lab.owner import cu_init, said, site

TINY = "tiny/tiny.gguf"


def ours(guest: Machine, after: int = 0) -> set[tuple[str, int, int, int]]:
    """Writes of this boot to GPUs that neither the kernel nor the loading of its modules made."""
    return {
        (write.bdf, write.register, write.old, write.value)
        for write in writes(guest, after)
        if write.bdf in GPUS and not write.by.startswith(("kworker", "systemd-modules"))
    }


def sha256(guest: Machine, path: str, inside: bool = False) -> str:
    """Of a file, "" if there is none."""
    enter = ("pct", "exec", "200", "--") if inside else ()
    return guest.run(*enter, "sha256sum", path).stdout.partition(" ")[0]


def in_memory(guest: Machine) -> list[bool]:
    """Whether the model is in memory, on the host and where an engine in the container reads it."""
    source = sha256(guest, "/srv/models/" + TINY)
    assert source
    return [sha256(guest, "/dev/shm/models/" + TINY) == source, sha256(guest, "/srv/models/" + TINY, True) == source]


ASK = """\
import json, urllib.request
data = json.dumps({"prompt": "def", "max_tokens": 4, "ignore_eos": True}).encode()
asked = urllib.request.Request("http://127.0.0.1:30100/v1/completions", data, {"Content-Type": "application/json"})
print(urllib.request.urlopen(asked, timeout=100).read().decode())
"""
READERS = """\
import os, pathlib, sys
file = os.stat(sys.argv[1])
mark = " %02x:%02x %d " % (os.major(file.st_dev), os.minor(file.st_dev), file.st_ino)
for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
    if any(mark in line for line in maps.read_text().splitlines()):
        print(os.readlink(maps.with_name("exe")).rpartition("/")[2].rstrip("0123456789."))
"""


def answer(guest: Machine) -> dict[str, Any]:
    """What the engine in the container says to a prompt."""
    told: dict[str, Any] = json.loads(guest.run("pct", "exec", "200", "--", "python3", "-c", ASK, check=True).stdout)
    return told


def readers(guest: Machine) -> list[str]:
    """Programs that have the staged file mapped: by its device and inode, whatever its path is where they are."""
    return guest.run("python3", "-c", READERS, "/dev/shm/models/" + TINY, check=True).stdout.split()


@pytest.fixture(scope="module")
def declared(module_guest: Machine) -> Machine:
    """The guest after the founding reboot."""
    module_guest.reboot()
    module_guest.settle()
    assert (majors(module_guest)["nvidia-uvm"], cu_init(module_guest)) == (511, 999)
    return module_guest


def test_one_run_heals_it_without_a_restart_and_a_second_changes_nothing(declared: Machine) -> None:
    begun, before = declared.run("lxc-info", "-n", "200", "-pH", check=True).stdout, last_serial(declared)
    site(declared, "host,containers")
    assert cu_init(declared) == 0
    assert declared.run("lxc-info", "-n", "200", "-pH").stdout == begun, "the container was not restarted"
    assert ours(declared, before) == {(bdf, DEVCTL, 0x293F, 0x593F) for bdf in GPUS}, "one masked write for each GPU"
    before = last_serial(declared)
    assert site(declared, "host,containers")["changed"] == 0
    assert writes(declared, before) == []


def test_a_model_is_staged_once(declared: Machine) -> None:
    assert site(declared, "models")["changed"] > 0
    assert in_memory(declared) == [True, True]
    assert site(declared, "models")["changed"] == 0


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
    assert in_memory(declared) == [True, True], said(declared, "hosttune-stage")
    assert "models: all is as wanted" in said(declared, "hosttune-stage")


def test_a_word_for_the_kernel_keeps_hosttune_out_of_the_boot(declared: Machine) -> None:
    config = declared.read("/etc/pve/lxc/200.conf")
    declared.reboot(append="hosttune=off")
    declared.settle()
    assert "hosttune=off" in declared.read("/proc/cmdline").split()
    assert (majors(declared)["nvidia-uvm"], cu_init(declared)) == (511, 999)
    assert ours(declared) == set()
    assert declared.read("/etc/pve/lxc/200.conf") == config
    assert in_memory(declared) == [False, False]


def test_a_model_that_a_reboot_took_is_brought_back_by_the_next_run(declared: Machine) -> None:
    """The host was rebooted between staging and serving, and nothing of hosttune ran at that boot."""
    site(declared, "host,containers,models,serving")
    assert in_memory(declared) == [True, True]
    assert cu_init(declared) == 0
    assert answer(declared)["usage"]["completion_tokens"] == 4
    assert readers(declared) == ["python"], "the engine reads the very file that was staged"
