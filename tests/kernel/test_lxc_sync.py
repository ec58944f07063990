# SPDX-License-Identifier: Apache-2.0
"""hosttune lxc on a real container: the file, the running container, the restart, and what each of them costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosttune.core import engine
from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import sync
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Refused, Report
from tests.kernel import mission
from tests.kernel.conftest import MakeContainer
from tests.kernel.mission import Mission
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.standin import StandIn

ALL = Wanted(gpus=None, required=True)
GPUS = 2


@pytest.fixture
def host(lxc: None, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mission]:
    made = mission.broken(standin, gpus=GPUS)
    for key, value in made.env.items():
        monkeypatch.setenv(key, value)
    yield made
    made.undo()


def ids(report: Report, *statuses: str) -> set[str]:
    return {f.id for f in report.findings if f.status in statuses}


def test_sync_heals_the_file_and_the_running_container_and_a_second_one_touches_nothing(host: Mission) -> None:
    door = LiveHost()
    was = host.container.config.read_bytes()
    pid = host.container.pid
    seen = sync.show(door, host.ct, ALL)
    assert ids(seen, "fail", "warn") == {"HT420", "HT421"} and sync.code(seen) == 1
    assert {f.id: f.because for f in seen.findings if f.because} == {"HT401": ("HT421",), "HT429": ("HT421",)}, "one cause"
    planned = sync.sync(door, host.ct, ALL, dry_run=True)
    assert planned.steps and planned.actions and door.effects == [] and host.container.config.read_bytes() == was

    done = sync.sync(door, host.ct, ALL)
    assert ids(done, "fail", "error") == set(), done.findings
    assert host.container.config.read_bytes() == was.replace(b"lxc.cgroup2.devices.allow = c 509:* rwm\n", b"").replace(
        b"c 234:* rwm\n", b"c 234:* rwm\nlxc.cgroup2.devices.allow = c 511:* rwm\n")
    assert [action.argv[-2:] for action in done.actions] == [
        ("devices.allow", "c 511:* rwm"), ("devices.deny", "c 509:* rwm")], "the hole is closed where it is open, too"
    assert host.container.open_errno("/dev/nvidia-uvm") == "ok" and host.container.pid == pid, "nothing was restarted"
    (count,) = [f for f in done.findings if f.id == "HT429"]
    assert count.have == "5 of 5 nodes open, 2 of 2 GPUs"

    door = LiveHost()
    again = sync.sync(door, host.ct, ALL)
    assert not again.changed and door.effects == [] and sync.code(again) == 0, again.findings

    steps, failed = engine.revert(LiveHost(), {})
    assert len(steps) == 1 and failed == [] and host.container.config.read_bytes() == was


def test_live_gives_the_rule_and_leaves_the_file_alone(host: Mission) -> None:
    was = host.container.config.read_bytes()
    done = sync.live(LiveHost(), host.ct, ALL)
    assert done.changed and host.container.open_errno("/dev/nvidia-uvm") == "ok"
    assert host.container.config.read_bytes() == was
    assert not sync.live(LiveHost(), host.ct, ALL).changed
    host.container.stop()
    with pytest.raises(Refused, match="does not run"):
        sync.live(LiveHost(), host.ct, ALL)


def test_a_replaced_node_waits_for_a_restart_that_the_policy_lets(host: Mission) -> None:
    host.hold_old_node()
    assert sync.sync(LiveHost(), host.ct, ALL).changed
    host.container.attach("dd", "if=/dev/zero", "of=/dev/shm/weights", "bs=1M", "count=5")
    pid = host.container.pid

    kept = sync.sync(LiveHost(), host.ct, ALL, restart="idle")
    (pending,) = [f for f in kept.findings if f.id == "HT402"]
    assert host.container.pid == pid and "5.0 MiB in its own tmpfs /dev/shm" in pending.hint.costs
    assert ids(kept, "fail") == {"HT406"} and (pending.status, pending.because) == ("skip", ("HT406",)) and not kept.changed

    host.container.attach("rm", "/dev/shm/weights")
    done = sync.sync(LiveHost(), host.ct, ALL, restart="idle")
    assert host.container.running and host.container.pid != pid and done.changed
    assert ids(done, "fail", "error") == set(), done.findings


def test_always_restarts_and_names_what_it_destroyed(host: Mission) -> None:
    host.hold_old_node()
    host.container.attach("dd", "if=/dev/zero", "of=/dev/shm/weights", "bs=1M", "count=2")
    pid = host.container.pid
    done = sync.sync(LiveHost(), host.ct, ALL, restart="always")
    assert host.container.pid != pid and ids(done, "fail", "error") == set(), done.findings
    assert done.actions[-1].destroys == ("2.0 MiB in its own tmpfs /dev/shm",)


def test_a_node_made_anew_with_its_own_number_is_as_good_as_the_old_one(host: Mission) -> None:
    host.nodes.make("nvidia-uvm", 511, 0)
    done = sync.sync(LiveHost(), host.ct, ALL, restart="always")
    assert [action.name for action in done.actions] == ["live-rule", "live-deny"], "no restart"
    assert host.container.open_errno("/dev/nvidia-uvm") == "ok" and ids(done, "fail", "error") == set(), done.findings


def test_an_unprivileged_container_gets_no_rule(make_container: MakeContainer, nodes: GpuNodes) -> None:
    # Its own /proc cannot be mounted under a faked one, so here nobody drives the nodes: ENXIO, not EPERM, is the point.
    container = make_container(bind_entries(nodes.make_all(), optional=True), unprivileged=True).start()
    was = container.config.read_bytes()
    done = sync.sync(LiveHost(), container.name, ALL)
    assert not done.changed and done.actions == () and container.config.read_bytes() == was
    asked = {f.subject: (f.status, f.have.split(":")[0]) for f in done.findings if f.id == "HT409"}
    assert asked["/dev/nvidia-uvm"] == ("fail", "ENXIO"), "the device cgroup let it through"
    assert asked["/dev/nvidia0"] == ("error", "not-tried"), "without a driver an open would load the module"
    assert "HT401" not in ids(done, "fail")


def test_a_container_that_does_not_run_is_healed_for_its_next_start(host: Mission) -> None:
    host.container.stop()
    done = sync.sync(LiveHost(), host.ct, ALL)
    assert done.changed and not done.actions and "HT430" in ids(done, "skip")
    host.container.start()
    assert host.container.open_errno("/dev/nvidia-uvm") == "ok"
