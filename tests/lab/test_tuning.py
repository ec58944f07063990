# SPDX-License-Identifier: Apache-2.0
"""Settings on a whole machine: made so, kept while GPUs come and go, kept over a reboot, and taken back without a trace.

The tests share one guest and stand in the order in which they run. The played GPUs keep their registers when they are removed or
their driver goes, which real ones do not: what a reset would do is written before, with setpci through /proc/bus/pci, which
nobody hears. Written through sysfs it is a person's value.
nvidia-persistenced and irqbalance are units that sleep: of either hosttune sees a unit, a process and a link, and runs systemctl.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lab import deploy
from lab.machine import Machine
from tests.lab import fingerprint
from tests.lab.hardware import DEVCTL, GPUS, device_control, device_controls, last_serial, writes
from tests.lab.owner import said

PROFILE = "/root/profile.json"
MORE = {
    "swappiness": "10", "max-map-count": "1048576", "overcommit-memory": "1", "transparent-hugepages": "never",
    "shmem-hugepages": "advise", "memlock": "infinity", "remove-ipc": "no", "irqbalance": "off", "pcie-power-control": "on",
}  # fmt: skip
"""Beside those of pcie-inference, every other setting that this machine has and that is written."""
WANTED = {"mode": "apply", "knobs": {"profile": "pcie-inference", **MORE}}
ABSENT = {"cpu-governor"}
"""Of these settings the guest has none: QEMU plays no CPU frequencies (tests/kernel/test_knobs_host.py)."""
WATCH, RECHECK = "hosttune-watch.service", "hosttune-recheck.service"
PATIENCE = 120
"""Seconds until a test gives up; the machine is emulated, and shares its cores."""
PLAYED = """\
[Unit]
Description=plays {0}
[Service]
RuntimeDirectory={0}
ExecStart=@/usr/bin/sleep /usr/bin/{0} infinity
ExecStartPost=/bin/sh -c 'echo $MAINPID >/run/{0}/{0}.pid'
[Install]
WantedBy=multi-user.target
"""
OF_EACH_BOOT = ("/sys/module/nvidia_uvm/parameters/major", "/proc/sys/vm/user_reserve_k", "/proc/sys/vm/admin_reserve_k")
"""The number that moves in this lab, and what the kernel makes of the memory that is free when it starts."""
ASLEEP = "/sys/bus/pci/devices/%s/power/control" % GPUS[6]


def look(guest: Machine) -> dict[str, str]:
    """Every file, every value, every register."""
    script = Path(fingerprint.__file__).read_text()
    found: dict[str, str] = json.loads(guest.run("python3", "-", input=script, check=True, timeout=300).stdout)
    return found


def differ(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {path for path in {*one, *other} if one.get(path) != other.get(path)}


def apply(guest: Machine) -> dict[str, Any]:
    done = guest.run("hosttune", "apply", "--profile", PROFILE, "-o", "json", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def lose(guest: Machine, *bdfs: str) -> None:
    """MaxReadReq back at its default: what a reset does, as silently."""
    for bdf in bdfs:
        guest.run("setpci", "-A", "linux-proc", "-s", bdf, "CAP_EXP+8.w=2000:7000", check=True)


def use_a_gpu(guest: Machine) -> None:
    """A process opens a GPU and ends."""
    guest.run("sh", "-c", "exec 3<>/dev/nvidia0", check=True)


def until(guest: Machine, wanted: set[str]) -> None:
    limit = time.monotonic() + PATIENCE
    while device_controls(guest) != wanted:
        assert time.monotonic() < limit, "%s\n%s" % (device_controls(guest), said(guest, WATCH))
        time.sleep(0.2)


def at_rest(guest: Machine) -> None:
    """Until the watch has done what it does after an event, its second look two seconds later included. What is lost in the
    middle of a look is seen by the hourly one alone."""
    pid = guest.run("systemctl", "show", "-p", "MainPID", "--value", WATCH, check=True).stdout.strip()
    limit, used = time.monotonic() + PATIENCE, ""
    while used != (used := " ".join(guest.run("cat", "/proc/%s/stat" % pid, check=True).stdout.split()[13:15])):
        assert time.monotonic() < limit, said(guest, WATCH)
        time.sleep(4)


def until_it_says(guest: Machine, words: str) -> None:
    limit = time.monotonic() + PATIENCE
    while words not in said(guest, WATCH):
        assert time.monotonic() < limit, said(guest, WATCH)
        time.sleep(0.5)


@pytest.fixture(scope="module")
def host(module_guest: Machine) -> Machine:
    """On which nothing is as wanted."""
    deploy.hosttune(module_guest)
    module_guest.write(PROFILE, json.dumps(WANTED))
    for name in ("nvidia-persistenced", "irqbalance"):
        module_guest.write("/usr/lib/systemd/system/%s.service" % name, PLAYED.format(name))
    module_guest.run("systemctl", "enable", "--now", "irqbalance", check=True)
    module_guest.run("sysctl", "--write", "vm.zone_reclaim_mode=1", check=True)
    module_guest.run("sh", "-c", "echo auto >" + ASLEEP, check=True)
    return module_guest


@pytest.fixture(scope="module")
def before(host: Machine) -> dict[str, str]:
    """The machine before hosttune changed anything."""
    host.run("hosttune", "check", "--profile", PROFILE)  # a look changes nothing, but Python keeps its bytecode
    return look(host)


def test_every_setting_applied_and_reverted_leaves_files_values_and_registers_byte_for_byte(
    host: Machine, before: dict[str, str]
) -> None:
    serial = last_serial(host)
    done = apply(host)
    found = done["hosts"][0]["findings"]
    assert {f["name"] for f in found if f["status"] == "ok"} >= {"pcie-max-read-request", "nvidia-persistence", *MORE}
    assert {f["name"] for f in found if f["status"] != "ok"} == ABSENT, found
    assert device_controls(host) == {"593f"}
    again = last_serial(host)
    converged = apply(host)
    assert converged["changed"] is False and last_serial(host) == again
    assert converged["hosts"][0]["effects"] == [], "a converged apply writes nothing"
    changed = differ(before, look(host))
    assert changed >= {ASLEEP, *("/sys/bus/pci/devices/%s/config" % bdf for bdf in GPUS)}
    assert changed >= {"/proc/sys/" + name for name in ("kernel/numa_balancing", "vm/zone_reclaim_mode", "vm/swappiness",
                                                        "vm/max_map_count", "vm/overcommit_memory")}  # fmt: skip
    reverted = host.run("hosttune", "revert", "-o", "json", timeout=300)
    assert reverted.returncode == 0, reverted.stdout + reverted.stderr
    assert differ(before, look(host)) == set()
    made = {(w.bdf, w.register, w.size, w.old, w.value) for w in writes(host, serial)}
    assert made == {(bdf, DEVCTL, 2, *pair) for bdf in GPUS for pair in ((0x293F, 0x593F), (0x593F, 0x293F))}
    assert host.run("systemctl", "is-active", WATCH).stdout == "inactive\n", "and what it started is ended"


def test_check_and_topo_tell_the_machine_as_lspci_does(host: Machine) -> None:
    told = json.loads(host.run("hosttune", "topo", "-o", "json", check=True).stdout)
    gpus = [d for d in told["devices"] if d["kind"] == "gpu"]
    assert [g["bdf"] for g in gpus] == list(GPUS) and [g["node"] for g in gpus] == [0] * 4 + [1] * 4
    assert {(g["link"]["width"], g["link"]["speed"]) for g in gpus} == {(16, 32.0)}
    assert told["paths"]["0"]["3"] == "NODE" and told["paths"]["3"]["4"] == "SYS"
    checked = host.run("hosttune", "check", "pcie-max-read-request", "--profile", PROFILE)
    assert checked.returncode == 1 and "8 GPUs" in checked.stdout, checked.stdout


def test_a_gpu_that_is_removed_and_comes_back_is_put_right_on_the_event(host: Machine) -> None:
    apply(host)
    until_it_says(host, "watching:")
    lose(host, GPUS[2])
    host.run("sh", "-c", "echo 1 > /sys/bus/pci/devices/%s/remove; echo 1 > /sys/bus/pci/rescan" % GPUS[2], check=True)
    until(host, {"593f"})
    until_it_says(host, "changed %s MaxReadReq" % GPUS[2])
    journal = host.run("hosttune", "journal", check=True).stdout
    assert journal.count("%s MaxReadReq: 512 → 4096" % GPUS[2]) >= 2, journal


def test_a_reset_that_the_kernel_makes_keeps_the_register_and_one_inside_the_driver_is_put_right_when_a_node_is_closed(
    host: Machine,
) -> None:
    at_rest(host)
    serial = last_serial(host)
    host.run("sh", "-c", "echo 1 > /sys/bus/pci/devices/%s/reset" % GPUS[3], check=True)
    made = [w for w in writes(host, serial) if w.bdf == GPUS[3] and w.register == DEVCTL]
    assert [w.value >> 15 for w in made if w.value >> 15] == [1], "a function level reset"
    assert made[-1].value == 0x593F and made[-1].by != "setpci", "what the kernel had saved"
    at_rest(host)
    lose(host, GPUS[3])
    use_a_gpu(host)
    until(host, {"593f"})
    until_it_says(host, "MaxReadReq was lost by %s:" % GPUS[3])


def test_a_value_that_somebody_wrote_is_his_until_he_applies(host: Machine) -> None:
    host.run("setpci", "-s", GPUS[4], "CAP_EXP+8.w=3000:7000", check=True)
    until_it_says(
        host, "%s: somebody wrote to its config space: MaxReadReq is 1024, want 4096; left as it is" % GPUS[4]
    )
    use_a_gpu(host)
    lose(host, GPUS[6])
    use_a_gpu(host)
    until(host, {"593f", "393f"})
    apply(host)
    assert device_controls(host) == {"593f"}


def test_a_driver_that_is_loaded_again_finds_its_registers_right(host: Machine) -> None:
    host.run("modprobe", "-r", "nvidia-uvm", "nvidia", check=True)
    lose(host, *GPUS)
    host.run("modprobe", "nvidia", check=True)
    until(host, {"593f"})
    host.run("modprobe", "nvidia-uvm", "major=509", check=True)


def test_what_somebody_wrote_is_told_by_the_recheck_and_changed_by_nobody(host: Machine) -> None:
    assert host.run("systemctl", "start", RECHECK, timeout=PATIENCE).returncode == 0, said(host, RECHECK)
    host.run("setpci", "-s", GPUS[5], "CAP_EXP+8.w=2000:7000", check=True)
    assert host.run("systemctl", "start", RECHECK, timeout=PATIENCE).returncode != 0
    assert "would change %s MaxReadReq" % GPUS[5] in said(host, RECHECK)
    assert device_control(host, GPUS[5]) == "293f"
    told = host.run("hosttune", "status", "--profile", PROFILE)
    assert told.returncode == 1 and "HT201" in told.stdout and "HT911  hosttune-recheck.service" in told.stdout, (
        told.stdout
    )
    apply(host)


def test_after_a_reboot_settings_watch_and_timer_are_back_by_themselves(host: Machine) -> None:
    host.reboot()
    host.settle()
    assert device_controls(host) == {"593f"} and host.read("/proc/sys/kernel/numa_balancing") == "0\n"
    until_it_says(host, "watching:")
    assert host.run("systemctl", "is-active", "hosttune-recheck.timer").stdout == "active\n"
    told = host.run("hosttune", "check", "--profile", PROFILE)
    assert told.returncode == 0, told.stdout


def test_revert_after_a_reboot_takes_back_what_is_still_there(host: Machine, before: dict[str, str]) -> None:
    """The registers were lost and set again by the boot unit: the journal has both, and the last value goes."""
    done = host.run("hosttune", "revert", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert device_controls(host) == {"293f"}
    left = {path for path in differ(before, look(host)) if not path.startswith(("/var/", *OF_EACH_BOOT))}
    assert left == set()
