# SPDX-License-Identifier: Apache-2.0
"""apply and revert as processes of their own: two at once, one killed before each call that changes something, and somebody else
who changes a value in between. The register is one of a plain file, which the real setpci writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hosttune.core import engine, journal
from hosttune.core.door.host import TEMP
from hosttune.core.door.live import LiveHost
from hosttune.core.knobs import BY_ID, KNOBS
from tests.kernel import strace
from tests.kernel.conftest import _need_tools
from tests.kernel.container import REPOSITORY
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.view import scratch, unmount

GPU = "0000:11:00.0"
WANTS = {"pcie-max-read-request": "4096", "swappiness": "10"}
"""A register, a value of the kernel, and a file: each kind of effect once."""
APPLY = """
import sys
from hosttune.core import engine
from hosttune.core.door.live import LiveHost
from hosttune.core.knobs import BY_ID, KNOBS
done = engine.tune(LiveHost(), %r, KNOBS, BY_ID, dry_run=False)
print(len(done.steps))
sys.exit(not all(f.status == "ok" for f in done.findings))
""" % (WANTS,)
ARGV = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-c", APPLY]
LOCK, STATE = Path(journal.LOCK), Path(journal.STATE)


@dataclass(frozen=True)
class Target:
    """Where the three values stand."""

    config: Path
    swappiness: Path
    file: Path = Path("/etc/sysctl.d/90-hosttune-swappiness.conf")

    def state(self) -> tuple[int, str, bool]:
        """Device Control, the value, and whether there is a file for the next boot."""
        control = int.from_bytes(self.config.read_bytes()[0x68:0x6A], "little")
        return control, self.swappiness.read_text().strip(), self.file.exists()


OLD, NEW = (0x293F, "60", False), (0x593F, "10", True)


@pytest.fixture
def target(fake: FakeTrees) -> Iterator[Target]:
    fake.gpu_host(1)
    fake.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    swappiness = fake.file("/proc/sys/vm/swappiness", "60\n")
    mounted = private_state()
    bus = fake.pci(fake.functions(1))
    yield Target(bus / "devices" / GPU / "config", swappiness)
    for folder in mounted:
        unmount(folder)


def apply() -> None:
    done = engine.tune(LiveHost(), WANTS, KNOBS, BY_ID, dry_run=False)
    assert {f.status for f in done.findings} == {"ok"}, done.findings


def forget(target: Target) -> None:
    """Everything is as before, and hosttune was never here."""
    with target.config.open("r+b") as config:
        config.seek(0x68)
        config.write((0x293F).to_bytes(2, "little"))
    target.swappiness.write_text("60\n")
    target.file.unlink(missing_ok=True)
    for path in sorted(STATE.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_killed_before_any_call_the_next_run_ends_it_and_a_revert_leaves_nothing(target: Target) -> None:
    _need_tools("strace")
    log = scratch("strace") / "log"
    fatal = strace.calls(ARGV, log, "flock(", journal.JOURNAL)
    assert target.state() == NEW and {call.name for call in fatal} >= {"flock", "openat", "write", "fsync", "rename"}
    seen = set()
    for call in fatal:
        forget(target)
        strace.kill_before(call, ARGV, log)
        control, value, file = target.state()
        assert control in (0x293F, 0x593F) and value in ("60", "10", ""), call
        seen.add((control, value, file))
        if value == "":
            continue  # between truncation and write, which a plain file has and a file of /proc has not
        apply()
        assert target.state() == NEW and [*STATE.rglob("*" + TEMP), *target.file.parent.glob("*" + TEMP)] == [], call
        steps, failed = engine.revert(LiveHost(), BY_ID)
        assert failed == [] and target.state() == OLD, call
        assert {entry.state for entry in journal.entries(LiveHost())} <= {"done", "dropped", "reverted"}, call
    assert seen >= {OLD, (0x593F, "60", False), (0x593F, "10", False), NEW}, "kills before, between and after the changes"


def test_of_two_at_once_one_waits_and_finds_it_done(target: Target) -> None:
    STATE.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(LOCK.open("a"))
        LOCK.chmod(0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        both = [stack.enter_context(_apply_process()) for _ in range(2)]
        while not all(_has_open(process.pid, LOCK) for process in both):  # each has planned its changes, and wants the lock
            assert [process.poll() for process in both] == [None, None]
        assert target.state() == OLD
        fcntl.flock(handle, fcntl.LOCK_UN)
        told = sorted(process.communicate(timeout=60)[0] for process in both)
        assert told == ["0\n", "3\n"], "each tells what it did itself"
        assert [process.returncode for process in both] == [0, 0] and target.state() == NEW
    assert [entry.state for entry in journal.entries(LiveHost())] == ["done"] * 3, "each change was made once"


@contextlib.contextmanager
def _apply_process() -> Iterator[subprocess.Popen[str]]:
    """One that is gone, whatever happens, before the private folders are."""
    process = subprocess.Popen(ARGV, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _has_open(pid: int, path: Path) -> bool:
    """Whether that process has it open now. What it closes, or that it ends, while this looks is no answer of its own."""
    found = False
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found = found or os.readlink(f"/proc/{pid}/fd/{fd}") == str(path)
    return found


def test_what_somebody_else_has_set_since_is_named_and_left_and_the_rest_goes_back(target: Target) -> None:
    apply()
    subprocess.run(["setpci", "-s", GPU, "CAP_EXP+8.w=3000:7000"], check=True)
    done = subprocess.run([sys.executable, "-m", "hosttune", "revert"], capture_output=True, text=True)
    assert done.returncode == 1 and target.state() == (0x393F, "60", False)
    told = " ".join(done.stdout.split())
    assert "it is no longer what hosttune wrote (now 1024, wrote 4096)" in told, done.stdout
    assert "setpci -s 0000:11:00.0 CAP_EXP+8.w=2000:7000" in told, "the line that restores it all the same"
