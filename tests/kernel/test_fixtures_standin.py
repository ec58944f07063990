# SPDX-License-Identifier: Apache-2.0
"""The stand-in libraries against the measured table: each row here is a row of standin/README.md."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel import standin as libraries
from tests.kernel import view
from tests.kernel.cgroup_device import DeviceCgroup, Rule
from tests.kernel.conftest import MakeContainer
from tests.kernel.fake_tree import GPU_UUID, VERSION, FakeTrees
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.standin import Codes, StandIn

HEALTHY = Codes(cuda=0, nvml=0, cuda_devices=2, nvml_devices=2)
NO_UVM = Codes(cuda=999, nvml=0, nvml_devices=2)
WITHOUT_MKNOD = ["setpriv", "--bounding-set=-mknod,-dac_override,-dac_read_search", "--inh-caps=-all", "--"]


@pytest.fixture(autouse=True)
def two_gpus(fake: FakeTrees, nodes: GpuNodes) -> None:
    fake.gpu_host(gpus=2, uvm=511)
    nodes.make_all(gpus=2, uvm=511)


def ask_without_mknod(standin: StandIn, user: int = 0) -> Codes:
    """As root without the right to make nodes, the way an unprivileged container's root is; or as another user."""
    environment = {**os.environ, **standin.env}

    def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
        identity = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []
        return subprocess.run([*WITHOUT_MKNOD, *identity, *argv], env=environment, capture_output=True, text=True)

    return libraries.codes(run)


def test_a_healthy_machine(standin: StandIn) -> None:
    assert libraries.here(standin) == HEALTHY
    assert libraries.here(standin, user=1000) == HEALTHY


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ([Rule(511)], NO_UVM),
        ([Rule(511, 0)], NO_UVM),
        ([Rule(511, 1)], HEALTHY),
        ([Rule(195, 255)], Codes(cuda=100, nvml=999)),
        ([Rule(195, 0)], Codes(cuda=0, nvml=0, cuda_devices=1, nvml_devices=1)),
        ([Rule(195, 0), Rule(195, 1)], Codes(cuda=100, nvml=0, nvml_devices=0)),
        ([Rule(195)], Codes(cuda=100, nvml=999)),
        ([Rule(195, 254)], HEALTHY),
        ([Rule(234)], HEALTHY),
    ],
)
def test_refused_by_the_device_cgroup(
    standin: StandIn, device_programs: type[DeviceCgroup], refused: list[Rule], expected: Codes
) -> None:
    with device_programs(refuse=refused) as cgroup:
        assert libraries.codes(lambda argv: cgroup.run(argv, env={**os.environ, **standin.env})) == expected


def absent(name: str, nodes: GpuNodes) -> None:
    nodes.remove(name)


def placeholder(name: str, nodes: GpuNodes) -> None:
    nodes.placeholder(name)


def stale(name: str, nodes: GpuNodes) -> None:
    nodes.make(name, 509, nodes.number(name).minor)


def other_minor(name: str, nodes: GpuNodes) -> None:
    nodes.make(name, nodes.number(name).major, 9)


Fault = Callable[[str, GpuNodes], None]
REACTIONS = {
    "nvidiactl": Codes(cuda=100, nvml=9),
    "nvidia0": Codes(cuda=0, nvml=0, cuda_devices=1, nvml_devices=1),
    "nvidia-uvm": NO_UVM,
    "nvidia-uvm-tools": HEALTHY,
}


@pytest.mark.parametrize("name", REACTIONS)
@pytest.mark.parametrize("fault", [absent, placeholder, stale, other_minor])
class TestWrongNodes:
    def test_without_the_right_to_make_nodes_the_evidence_is_destroyed(
        self, standin: StandIn, nodes: GpuNodes, fault: Fault, name: str
    ) -> None:
        fault(name, nodes)
        assert ask_without_mknod(standin) == REACTIONS[name]
        assert not (nodes.dev / name).exists()

    def test_with_the_right_the_fault_heals_unseen(
        self, standin: StandIn, nodes: GpuNodes, fault: Fault, name: str
    ) -> None:
        wanted = nodes.number(name)
        fault(name, nodes)
        assert libraries.here(standin) == HEALTHY
        made = (nodes.dev / name).lstat()
        assert stat.S_ISCHR(made.st_mode) and stat.S_IMODE(made.st_mode) == 0o666
        assert nodes.number(name) == wanted

    def test_on_a_read_only_dev_nothing_is_touched(
        self, standin: StandIn, nodes: GpuNodes, fault: Fault, name: str
    ) -> None:
        fault(name, nodes)
        path = nodes.dev / name
        before = path.lstat() if path.exists() else None
        environment = {**os.environ, **standin.env}
        bind = 'mount --bind /dev /dev && mount -o remount,bind,ro /dev && exec "$@"'

        def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["unshare", "--mount", "sh", "-c", bind, "sh", *argv], env=environment, capture_output=True, text=True
            )

        assert libraries.codes(run) == REACTIONS[name]
        after = path.lstat() if path.exists() else None
        assert (before and (before.st_ino, before.st_mode, before.st_rdev)) == (
            after and (after.st_ino, after.st_mode, after.st_rdev)
        )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvidiactl", Codes(cuda=100, nvml=4)),
        ("nvidia0", Codes(cuda=0, nvml=0, cuda_devices=1, nvml_devices=1)),
        ("nvidia-uvm", NO_UVM),
        ("nvidia-uvm-tools", HEALTHY),
    ],
)
def test_a_mode_that_keeps_a_user_out(standin: StandIn, nodes: GpuNodes, name: str, expected: Codes) -> None:
    os.chmod(nodes.dev / name, 0o600)
    assert ask_without_mknod(standin, user=1000) == expected
    assert stat.S_IMODE((nodes.dev / name).stat().st_mode) == 0o600
    assert libraries.here(standin) == HEALTHY  # root resets the mode
    assert stat.S_IMODE((nodes.dev / name).stat().st_mode) == 0o666


