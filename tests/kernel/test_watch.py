# SPDX-License-Identifier: Apache-2.0
"""The watch on this kernel's own events: a real socket and inotify, real announcements, nodes and sysfs files, the real setpci.

No GPU comes or goes here (tests/lab does that on a whole machine). What the kernel can be asked to announce is any device it
has: writing `add` to a device's `uevent` file makes it do so. Only which device wakes the watch is played, and a register that is
lost: config space is a plain file here, and is changed through a mapping, of which nobody hears, as of a reset.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core.unattended import ears, inotify, uevents
from hosttune.core.unattended.registers import quiet
from hosttune.core.wanted.profile import PATH
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.nodes import GpuNodes
from tests.kernel.pci_tree import PciFunction
from tests.kernel.view import unmount

GPU = "0000:11:00.0"
JOURNAL = Path("/var/lib/hosttune/journal.jsonl")
DEVICE = Path("/sys/devices/virtual/mem/null/uevent")
PATIENCE = 30
"""Seconds until a test gives up; it waits for what it sees, not for a time."""
WATCH = """
import sys
from hosttune.core.unattended import main, watch
watch.wakes = lambda event: (
    event.get("DEVPATH") == "/devices/virtual/mem/null" or event.get("ACTION") == "lost" or event.get("SUBSYSTEM") == "inotify"
)
sys.exit(main.main(["watch"]))
"""


def announce(action: str = "add") -> None:
    DEVICE.write_text(action + "\n")


@pytest.fixture
def ear() -> Iterator[ears.Ears]:
    made = ears.Ears(uevents.Uevents())
    yield made
    made.close()


def of_null(event: uevents.Event) -> bool:
    return event.get("DEVPATH") == "/devices/virtual/mem/null"


def test_an_announcement_is_heard_with_all_it_says(ear: ears.Ears) -> None:
    announce("change")
    (event,) = ear.wait(PATIENCE, of_null)
    assert event["ACTION"] == "change" and event["SUBSYSTEM"] == "mem" and event["DEVNAME"] == "null"


def test_what_was_said_while_nobody_waited_is_not_lost(ear: ears.Ears) -> None:
    for action in ("add", "change", "add"):
        announce(action)
    assert [event["ACTION"] for event in ear.wait(PATIENCE, of_null)] == ["add", "change", "add"]
    assert ear.wait(0, of_null) == []


def test_other_events_neither_wake_nor_shorten_a_wait(ear: ears.Ears) -> None:
    announce()
    assert (
        ear.wait(0.2, lambda event: event.get("SUBSYSTEM") == "pci" and event.get("PCI_ID", "").startswith("10DE:"))
        == []
    )


def test_a_flood_is_told_as_one(ear: ears.Ears) -> None:
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
    """What a driver's own reset, or a GPU that comes back, does to the register: no file is written."""
    with (bus / "devices" / GPU / "config").open("r+b") as config, mmap.mmap(config.fileno(), 0) as space:
        space[0x68:0x6A] = (0x293F).to_bytes(2, "little")


def says(watcher: subprocess.Popen[str], words: str) -> list[str]:
    """Its lines up to the one with these words."""
    lines = []
    for line in watcher.stdout or ():
        lines.append(line.rstrip())
        if words in line:
            return lines
    raise AssertionError(lines)


def close_a_node(name: str = "nvidia0") -> None:
    """As a process that used the GPU does at its end."""
    os.close(os.open("/dev/" + name, os.O_RDWR))


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


@pytest.fixture
def nodes(bus: Path) -> Iterator[GpuNodes]:
    """Nodes that can be opened without a driver: /dev/null's number under NVIDIA's names."""
    made = GpuNodes()
    for name in ("nvidia0", "nvidiactl"):
        made.make(name, 1, 3)
    yield made
    made.clear()


@pytest.fixture
def files(nodes: GpuNodes) -> Iterator[tuple[inotify.GpuFiles, list[str]]]:
    """An ear at the files of the GPU, and what it told. `reset` is a real file of sysfs."""
    Path("/sys/bus/pci/devices", GPU, "reset").symlink_to(DEVICE)
    told: list[str] = []
    made = inotify.GpuFiles(told.append)
    assert made.listen([GPU]) == {GPU}
    yield made, told
    made.close()


