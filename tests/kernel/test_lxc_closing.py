# SPDX-License-Identifier: Apache-2.0
"""What leaves a container's file leaves the running container too: a stale number, a GPU that it is not declared to have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import cuda, sync
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Report
from tests.kernel import mission
from tests.kernel.mission import Mission
from tests.kernel.standin import StandIn

ALL = Wanted(gpus=None, required=True)


@pytest.fixture
def host(lxc: None, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mission]:
    made = mission.broken(standin, gpus=2)
    for key, value in made.env.items():
        monkeypatch.setenv(key, value)
    yield made
    made.undo()


def ran(report: Report) -> list[tuple[str, str]]:
    """The rules that were given to the running container."""
    return [(action.argv[-2], action.argv[-1]) for action in report.actions]


def told(report: Report, id: str) -> list[str]:
    return [f.status for f in report.findings if f.id == id]


def node_inside(host: Mission, number: str) -> str:
    """A node as root inside makes it for any number that it likes; its path there."""
    path = "/root/made-" + number.replace(":", "-")
    made = host.container.attach("mknod", path, "c", *number.split(":"))
    assert made.returncode == 0, made.stderr
    return path


def test_a_hole_is_closed_where_it_is_open_and_cuda_starts(host: Mission) -> None:
    hole = node_inside(host, "509:0")
    assert host.container.open_errno(hole) == "ENXIO", "the rule lets it through; only a driver is missing"
    done = sync.sync(LiveHost(), host.ct, ALL, prove=cuda.starts)
    assert ran(done) == [("devices.allow", "c 511:* rwm"), ("devices.deny", "c 509:* rwm")]
    assert host.container.open_errno(hole) == "EPERM"
    assert host.container.open_errno("/dev/nvidia-uvm") == "ok" and told(done, "HT437") == ["ok"], done.findings
    again = sync.sync(LiveHost(), host.ct, ALL, prove=cuda.starts)
    assert not again.changed and told(again, "HT437") == [], "without a change nothing is proved anew"


def test_a_rule_for_every_gpu_becomes_exact_numbers_and_the_other_gpu_closes(host: Mission) -> None:
    other = node_inside(host, "195:1")
    done = sync.sync(LiveHost(), host.ct, replace(ALL, gpus=(0,)), prove=cuda.starts)
    text = host.container.config.read_text()
    assert "c 195:0 rwm" in text and "c 195:255 rwm" in text and "c 195:*" not in text and "/dev/nvidia1" not in text
    assert {"c 195:0 rwm", "c 195:255 rwm"} <= {rule for verb, rule in ran(done) if verb == "devices.allow"}
    assert ran(done)[-1][0] == "devices.deny", "what stays is allowed before what goes is denied"
    assert host.container.open_errno(other) == "EPERM"
    assert [host.container.open_errno(path) for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")] == ["ok"] * 3
    assert not sync.sync(LiveHost(), host.ct, replace(ALL, gpus=(0,))).changed


def test_an_undeclared_gpu_whose_neighbour_is_missing_is_left_alone(host: Mission) -> None:
    """Numbers are given anew at each load of the driver: while GPU 7 is missing, nobody can say that GPU 1 is not it."""
    sync.sync(LiveHost(), host.ct, ALL)
    was = host.container.config.read_bytes()
    done = sync.sync(LiveHost(), host.ct, replace(ALL, gpus=(0, 7)))
    assert not done.changed and host.container.config.read_bytes() == was
    assert "GPU 7 is wanted" in " ".join(f.summary for f in done.findings)


def test_a_restart_names_the_connections_of_a_declared_engine(host: Mission) -> None:
    host.hold_old_node()
    sync.sync(LiveHost(), host.ct, ALL)
    serve = ("import socket, sys, time\n"
             "here = socket.create_server(('127.0.0.1', 30000)); there = socket.create_connection(('127.0.0.1', 30000))\n"
             "held = here.accept(); open('/run/serving', 'w').close(); time.sleep(600)")  # fmt: skip
    host.container.attach("systemd-run", "--unit=engine", "python3", "-c", serve)
    host.container.attach("sh", "-c", "until test -e /run/serving; do sleep 0.1; done")
    served = replace(ALL, serves=(("tp4", 30000), ("idle", 30001)))
    kept = sync.sync(LiveHost(), host.ct, served, restart="idle")
    (pending,) = [f for f in kept.findings if f.id == "HT402"]
    assert "1 open connection of engine tp4 (port 30000)" in pending.hint.costs and "idle" not in pending.hint.costs
    assert not kept.actions, "a live request is a loss"
    host.container.attach("systemctl", "stop", "engine")
    assert [action.name for action in sync.sync(LiveHost(), host.ct, served, restart="idle").actions] == ["restart", "restart"]
