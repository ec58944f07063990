# SPDX-License-Identifier: Apache-2.0
"""The harness itself: a guest that ends is noticed at once, and one that reboots by itself comes back."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from lab import LabError
from lab.machine import Machine


def test_a_resumed_guest_lives_in_the_present(module_guest: Machine) -> None:
    assert abs(int(module_guest.run("date", "+%s").stdout) - time.time()) < 60


def test_input_arguments_and_exit_codes_arrive_as_they_are(module_guest: Machine) -> None:
    done = module_guest.run("sh", "-c", 'cat; printf "[%s]" "$@"; exit 7', "sh", "a b", "$HOME", "'", input="in;put\n")
    assert (done.returncode, done.stdout) == (7, "in;put\n[a b][$HOME][']")
    module_guest.write("/root/deep/folder/file", b"\0\xff", mode=0o600)
    assert (
        module_guest.run("sh", "-c", "stat -c %a /root/deep/folder/file; od -An -tx1 /root/deep/folder/file").stdout
        == "600\n 00 ff\n"
    )


def test_the_guest_reaches_nothing_outside(module_guest: Machine) -> None:
    """Not even this machine, which QEMU would otherwise show as 10.0.2.2."""
    port = re.search(r"Port (\d+)", module_guest.ssh_config.read_text())
    assert port is not None
    ask = (
        "import socket\ntry: socket.create_connection(('10.0.2.2', %s), 3)\nexcept OSError as e: print('no')" % port[1]
    )
    assert module_guest.run("python3", "-c", ask).stdout == "no\n"


def test_a_guest_that_is_switched_off_has_ended(guest: Machine) -> None:
    before = guest.boot_id()
    guest.run("systemctl", "poweroff")
    with pytest.raises(LabError, match="has ended"):
        guest.wait_rebooted(before, limit=120)
    assert "guest-shutdown, exit code 0" in (guest.folder / "supervisor.log").read_text()
    assert not guest.alive()


def test_a_dead_qemu_ends_a_wait_at_once(guest: Machine) -> None:
    begun = re.findall(r"QEMU (\d+) begins", (guest.folder / "supervisor.log").read_text())
    os.kill(int(begun[-1]), signal.SIGKILL)
    with pytest.raises(LabError, match="has ended.\n(.*\n)*QEMU .* exit code -9"):
        guest.settle()
