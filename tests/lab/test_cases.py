# SPDX-License-Identifier: Apache-2.0
"""Each way in which `make lab-break` breaks the guest leaves what its sentence says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab import cases
from lab.machine import Machine

CU_INIT = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
OPEN = """\
import errno, os, sys
try: os.open(sys.argv[1], os.O_RDWR); print("ok")
except OSError as e: print(errno.errorcode[e.errno])
"""


def cu_init(guest: Machine) -> str:
    return guest.run("pct", "exec", "200", "--", "python3", "-c", CU_INIT, check=True).stdout.strip()


def opens(guest: Machine, path: str) -> str:
    return guest.run("python3", "-c", OPEN, path, check=True).stdout.strip()


def opens_inside(guest: Machine, path: str) -> str:
    return guest.run("pct", "exec", "200", "--", "python3", "-c", OPEN, path, check=True).stdout.strip()


def width(guest: Machine) -> str:
    return guest.read("/sys/bus/pci/devices/0000:41:00.0/current_link_width").strip()


def gpus(guest: Machine) -> str:
    return str(len(guest.run("lspci", "-d", "10de:").stdout.splitlines()))


def config(guest: Machine) -> str:
    return guest.run("setpci", "-s", "41:00.0", "0.l").stdout.strip()


def pve_write(guest: Machine) -> str:
    return "refused" if guest.run("sh", "-c", "echo >>/etc/pve/lxc/200.conf").returncode else "taken"


Look = Callable[[Machine], str]


@pytest.mark.parametrize(
    "name, look, before, after",
    [
        ("moved-live", cu_init, "0", "999"),
        ("moved-live", lambda guest: opens(guest, "/dev/nvidia-uvm"), "ok", "ok"),
        ("mismatch", cu_init, "0", "803"),
        ("sick-gpu", lambda guest: opens_inside(guest, "/dev/nvidia2"), "ok", "EIO"),
        ("link-x8", width, "16", "8"),
        ("gpu-gone", gpus, "8", "7"),
        ("fell-off", config, "2bb510de", "ffffffff"),
        ("no-quorum", pve_write, "taken", "refused"),
        ("no-nodes", lambda guest: opens(guest, "/dev/nvidia-uvm"), "ok", "ENOENT"),
        ("no-module", cu_init, "0", "100"),
        ("founding", cu_init, "0", "999"),
    ],
)
def test_it_breaks_what_it_says(guest: Machine, name: str, look: Look, before: str, after: str) -> None:
    assert look(guest) == before
    cases.apply(name, guest)
    assert look(guest) == after
