# SPDX-License-Identifier: Apache-2.0
"""An unprivileged container gets rules for one reason only: EPERM was seen by opening a node inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosttune.core import engine
from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import sync
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Report
from tests.kernel import mission
from tests.kernel.conftest import MakeContainer
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.view import unmount

ALL = Wanted(gpus=None)


@pytest.fixture
def state(fake: FakeTrees) -> Iterator[FakeTrees]:
    """A host with one GPU, and a journal of the test's own."""
    folders = mission.private_state()
    fake.gpu_host(1)
    yield fake
    for folder in folders:
        unmount(folder)


def statuses(report: Report, id: str) -> list[str]:
    return [f.status for f in report.findings if f.id == id]


def test_a_host_that_refuses_all_the_same_is_seen_healed_and_remembered(
    make_container: MakeContainer, nodes: GpuNodes, state: FakeTrees, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its userns.conf does not clear the device list: a distribution's file, changed by its owner."""
    own = tmp_path_factory.mktemp("lxc") / "userns.conf"
    own.write_text("lxc.cap.drop =\nlxc.cap.keep =\nlxc.tty.dir =\nlxc.mount.auto = sys:rw\n")
    container = make_container("", unprivileged=True)
    text = container.config.read_text().replace("/usr/share/lxc/config/userns.conf", str(own))
    container.config.write_text(text + bind_entries(nodes.make_all(1), optional=True))
    container.start()
    assert container.open_errno("/dev/nvidia-uvm") == "EPERM"
    was = container.config.read_bytes()

    seen = sync.show(LiveHost(), container.name, ALL)
    assert statuses(seen, "HT438") == ["warn"] and "HT401" in {f.id for f in seen.findings}
    done = sync.sync(LiveHost(), container.name, ALL)
    assert container.open_errno("/dev/nvidia-uvm") == "ENXIO", "it is let through; only a driver is missing"
    assert statuses(done, "HT401") == [] and b"devices.allow = /dev/nvidia-uvm rwm" in container.config.read_bytes()

    again = sync.sync(LiveHost(), container.name, ALL)
    assert not again.changed and statuses(again, "HT424") == [], "rules that are needed here are not called dead"
    container.stop()
    container.start()
    assert container.open_errno("/dev/nvidia-uvm") == "ENXIO"
    assert engine.revert(LiveHost(), {})[1] == [] and container.config.read_bytes() == was


def test_a_mode_that_refuses_is_no_reason_for_a_rule(make_container: MakeContainer, nodes: GpuNodes, state: FakeTrees) -> None:
    container = make_container(bind_entries(nodes.make_all(1, mode=0o600), optional=True), unprivileged=True).start()
    was = container.config.read_bytes()
    done = sync.sync(LiveHost(), container.name, ALL)
    assert statuses(done, "HT407") and not done.changed and container.config.read_bytes() == was
    assert statuses(done, "HT438") == []


def test_a_stale_rule_of_an_unprivileged_container_is_dead_text_and_no_cause(
    make_container: MakeContainer, nodes: GpuNodes, state: FakeTrees
) -> None:
    container = make_container(
        "lxc.cgroup2.devices.deny =\nlxc.cgroup2.devices.allow = a\nlxc.cgroup2.devices.allow = c 509:* rwm\n"
        + bind_entries(nodes.make_all(1), optional=True), unprivileged=True).start()  # fmt: skip
    done = sync.sync(LiveHost(), container.name, ALL)
    assert statuses(done, "HT420") == [] and statuses(done, "HT401") == [] and not done.changed