@pytest.mark.parametrize(
    ("value", "devices"),
    [("", 0), ("-1", 0), ("9,0", 0), ("0,9", 1), ("1", 1), ("1,0", 2), ("GPU-wrong", 0), (GPU_UUID.format(index=1), 1)],
)
def test_cuda_visible_devices(standin: StandIn, value: str, devices: int) -> None:
    seen = libraries.here(standin, {"CUDA_VISIBLE_DEVICES": value})
    assert (seen.nvml, seen.nvml_devices) == (0, 2)
    assert (seen.cuda, seen.cuda_devices) == ((0, devices) if devices else (100, None))


def test_no_module_no_uvm_module_and_another_version(standin: StandIn, fake: FakeTrees) -> None:
    fake.proc_devices(uvm=None)
    assert libraries.here(standin) == NO_UVM
    fake.driver(version="575.57.08")
    assert libraries.here(standin) == Codes(cuda=803, nvml=18)
    older = libraries.build(view.scratch("standin"), "575.57.08")
    assert (older.folder / "libcuda.so.1").resolve().name == "libcuda.so.575.57.08"
    fake.proc_devices(uvm=511)
    assert libraries.here(older).cuda == 0
    fake.driver(version=None)
    assert libraries.here(standin) == Codes(cuda=100, nvml=9)


def test_a_node_that_nobody_drives_fails_unless_the_switch_is_on(standin: StandIn) -> None:
    assert libraries.here(standin, {"STANDIN_ENXIO_IS_OK": "0"}) == Codes(cuda=100, nvml=9)


def run_python(standin: StandIn, program: str, address_space: int | None = None) -> list[object]:
    """The JSON that a Python program prints, with the libraries in reach."""
    limit = resource.RLIM_INFINITY if address_space is None else address_space
    done = subprocess.run(
        ["python3", "-c", "import ctypes, json, os\ncuda = ctypes.CDLL('libcuda.so.1')\n" + program],
        env={**os.environ, **standin.env}, capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert isinstance(answer, list)
    return answer


@pytest.mark.parametrize(("gigabytes", "code"), [(4, 2), (20, 0)])
def test_an_address_space_limit(standin: StandIn, gigabytes: int, code: int) -> None:
    assert run_python(standin, "print(json.dumps([cuda.cuInit(0)]))", gigabytes * 10**9) == [code]


def test_a_fork_of_an_initialised_process_gets_3(standin: StandIn) -> None:
    program = """
first = cuda.cuInit(0)
if os.fork() == 0:
    print(json.dumps([first, cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))]), flush=True)
    os._exit(0)
os.wait()
"""
    assert run_python(standin, program) == [0, 3, 3]


def test_names_versions_and_a_context(standin: StandIn) -> None:
    program = """
name, version, context, text = ctypes.c_char_p(), ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(80)
cuda.cuGetErrorName(803, ctypes.byref(name)), cuda.cuDriverGetVersion(ctypes.byref(version)), cuda.cuInit(0)
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2(), nvml.nvmlSystemGetDriverVersion(text, 80)
print(json.dumps([name.value.decode(), version.value, text.value.decode(), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 1),
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 2)]))
"""
    expected = ["CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 13000, standin.version, 0, 101]
    assert run_python(standin, program) == expected


@pytest.mark.parametrize("root", ["ct", "old"])
def test_inside_a_container_with_the_stale_rule(
    standin: StandIn, nodes: GpuNodes, fake: FakeTrees, make_container: MakeContainer, root: str
) -> None:
    rules = "lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.cgroup2.devices.allow = c 509:* rwm\n"
    binds = bind_entries([Path("/dev", name) for name in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm")])
    container = make_container(
        rules + binds + fake.container_entries() + "lxc.init.cmd = /bin/sleep infinity\n", root=root
    )
    standin.install(container.rootfs)
    shutil.copy(standin.folder / "driver-opens.so", container.rootfs / "usr/lib")
    container.start()

    def ask() -> Codes:
        return libraries.codes(lambda argv: container.attach(*argv, env=libraries.SWITCH))

    assert ask() == NO_UVM
    assert container.attach("python3", "-c", "", env={"LD_PRELOAD": "/usr/lib/driver-opens.so"}).stderr == ""
    container.live("devices.allow", "c 511:* rwm")
    assert ask() == HEALTHY


def test_nvml_knows_each_gpu_and_nobody_who_computes_there(standin: StandIn) -> None:
    ask = "import dataclasses, json; from hosttune import nvml; print(json.dumps(dataclasses.asdict(nvml.ask())))"
    done = subprocess.run([sys.executable, "-c", ask], env={**os.environ, **standin.env}, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert (told["why"], told["driver"]) == ("", VERSION)
    seen = [(gpu["bdf"], gpu["uuid"], gpu["used"], gpu["processes"]) for gpu in told["gpus"]]
    assert seen == [(f"0000:{n + 1}1:00.0", GPU_UUID.format(index=n), 0, []) for n in range(2)]
    assert told["gpus"][0]["name"] == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
