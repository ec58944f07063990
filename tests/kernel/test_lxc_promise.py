# SPDX-License-Identifier: Apache-2.0
"""A run that is killed after the file has forgotten a number, and before the running container has: the journal knows, and the
next run takes it back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core import engine, journal
from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import sync
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Report
from tests.kernel import strace
from tests.kernel.conftest import MakeContainer, _need_tools
from tests.kernel.container import REPOSITORY, Container
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.test_lxc_kill import forget, left_over
from tests.kernel.view import scratch

RULES = "".join(f"lxc.cgroup2.devices.allow = c {major}:* rwm\n" for major in (195, 509))
GPU = Wanted(gpus=(0,))
HOLE, OTHER = "/root/hole", "/root/other"
"""Nodes that the container's root has made: one of the stale number, one of a GPU that is not declared."""
SYNC = """
import sys
from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import sync
from hosttune.core.lxc.needs import Wanted
sys.exit(not sync.sync(LiveHost(), sys.argv[1], Wanted(gpus=(0,))).changed)
"""


@pytest.fixture
def running(make_container: MakeContainer, fake: FakeTrees, nodes: GpuNodes) -> Iterator[Container]:
    fake.gpu_host(gpus=2, uvm=511)
    nodes.make_all(gpus=2, uvm=511)
    paths = [nodes.dev / name for name in ("nvidiactl", "nvidia0", "nvidia-uvm")]
    container = make_container(RULES + bind_entries(paths)).start()
    for path, numbers in ((HOLE, ("509", "0")), (OTHER, ("195", "1"))):
        assert container.attach("mknod", path, "c", *numbers).returncode == 0
    Path(journal.STATE).mkdir(exist_ok=True)
    forget()
    yield container
    forget()


def argv(container: Container) -> list[str]:
    return ["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-c", SYNC, container.name]


def opens(container: Container) -> dict[str, str]:
    """What the container's device program says of each node; ENXIO: it lets it through, and only a driver is missing."""
    return {path: container.open_errno(path) for path in (HOLE, OTHER, "/dev/nvidia0", "/dev/nvidia-uvm")}


CLOSED = {HOLE: "EPERM", OTHER: "EPERM", "/dev/nvidia0": "ENXIO", "/dev/nvidia-uvm": "ENXIO"}


def reopen(container: Container, old: bytes) -> None:
    """File, running container and journal as before the first sync."""
    container.config.write_bytes(old)
    for key, rule in (("allow", "c 195:* rwm"), ("allow", "c 509:* rwm"), ("deny", "c 511:* rwm"), ("deny", "c 195:0 rwm"),
                      ("deny", "c 195:255 rwm")):  # fmt: skip
        container.live("devices." + key, rule)
    assert opens(container)[HOLE] == "ENXIO"
    forget()


def cut(report: Report) -> list[tuple[str, str]]:
    return [(f.status, f.summary) for f in report.findings if f.id == "HT906"]


def states() -> set[str]:
    return {entry.state for entry in journal.entries(LiveHost())}


def killed_after_the_rename(container: Container) -> None:
    """The file is new, and the container has not been told."""
    log = scratch("strace") / "log"
    old = container.config.read_bytes()
    fatal = strace.calls(argv(container), log, "flock(", journal.JOURNAL)
    reopen(container, old)
    strace.kill_before(fatal[rename(fatal, container) + 1], argv(container), log)
    assert container.config.read_bytes() != old and opens(container)[HOLE] == "ENXIO" and "intent" in states()


def rename(fatal: list[strace.Call], container: Container) -> int:
    return next(n for n, call in enumerate(fatal) if call.name == "rename" and str(container.config) in call.text)


def test_killed_at_any_call_around_the_rename_and_after_it_the_next_run_closes_what_is_open(running: Container) -> None:
    _need_tools("strace")
    log = scratch("strace") / "log"
    old = running.config.read_bytes()
    fatal = strace.calls(argv(running), log, "flock(", journal.JOURNAL)
    new = running.config.read_bytes()
    assert opens(running) == CLOSED and states() == {"done"}
    around = [call for call in fatal[rename(fatal, running) - 6 :] if call.name in ("write", "rename")]  # what a reader could see
    assert [call.name for call in around].count("write") > 3
    for call in around:
        reopen(running, old)
        strace.kill_before(call, argv(running), log)
        sync.sync(LiveHost(), running.name, GPU)
        assert running.config.read_bytes() == new and opens(running) == CLOSED, call
        assert states() <= {"done", "dropped"} and left_over(running.config) == [], call
        again = sync.sync(LiveHost(), running.name, GPU)
        assert not again.changed and cut(again) == [], call


def test_it_is_told_before_it_is_done_and_an_unrelated_run_does_it_too(running: Container) -> None:
    killed_after_the_rename(running)
    seen = sync.sync(LiveHost(), running.name, GPU, dry_run=True)
    ((status, said),) = cut(seen)
    assert status == "warn" and "`c 195:* rwm`, `c 509:* rwm`" in said
    assert [action.argv[-2:] for action in seen.actions if action.name == "live-deny"] == [
        ("devices.deny", "c 195:* rwm"), ("devices.deny", "c 509:* rwm")]  # fmt: skip
    assert engine.recover(LiveHost(), {}) == [] and {**opens(running), "/dev/nvidia-uvm": "ENXIO"} == CLOSED
    assert states() == {"done"}
    steps, failed = engine.revert(LiveHost(), {})
    assert [step.target for step in steps] == [str(running.config)] and failed == [], "a promise reverts to nothing"


def test_a_container_that_was_started_since_needs_nothing_and_that_is_said(running: Container) -> None:
    killed_after_the_rename(running)
    path = Path(journal.JOURNAL)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "at": row["at"] - 3600}) + "\n" for row in rows))
    running.restart()
    told = sync.sync(LiveHost(), running.name, GPU)
    assert any("started anew since" in said for status, said in cut(told) if status == "skip"), told.findings
    assert "intent" not in states() and "dropped" in states()
