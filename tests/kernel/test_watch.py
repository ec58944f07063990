# SPDX-License-Identifier: Apache-2.0
"""The watch on this kernel's own events: a real socket, real announcements, the real setpci.

No GPU comes or goes here (tests/lab does that on a whole machine). What the kernel can be asked to announce is any device it has:
writing `add` to a device's `uevent` file makes it do so. Only which device wakes the watch is played.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core import uevents
from hosttune.core.wanted.profile import PATH
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.pci_tree import PciFunction
from tests.kernel.view import unmount

GPU = "0000:11:00.0"
JOURNAL = Path("/var/lib/hosttune/journal.jsonl")
DEVICE = Path("/sys/devices/virtual/mem/null/uevent")
PATIENCE = 30
"""Seconds until a test gives up; it waits for what it sees, not for a time."""
WATCH = """
import sys
from hosttune.core import boot, watch
watch.wakes = lambda event: event.get("DEVPATH") == "/devices/virtual/mem/null" or event.get("ACTION") == "lost"
sys.exit(boot.main(["watch"]))
"""


def announce(action: str = "add") -> None:
    DEVICE.write_text(action + "\n")


@pytest.fixture
def ear() -> Iterator[uevents.Uevents]:
    made = uevents.Uevents()
    yield made
    made.close()


def of_null(event: uevents.Event) -> bool:
    return event.get("DEVPATH") == "/devices/virtual/mem/null"


def test_an_announcement_is_heard_with_all_it_says(ear: uevents.Uevents) -> None:
    announce("change")
    (event,) = ear.wait(PATIENCE, of_null)
    assert event["ACTION"] == "change" and event["SUBSYSTEM"] == "mem" and event["DEVNAME"] == "null"


def test_what_was_said_while_nobody_waited_is_not_lost(ear: uevents.Uevents) -> None:
    for action in ("add", "change", "add"):
        announce(action)
    assert [event["ACTION"] for event in ear.wait(PATIENCE, of_null)] == ["add", "change", "add"]
    assert ear.wait(0, of_null) == []


def test_other_events_neither_wake_nor_shorten_a_wait(ear: uevents.Uevents) -> None:
    announce()
    assert (
        ear.wait(0.2, lambda event: event.get("SUBSYSTEM") == "pci" and event.get("PCI_ID", "").startswith("10DE:"))
        == []
    )


def test_a_flood_is_told_as_one(ear: uevents.Uevents) -> None:
    """More than the socket has room for: the watch must know that it missed some."""
    for _ in range(3000):
        announce()
    assert uevents.LOST in ear.wait(PATIENCE, of_null)


@pytest.fixture
def bus(fake: FakeTrees) -> Iterator[Path]:
    """A GPU host whose profile wants MaxReadReq 4096; hosttune's state and /etc/hosttune are private."""
    fake.gpu_host(1)
    fake.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    mounted = private_state()
    Path(PATH).write_text(json.dumps({"mode": "apply", "knobs": {"pcie-max-read-request": "4096"}}))
    yield fake.pci([PciFunction(GPU)])
    for folder in mounted:
        unmount(folder)


@pytest.fixture
def watcher(bus: Path) -> Iterator[subprocess.Popen[str]]:
    """The unit's own program, its words on a pipe."""
    process = subprocess.Popen([sys.executable, "-c", WATCH], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("watching")
    yield process
    process.terminate()
    process.wait(PATIENCE)


def devctl(bus: Path) -> int:
    return int.from_bytes((bus / "devices" / GPU / "config").read_bytes()[0x68:0x6A], "little")


def rows() -> list[str]:
    """The events of hosttune's journal."""
    return [json.loads(line)["event"] for line in JOURNAL.read_text().splitlines()] if JOURNAL.exists() else []


def until(bus: Path, changes: int) -> None:
    """The register is as wanted, and so many changes are read back and closed in the journal."""
    limit = time.monotonic() + PATIENCE
    while devctl(bus) != 0x593F or rows().count("done") < changes:
        assert time.monotonic() < limit, "%04x, %s" % (devctl(bus), rows())
        time.sleep(0.01)


def lose(bus: Path) -> None:
    """What a driver's own reset, or a GPU that comes back, does to the register."""
    with (bus / "devices" / GPU / "config").open("r+b") as config:
        config.seek(0x68)
        config.write((0x293F).to_bytes(2, "little"))


def test_the_register_comes_back_on_the_event_and_the_journal_has_it(bus: Path, watcher: subprocess.Popen[str]) -> None:
    until(bus, 1)  # it looks once when it starts
    for changes in (2, 3):
        lose(bus)
        announce()
        until(bus, changes)
    told = subprocess.run([sys.executable, "-m", "hosttune", "journal"], capture_output=True, text=True).stdout
    assert told.count("%s MaxReadReq: 512 → 4096" % GPU) == 3, told


def test_an_event_when_all_is_well_writes_nothing(bus: Path, watcher: subprocess.Popen[str]) -> None:
    until(bus, 1)
    for _ in range(3):
        announce()
    lose(bus)  # its answer to this one shows that it is through with those before
    announce()
    until(bus, 2)
    watcher.terminate()
    watcher.wait(PATIENCE)
    assert rows() == ["intent", "done"] * 2, "one at the start, one for what was lost"


def test_two_at_once_do_the_work_once(bus: Path, watcher: subprocess.Popen[str]) -> None:
    """The watch and an owner who types apply: one waits for the other, and finds nothing left to do."""
    until(bus, 1)
    lose(bus)
    announce()
    apply = [sys.executable, "-m", "hosttune", "apply", "pcie-max-read-request", "-o", "json"]
    done = subprocess.run(apply, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    until(bus, 2)
    assert rows() == ["intent", "done"] * 2
