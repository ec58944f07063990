# SPDX-License-Identifier: Apache-2.0
"""The containers are real ones: systemd boots, the device cgroup answers, live rules and restarts do what LXC says."""

from __future__ import annotations

import os

import pytest

from tests.kernel.conftest import MakeContainer
from tests.kernel.container import DEVICE_ALLOW_LIST
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.nodes import GpuNodes, bind_entries

STALE = "lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.cgroup2.devices.allow = c 509:* rwm\n"


@pytest.mark.parametrize("unprivileged", [False, True])
def test_systemd_boots_and_shuts_down(make_container: MakeContainer, unprivileged: bool) -> None:
    container = make_container(unprivileged=unprivileged)
    container.start(booted=True)
    assert container.attach("ps", "-p", "1", "-o", "comm=").stdout == "systemd\n"
    owner = os.stat(f"/proc/{container.pid}").st_uid
    assert owner == (100000 if unprivileged else 0)
    container.stop(clean=True)
    assert not container.running


@pytest.mark.parametrize("unprivileged", [False, True])
def test_the_founding_case_and_its_live_heal(
    make_container: MakeContainer, nodes: GpuNodes, unprivileged: bool
) -> None:
    # The config allows the major of the last boot; the node has today's.
    entries = bind_entries(nodes.make_all(uvm=511))
    rules = (DEVICE_ALLOW_LIST if unprivileged else "") + STALE
    container = make_container(rules + entries, unprivileged=unprivileged).start()
    assert container.open_errno("/dev/nvidiactl") == "ENXIO"
    assert container.open_errno("/dev/nvidia0") == "ENXIO"
    assert container.open_errno("/dev/nvidia-uvm") == "EPERM"
    assert container.open_errno("/dev/null") == "ok"
    container.live("devices.allow", "c 511:* rwm")
    assert container.open_errno("/dev/nvidia-uvm") == "ENXIO"
    container.live("devices.deny", "c 511:* rwm")
    assert container.open_errno("/dev/nvidia-uvm") == "EPERM"
    container.write_config(rules.replace("509", "511") + entries, unprivileged=unprivileged)
    container.restart()
    assert container.open_errno("/dev/nvidia-uvm") == "ENXIO"


def test_an_unprivileged_container_without_rules_has_no_device_program(
    make_container: MakeContainer, nodes: GpuNodes
) -> None:
    container = make_container(bind_entries(nodes.make_all()), unprivileged=True).start()
    assert container.open_errno("/dev/nvidia-uvm") == "ENXIO"
    assert container.attach("stat", "--format", "%u:%g", "/dev/nvidia-uvm").stdout == "65534:65534\n"


def test_a_node_made_again_on_the_host_is_stale_inside_until_a_restart(
    make_container: MakeContainer, nodes: GpuNodes
) -> None:
    nodes.make_all(uvm=509)
    rules = STALE + "lxc.cgroup2.devices.allow = c 511:* rwm\n"
    container = make_container(rules + bind_entries([nodes.dev / "nvidia-uvm"])).start()
    inside = ["stat", "--format", "%h %Hr", "/dev/nvidia-uvm"]
    assert container.attach(*inside).stdout == "1 509\n"
    nodes.make("nvidia-uvm", 511, 0)
    assert container.attach(*inside).stdout == "0 509\n"
    container.restart()
    assert container.attach(*inside).stdout == "1 511\n"


def test_a_mode_and_a_nodev_mount_say_eacces(make_container: MakeContainer, nodes: GpuNodes) -> None:
    nodes.make("nvidia0", 195, 0, mode=0o600)
    nodes.make("nvidiactl", 195, 255)
    entries = bind_entries([nodes.dev / "nvidia0"])
    entries += bind_entries([nodes.dev / "nvidiactl"]).replace("none bind,", "none bind,nodev,")
    container = make_container(entries, unprivileged=True).start()
    assert container.open_errno("/dev/nvidia0") == "EACCES"
    assert container.open_errno("/dev/nvidiactl") == "EACCES"


def test_containers_share_no_state(make_container: MakeContainer) -> None:
    first = make_container().start()
    assert first.attach("touch", "/etc/only-here").returncode == 0
    second = make_container().start()
    assert second.attach("test", "-e", "/etc/only-here").returncode == 1
    assert first.name != second.name


@pytest.mark.parametrize("unprivileged", [False, True])
def test_the_faked_proc_is_seen_inside(make_container: MakeContainer, fake: FakeTrees, unprivileged: bool) -> None:
    fake.gpu_host(gpus=2, uvm=507)
    container = make_container(fake.container_entries(), unprivileged=unprivileged).start()
    assert "507 nvidia-uvm" in container.attach("cat", "/proc/devices").stdout
    assert container.attach("ls", "/proc/driver/nvidia/gpus").stdout.split() == ["0000:11:00.0", "0000:21:00.0"]


def test_standard_input_output_and_status_pass_through(make_container: MakeContainer) -> None:
    container = make_container(root="old", config="lxc.init.cmd = /bin/sleep infinity\n").start()
    program = "import sys; print('%d.%d' % sys.version_info[:2]); sys.stderr.write('err'); sys.exit(len(sys.argv))"
    done = container.attach("python3", "-", "a b", input=program)
    assert (done.returncode, done.stdout, done.stderr) == (2, "3.9\n", "err")


def test_a_config_that_lxc_refuses_says_why(make_container: MakeContainer) -> None:
    container = make_container("lxc.mount.entry = /dev/not-there dev/not-there none bind\n")
    with pytest.raises(RuntimeError, match="not-there"):
        container.start()