def test_what_is_done_to_a_gpus_files_is_heard_and_what_is_only_read_is_not(
    files: tuple[inotify.GpuFiles, list[str]], nodes: GpuNodes
) -> None:
    ear, told = files

    def heard() -> list[tuple[str, str]]:
        return [(event["ACTION"], event["PCI_SLOT_NAME"] or event["DEVPATH"]) for event in ear.drain()]

    Path("/sys/bus/pci/devices", GPU, "config").read_bytes()
    DEVICE.read_text()
    assert heard() == []
    for name in ("nvidia0", "nvidia0", "nvidiactl"):
        close_a_node(name)
    assert heard() == [("close", "/dev/nvidia0"), ("close", "/dev/nvidiactl")]
    subprocess.run(["setpci", "-s", GPU, "CAP_EXP+8.w"], check=True, stdout=subprocess.DEVNULL)
    assert heard() == []
    subprocess.run(["setpci", "-s", GPU, "CAP_EXP+8.w=2000:7000"], check=True)
    announce("change")  # a write to sysfs, as `echo 1 > reset` is
    assert heard() == [("write", GPU), ("reset", GPU)]
    (nodes.dev / "sdz").touch()
    (nodes.dev / "sdz").unlink()
    assert heard() == []
    nodes.make("nvidia0", 1, 3)
    nodes.make("nvidia1", 1, 3)
    assert heard() == [("node", "/dev")]
    assert ear.listen([GPU, "0000:99:00.0"]) == {GPU}, "one that is not there is no trouble"
    for name in ("nvidia0", "nvidia1"):
        close_a_node(name)
    assert heard() == [("close", "/dev/nvidia0"), ("close", "/dev/nvidia1")]
    assert told == []


def test_closes_are_looked_at_one_second_apart_and_an_announcement_at_once(
    files: tuple[inotify.GpuFiles, list[str]],
) -> None:
    announcements = uevents.Uevents()
    both = ears.Ears(announcements, files[0])

    def wait() -> list[str]:
        return [event["ACTION"] for event in both.wait(PATIENCE, lambda event: quiet(event) or of_null(event))]

    close_a_node()
    assert wait() == ["close"]
    begin = time.monotonic()
    for _ in range(1000):
        close_a_node()
    assert wait() == ["close"] and time.monotonic() - begin > 0.9 * ears.APART
    close_a_node()
    announce("change")
    assert set(wait()) == {"reset", "close", "change"}, "which here is a write to the file that plays `reset`, too"
    for _ in range(9000):
        close_a_node("nvidia0")
        close_a_node("nvidiactl")
    told = both.wait(PATIENCE, quiet)
    assert inotify.MISSED in told, "more than the queue has room for: any config space may have been written"
    announcements.close()


@pytest.mark.parametrize(("limit", "allowed", "why"), [("watches", 2, "ENOSPC"), ("instances", 0, "EMFILE")])
def test_the_kernels_limits_are_told_once_and_nothing_is_taken_for_heard(
    nodes: GpuNodes, limit: str, allowed: int, why: str
) -> None:
    script = """
import sys
from pathlib import Path
from hosttune.core.unattended import inotify
Path("/proc/sys/user/max_inotify_%s").write_text("%d")
try:
    ear = inotify.GpuFiles(print)
    print(sorted(ear.listen([sys.argv[1]])), sorted(ear.listen([sys.argv[1]])))
except OSError as e:
    print(inotify.deaf(e))
""" % (limit, allowed)
    argv = ["unshare", "--user", "--map-root-user", sys.executable, "-c", script, GPU]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert (
        done.stdout.count("no inotify watch on") == 1 and ": %s (fs.inotify.max_user_%s" % (why, limit) in done.stdout
    )
    assert why == "EMFILE" or "[] []" in done.stdout, done.stdout


def test_a_register_that_nobody_wrote_comes_back_when_a_node_is_closed(
    nodes: GpuNodes, bus: Path, watcher: subprocess.Popen[str]
) -> None:
    says(watcher, "changed %s MaxReadReq" % GPU)
    for changes in (2, 3):
        lose(bus)
        close_a_node()
        told = says(watcher, "changed %s MaxReadReq" % GPU)
        assert told == ["MaxReadReq was lost by %s:" % GPU, "  changed %s MaxReadReq" % GPU]
        until(bus, changes)
        nodes.make("nvidia0", 1, 3)  # as udev does: another inode, listened to from then on


def test_a_value_that_somebody_wrote_is_left_and_closes_write_nothing(
    nodes: GpuNodes, bus: Path, watcher: subprocess.Popen[str]
) -> None:
    says(watcher, "changed %s MaxReadReq" % GPU)
    for _ in range(20):
        close_a_node()
    subprocess.run(["setpci", "-s", GPU, "CAP_EXP+8.w=2000:7000"], check=True)
    told = says(watcher, "hosttune apply pcie-max-read-request")
    assert told == ["%s: somebody wrote to its config space: MaxReadReq is 512, want 4096; left as it is. "
                    "To have it back: hosttune apply pcie-max-read-request" % GPU]  # fmt: skip
    close_a_node()
    done = subprocess.run(
        [sys.executable, "-m", "hosttune", "apply", "pcie-max-read-request"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    time.sleep(1.2)  # two looks are a second apart: the next one is not before what apply wrote was seen
    lose(bus)
    close_a_node()
    says(watcher, "changed %s MaxReadReq" % GPU)
    assert rows() == ["intent", "done"] * 3, "one at the start, one by apply, one for what was lost"
