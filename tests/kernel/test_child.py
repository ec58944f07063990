# SPDX-License-Identifier: Apache-2.0
"""The child on the real kernel: which errno each refusal gives, that nothing is repaired, and that a hang stays in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hosttune.core.door.child import inquire
from hosttune.core.door.host import Inquiry
from tests.kernel import view
from tests.kernel.cgroup_device import DeviceCgroup, Rule
from tests.kernel.conftest import MakeContainer
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.leftovers import nothing_left
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.standin import StandIn

CONTROL, GPU, UVM, TOOLS = "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"
ALL = [CONTROL, GPU, UVM, TOOLS]
CALLS = ["dlopen:libcuda.so.1", "nvmlInit", "nvmlDeviceCount", "cuInit", "cuDeviceGetCount"]
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def one_gpu(fake: FakeTrees, nodes: GpuNodes) -> None:
    fake.gpu_host(gpus=1, uvm=511)
    nodes.make_all(gpus=1, uvm=511)


def said(got: Inquiry, path: str) -> tuple[Any, Any]:
    """What access and open answered. No driver is here, so ENXIO from open means: everything allowed it."""
    return got.nodes[path].get("access"), got.nodes[path].get("open")


def in_cgroup(group: DeviceCgroup, paths: Sequence[str]) -> Inquiry:
    ask = (
        "import json, sys; from hosttune.core.door.child import inquire; print(json.dumps(inquire(sys.argv[1:], []).nodes))"
    )
    done = group.run([sys.executable, "-c", ask, *paths], env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    return Inquiry(json.loads(done.stdout), {})


def test_an_allowed_node_reaches_the_driver() -> None:
    got = inquire(ALL, [])
    assert {path: said(got, path) for path in ALL} == dict.fromkeys(ALL, ("ok", "ENXIO"))
    assert got.nodes[UVM]["rdev"] == "511:0" and got.nodes[UVM]["nlink"] == 1


def test_the_device_cgroup_says_eperm_to_access_and_open(device_programs: type[DeviceCgroup]) -> None:
    with device_programs(refuse=[Rule(511)]) as group:
        got = in_cgroup(group, ALL)
    assert said(got, UVM) == said(got, TOOLS) == ("EPERM", "EPERM")
    assert said(got, CONTROL) == said(got, GPU) == ("ok", "ENXIO")


def test_the_file_mode_says_eacces_to_a_user_and_nothing_to_root(nodes: GpuNodes) -> None:
    nodes.make("nvidia-uvm", 511, 0, mode=0o600)
    assert said(inquire([UVM], [], uid=1000), UVM) == ("EACCES", "EACCES")
    assert said(inquire([UVM], []), UVM) == ("ok", "ENXIO")


def test_a_nodev_mount_lets_access_pass_and_refuses_open(tmp_path: Path) -> None:
    view.mount("-t", "tmpfs", "-o", "nodev", "nodev", str(tmp_path))
    try:
        os.mknod(tmp_path / "nvidia-uvm", 0o020666, os.makedev(511, 0))
        path = str(tmp_path / "nvidia-uvm")
        assert said(inquire([path], []), path) == ("ok", "EACCES")
    finally:
        view.unmount(tmp_path)


def test_what_is_not_a_right_device_is_seen_as_it_is(nodes: GpuNodes) -> None:
    nodes.remove("nvidia0")
    nodes.placeholder("nvidia-uvm")
    nodes.make("nvidia-uvm-tools", 509, 1)
    got = inquire(ALL, [])
    assert got.nodes[GPU] == {"errno": "ENOENT"}
    assert (got.nodes[UVM]["type"], got.nodes[UVM]["size"], *said(got, UVM)) == ("file", 0, "ok", "ok")
    assert (got.nodes[TOOLS]["rdev"], *said(got, TOOLS)) == ("509:1", "ok", "ENXIO")


def test_a_node_of_another_driver_is_never_opened(nodes: GpuNodes) -> None:
    # 249 is a watchdog in this /proc/devices: opening one starts a countdown to a reboot.
    nodes.make("nvidia-uvm", 249, 0)
    assert said(inquire([UVM], []), UVM) == ("ok", "not-tried: 249 is watchdog")


def test_195_is_not_opened_while_nobody_owns_it(fake: FakeTrees) -> None:
    fake.proc_devices(uvm=511, nvidia=False)
    got = inquire([CONTROL, UVM], [])
    assert said(got, CONTROL) == ("ok", "not-tried: 195 has no driver, opening it would load one")
    assert said(got, UVM) == ("ok", "ENXIO")


def test_healthy_calls(standin: StandIn) -> None:
    got = inquire(ALL, [*CALLS, "cuInit@clean-env"], env={**os.environ, **standin.env})
    library = got.calls["dlopen:libcuda.so.1"]
    assert library["version"] == standin.version and library["class"] == 64
    assert Path(library["path"]).parent == standin.folder
    assert {name: got.calls[name] for name in CALLS[1:]} == {
        "nvmlInit": 0, "nvmlDeviceCount": 1, "cuInit": 0, "cuDeviceGetCount": 1,
    }  # fmt: skip
    assert "libcuda.so.1" in got.calls["cuInit@clean-env"]["error"], "LD_LIBRARY_PATH is left out there"
    assert got.protected and not got.stuck
    assert not any("after" in node for node in got.nodes.values())


@pytest.mark.parametrize("user", [None, 1000])
def test_the_libraries_cannot_repair_or_destroy_a_node(standin: StandIn, nodes: GpuNodes, user: int | None) -> None:
    nodes.placeholder("nvidia-uvm")
    nodes.make("nvidia0", 195, 9)
    nodes.make("nvidia-uvm-tools", 511, 1, mode=0)
    before = [os.lstat(path) for path in ALL]
    environment = {**os.environ, **standin.env}
    got = inquire(ALL, CALLS, uid=user, env=environment)
    assert got.protected
    assert got.calls["cuInit"] in (999, 100)
    # stat's access time may move; what the node is must not
    assert [(s.st_ino, s.st_mode, s.st_rdev, s.st_ctime_ns) for s in before] == [
        (s.st_ino, s.st_mode, s.st_rdev, s.st_ctime_ns) for s in map(os.lstat, ALL)
    ]
    assert not any("after" in node for node in got.nodes.values())
    assert (got.nodes[UVM]["type"], got.nodes[GPU]["rdev"]) == ("file", "195:9"), "seen before a library ran"


def test_without_that_protection_the_same_call_repairs_the_node(standin: StandIn, nodes: GpuNodes) -> None:
    # The test above could not fail otherwise.
    nodes.placeholder("nvidia-uvm")
    call = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
    subprocess.run([sys.executable, "-c", call], env={**os.environ, **standin.env}, check=True)
    assert nodes.number("nvidia-uvm").major == 511


def test_node_binds_of_a_container_are_protected_too(standin: StandIn, nodes: GpuNodes) -> None:
    # A container's nodes are mounts of their own below /dev: read-only /dev alone does not cover their modes.
    nodes.make("nvidia-uvm", 511, 0, mode=0o600)
    view.mount("--bind", UVM, UVM)
    try:
        got = inquire([UVM], CALLS, env={**os.environ, **standin.env})
        assert got.protected
        assert os.lstat(UVM).st_mode & 0o777 == 0o600
    finally:
        view.unmount(Path(UVM))


def library(folder: Path, body: str) -> Mapping[str, str]:
    """A libcuda.so.1 whose cuInit does something else."""
    source = folder / "cuda.c"
    source.write_text("#include <stdlib.h>\n#include <unistd.h>\nint cuInit(unsigned f) { %s }\n" % body)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def test_a_call_that_hangs_is_named_and_leaves_no_process(standin: StandIn, tmp_path: Path) -> None:
    with nothing_left():
        got = inquire([UVM], ["cuInit", "cuDeviceGetCount", "dlopen:libc.so.6"], timeout=1,
                      env=library(tmp_path, "for (;;) pause();"))  # fmt: skip
    assert got.stuck == "cuInit"
    assert got.calls["cuInit"] == {"timeout": 1}
    assert got.calls["cuDeviceGetCount"] == {"error": "not asked: the call before it did not return"}
    assert got.calls["dlopen:libc.so.6"]["class"] == 64, "the next library has a process of its own"
    assert said(got, UVM) == ("ok", "ENXIO")


def test_a_call_that_crashes_is_an_answer(standin: StandIn, tmp_path: Path) -> None:
    with nothing_left():
        got = inquire([UVM], ["cuInit", "dlopen:libc.so.6"], env=library(tmp_path, "abort();"))
    assert got.calls["cuInit"] == {"error": "killed by signal 6"}
    assert got.calls["dlopen:libc.so.6"]["class"] == 64
    assert not got.stuck


def test_a_library_that_prints_does_not_spoil_the_answers(standin: StandIn, tmp_path: Path) -> None:
    got = inquire([], ["cuInit"], env=library(tmp_path, 'write(1, "{\\n", 2); return 46;'))
    assert got.calls["cuInit"] == 46


def test_an_answer_for_somebody_else_is_refused() -> None:
    ask = "from hosttune.core.door.child import inquire; inquire(['/dev/null'], [], uid=0)"
    done = subprocess.run(
        ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "/usr/bin/python3", "-c", ask],
        env={"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "PermissionError" in done.stderr and "child cannot setuid" in done.stderr


def test_a_container_is_seen_through_its_own_mounts_and_rules(make_container: MakeContainer, nodes: GpuNodes) -> None:
    rules = "lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.cgroup2.devices.allow = c 509:* rwm\n"
    container = make_container(rules + bind_entries([Path(CONTROL), Path(UVM)])).start()
    got = inquire(ALL, [], pid=container.pid)
    assert said(got, CONTROL) == ("ok", "ENXIO")
    assert said(got, UVM) == ("EPERM", "EPERM")
    assert got.nodes[GPU] == {"errno": "ENOENT"}, "not passed in"
    assert said(inquire([UVM], []), UVM) == ("ok", "ENXIO"), "the caller itself went nowhere"
    container.live("devices.allow", "c 511:* rwm")
    assert said(inquire([UVM], [], pid=container.pid), UVM) == ("ok", "ENXIO")
