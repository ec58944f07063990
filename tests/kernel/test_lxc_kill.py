# SPDX-License-Identifier: Apache-2.0
"""lxc sync on /etc/pve as the lab plays it: killed before each call that changes something, the cluster lost in the middle,
somebody else writing at the same time. The file is the old one or the new one, and nobody's change is lost."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosttune.core import engine, journal
from hosttune.core.door.host import TEMP
from hosttune.core.door.live import LiveHost
from hosttune.core.knobs import BY_ID
from hosttune.core.lxc import sync
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Refused, Report
from tests.kernel import strace
from tests.kernel.conftest import _need_tools
from tests.kernel.container import REPOSITORY
from tests.kernel.nodes import GpuNodes
from tests.kernel.proxmox import PVE, Proxmox
from tests.kernel.view import scratch

ID = 364
LOCK = Path(f"/run/lock/lxc/pve-config-{ID}.lock")
LINES = """\
# mine
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
"""
SNAPSHOT = "\n[before]\nmemory: 256\nlxc.cgroup2.devices.allow: c 509:* rwm\n"
PATH = Wanted(gpus=(0,), form="path")
SYNC = """
import sys
from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import sync
from hosttune.core.lxc.needs import Wanted
report = sync.sync(LiveHost(), sys.argv[1], Wanted(gpus=(0,), form="path"))
sys.exit(not report.changed)
"""


@pytest.fixture
def conf(proxmox: Proxmox, nodes: GpuNodes) -> Iterator[Path]:
    nodes.make_all(1)
    path = proxmox.container(ID, LINES)
    path.write_text(path.read_text() + SNAPSHOT)
    LOCK.parent.mkdir(exist_ok=True)
    Path(journal.STATE).mkdir(exist_ok=True)
    forget()
    yield path
    proxmox.heal()
    forget()


def forget() -> None:
    """hosttune has never run here."""
    state = Path(journal.STATE)
    for path in sorted(state.rglob("*"), reverse=True) if state.exists() else ():
        path.rmdir() if path.is_dir() else path.unlink()


def is_free(path: Path) -> bool:
    """Whether anybody could take this lock now."""
    if not path.exists():
        return True
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def healed() -> Report:
    report = sync.sync(LiveHost(), str(ID), PATH)
    assert not [f for f in report.findings if f.status in ("fail", "error")], report.findings
    return report


def left_over(conf: Path) -> list[str]:
    """Files that nobody asked for, in the cluster's file system and in hosttune's own folder."""
    return [str(path) for top in (PVE, Path(journal.STATE)) for path in top.rglob("*" + TEMP)]


def test_killed_before_any_call_the_file_is_old_or_new_the_lock_is_free_and_the_next_run_ends_it(conf: Path) -> None:
    _need_tools("strace")
    argv = ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-c", SYNC, str(ID)]
    log = scratch("strace") / "log"
    old = conf.read_bytes()
    fatal = strace.calls(argv, log, "flock(", journal.JOURNAL)
    new = conf.read_bytes()
    assert new != old and {call.name for call in fatal} >= {"flock", "openat", "write", "fsync", "rename", "unlink"}
    states = set()
    for call in fatal:
        conf.write_bytes(old)
        forget()
        strace.kill_before(call, argv, log)
        now = conf.read_bytes()
        assert now in (old, new), call
        states.add(now == new)
        assert is_free(LOCK) and is_free(Path(journal.LOCK)), call
        assert os.stat(conf).st_mode & 0o777 == 0o640
        healed()
        assert conf.read_bytes() == new and left_over(conf) == [], call
        steps, failed = engine.revert(LiveHost(), BY_ID)  # it settles an entry that nothing was left to do for, first
        assert failed == [] and conf.read_bytes() == old, call
        assert {entry.state for entry in journal.entries(LiveHost())} <= {"done", "dropped", "reverted"}, call
    assert states == {False, True}, "kills before the rename and after it"


# ---- the cluster goes away in the middle

TROUBLE = {"no quorum": ("quorum", "off"), "database": ("io-error", "on")}
MOMENTS: dict[str, tuple[str, Callable[..., bool]]] = {
    "before the new file is made": ("open", lambda path, *more: str(path).endswith(TEMP) and "/etc/pve" in str(path)),
    "before it is written": ("write", lambda fd, data: b"lxc.cgroup2.devices.allow: /dev/nvidiactl" in bytes(data)[:4096]
                             and "/etc/pve" in os.readlink(f"/proc/self/fd/{fd}")),
    "before the rename": ("rename", lambda source, target: "/etc/pve" in str(target)),
}  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_cluster_lost_in_the_middle_is_said_and_the_old_file_stands(
    proxmox: Proxmox, conf: Path, monkeypatch: pytest.MonkeyPatch, moment: str, trouble: str
) -> None:
    name, is_now = MOMENTS[moment]
    real = getattr(os, name)
    lost: list[object] = []

    def losing(*arguments: object, **more: object) -> object:
        if not lost and is_now(*arguments[:2]):
            lost.append(arguments)
            proxmox.lab(*TROUBLE[trouble])
        return real(*arguments, **more)

    old = conf.read_bytes()
    monkeypatch.setattr(os, name, losing)
    report = sync.sync(LiveHost(), str(ID), PATH)
    monkeypatch.undo()
    assert lost and not report.changed and conf.read_bytes() == old
    (failed,) = [f for f in report.findings if f.summary.startswith(str(conf))]
    assert failed.status == "fail" and "quorum" in failed.hint.command or "pve-cluster" in failed.hint.command
    assert is_free(LOCK)
    proxmox.heal()
    assert healed().changed and left_over(conf) == []


# ---- two at once

def test_a_write_of_proxmox_between_plan_and_lock_is_kept_and_ours_is_refused(proxmox: Proxmox, conf: Path) -> None:
    """pct holds the lock when our run wants it, and changes the file before it lets go."""
    with LOCK.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        ours = subprocess.Popen([sys.executable, "-c", SYNC, str(ID)], env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
        waits = Path(journal.LOCK)
        while is_free(waits):  # it has planned, and waits for Proxmox VE's lock now
            assert ours.poll() is None
        conf.write_text(conf.read_text().replace("memory: 512", "memory: 1024"))
    assert ours.wait(timeout=30) == 1
    assert "memory: 1024" in conf.read_text() and "nvidiactl" not in conf.read_text()
    assert healed().changed and "memory: 1024" in conf.read_text() and "nvidiactl" in conf.read_text()


def test_two_writers_at_once_lose_nothing(proxmox: Proxmox, conf: Path) -> None:
    """Proxmox VE changes the memory while hosttune converts to and fro; whoever was too late says so and tries again."""
    wrong: list[str] = []

    def theirs() -> None:
        for memory in range(600, 612):
            done = proxmox.pct("set", str(ID), "--memory", str(memory))
            if done.returncode != 0 or f"memory: {memory}\n" not in conf.read_text():
                wrong.append(f"memory {memory}: {done.stderr}")

    writer = threading.Thread(target=theirs)
    writer.start()
    turns = 0
    while writer.is_alive() or turns < 4:
        wanted = Wanted(gpus=(0,), form=("path", "number")[turns % 2])
        report = sync.sync(LiveHost(), str(ID), wanted)
        late = [f for f in report.findings if "was not written" in f.summary]
        assert report.changed or late and "is not what was expected" in late[0].summary or not report.steps, report.findings
        turns += 1
    writer.join()
    assert wrong == []
    text = conf.read_text()
    assert "memory: 611\n" in text and "# mine" in text.replace("#mine", "# mine") and text.endswith(SNAPSHOT)
    assert healed() and left_over(conf) == []


def test_two_runs_of_hosttune_at_once_make_one_change(conf: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    both = [subprocess.Popen([sys.executable, "-c", SYNC, str(ID)], env=env) for _ in range(2)]
    codes = [one.wait(timeout=60) for one in both]
    assert 0 in codes and len([e for e in journal.entries(LiveHost()) if e.state == "done"]) == 1
    assert not healed().changed


def test_a_lock_that_is_never_let_go_is_a_refusal_with_its_name(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = conf.read_bytes()
    real = LiveHost.lock
    monkeypatch.setattr(LiveHost, "lock", lambda self, path, timeout=10: real(self, path, 0.2))
    with LOCK.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            said = [f.summary for f in sync.sync(LiveHost(), str(ID), PATH).findings]
        except Refused as refused:
            said = [str(refused)]
    assert any(str(LOCK) in text or "holds the lock" in text for text in said) and conf.read_bytes() == old
