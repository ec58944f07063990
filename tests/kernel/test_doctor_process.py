# SPDX-License-Identifier: Apache-2.0
"""Through the eyes of a process or a unit: real processes with their own limits, /dev and device cgroup; a real systemd's
sandbox; a program that a real AddressSanitizer is built into."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core.doctor.diagnose import diagnose
from hosttune.core.doctor.examine import declared_of
from hosttune.core.doctor.survey import Declared, Machine, survey
from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import inside
from hosttune.core.model import Finding, Refused, first_cause
from hosttune.core.probes import PROBES
from hosttune.core.recording.record import RecordingHost
from hosttune.core.recording.replay import load
from hosttune.core.recording.shape import SCHEMA
from hosttune.data import machine
from tests.kernel.cgroup_device import DeviceCgroup, Rule
from tests.kernel.conftest import MakeContainer
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.standin import StandIn

UVM = "/dev/nvidia-uvm"


@pytest.fixture
def gpu(fake: FakeTrees, nodes: GpuNodes, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.gpu_host(gpus=1, uvm=511)
    nodes.make_all(gpus=1, uvm=511)
    for name, value in standin.env.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to look at; ended after the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def findings(declared: Declared) -> tuple[Finding, ...]:
    """What a doctor says, live and again from its recording."""
    recorder = RecordingHost(LiveHost())
    found = diagnose({"host": survey(recorder, declared)}, PROBES)
    replayed = load({"schema": SCHEMA, "machines": {"host": recorder.view}}, machine)["host"]
    assert diagnose({"host": survey(replayed, declared)}, PROBES) == found
    return tuple(found)


def start(running: list[subprocess.Popen[bytes]], *argv: str) -> int:
    running.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
    out = running[-1].stdout
    assert out is not None and out.readline() == b"ready\n"
    return running[-1].pid


def test_a_process_with_a_limit_and_a_variable(gpu: None, running: list[subprocess.Popen[bytes]]) -> None:
    pid = start(
        running, "prlimit", "--as=4294967296", "env", "CUDA_VISIBLE_DEVICES=-1", "sh", "-c", "echo ready; sleep 60"
    )
    found = findings(Declared(pid=pid))
    limit = next(f for f in found if f.id == "HT365")
    assert limit.have == "4294967296" and f"/proc/{pid}/limits" in limit.evidence[0]
    seen = survey(LiveHost(), Declared(pid=pid))
    assert seen.env["CUDA_VISIBLE_DEVICES"] == "-1", "the process's own environment, not this one's"
    assert seen.calls["cuInit"] == 100, "CUDA was asked in it"


def test_a_process_in_a_device_cgroup_that_refuses(
    gpu: None, running: list[subprocess.Popen[bytes]], device_programs: type[DeviceCgroup]
) -> None:
    with device_programs(refuse=[Rule(511)]) as cgroup:
        pid = start(running, "sh", "-c", f"echo $$ > {cgroup.path}/cgroup.procs; echo ready; exec sleep 60")
        found = findings(Declared(pid=pid))
        running[-1].kill()
        running[-1].wait()
    cause = first_cause(found)
    assert cause is not None and (cause.id, cause.subject, cause.have) == ("HT401", UVM, "EPERM")
    assert [f.summary for f in found if f.id == "HT360"] == ["CUDA was not asked"], (
        "it would be asked outside of that cgroup"
    )


def test_a_process_with_a_dev_of_its_own(gpu: None, running: list[subprocess.Popen[bytes]]) -> None:
    pid = start(running, "unshare", "-m", "sh", "-c", "mount -t tmpfs none /dev && echo ready && exec sleep 60")
    found = findings(Declared(pid=pid))
    cause = first_cause(found)
    assert cause is not None and cause.id == "HT403"
    assert Path(UVM).exists()


def test_a_program_built_with_address_sanitizer(
    gpu: None, running: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    source = tmp_path / "t10.c"
    source.write_text(
        '#include <stdio.h>\n#include <unistd.h>\nint main(void) { puts("ready"); fflush(stdout); sleep(60); return 0; }\n'
    )
    subprocess.run(["cc", "-fsanitize=address", "-o", tmp_path / "t10", source], check=True)
    pid = start(running, str(tmp_path / "t10"))
    told = next(f for f in findings(Declared(pid=pid)) if f.id == "HT366")
    assert told.subject == f"t10 {pid}" and "libasan" in told.have


def test_what_is_no_process_is_refused() -> None:
    with pytest.raises(Refused, match="there is no process"):
        survey(LiveHost(), Declared(pid=2**22 + 1))


@pytest.mark.parametrize(
    ("sandbox", "expected", "words"),
    [
        ("PrivateDevices=yes", "HT369", ["PrivateDevices=yes", "ENOENT", "/etc/systemd/system/llm.service"]),
        ("DevicePolicy=closed", "HT369", ["lacks /dev/nvidiactl and /dev/nvidia-uvm", "EPERM"]),
        ("DeviceAllow=char-nvidia rw\nDeviceAllow=char-nvidiactl rw\nDeviceAllow=char-nvidia-uvm rw", None, []),
        ("DeviceAllow=char-nvidia rw\nDeviceAllow=/dev/nvidia-uvm rw", None, []),
        ("DeviceAllow=char-nvidia* rw", None, []),
        ("DeviceAllow=char-nvidia rw\nDeviceAllow=char-nvidia-uvm r", "HT369", ["lacks /dev/nvidia-uvm", "EPERM"]),
        ("Environment=CUDA_VISIBLE_DEVICES=9", None, []),
    ],
)
def test_the_sandbox_of_a_unit(
    fake: FakeTrees,
    nodes: GpuNodes,
    make_container: MakeContainer,
    sandbox: str,
    expected: str | None,
    words: list[str],
) -> None:
    fake.gpu_host(gpus=1, uvm=511)
    rules = "".join(f"lxc.cgroup2.devices.allow = c {major}:* rwm\n" for major in (195, 511))
    container = make_container(rules + bind_entries(nodes.make_all(gpus=1, uvm=511)) + fake.container_entries())
    container.start(booted=True)
    unit = f"[Service]\n{sandbox}\nExecStart=/bin/sleep 300\n"
    container.attach("sh", "-c", "cat > /etc/systemd/system/llm.service && systemctl start llm", input=unit)
    view = inside.ask(LiveHost(), container.name, {"op": "survey", "declared": {"service": "llm"}})
    replayed = load({"schema": SCHEMA, "machines": {"host": view}}, machine)["host"]
    seen = survey(replayed, declared_of(view["declared"]))
    assert seen.process is not None and seen.process.pid and replayed.unrecorded == []
    found = tuple(diagnose({"host": seen}, PROBES))
    cause = first_cause(found)
    told = "" if cause is None else " ".join([cause.summary, *cause.evidence])
    if expected:
        assert cause is not None and (cause.id, cause.proof) == (expected, "proved"), found
        assert [word for word in words if word not in told] == []
        assert {f.because for f in found if f.id in ("HT401", "HT403", "HT410") and f.status == "skip"} == {(expected,)}
    else:
        assert [f.status for f in found if f.id == "HT369"] == ["ok"], told
        assert seen.env.get("CUDA_VISIBLE_DEVICES") == ("9" if "Environment" in sandbox else None)


def test_a_privileged_container_tells_from_inside_what_its_rules_let_open(
    fake: FakeTrees, nodes: GpuNodes, make_container: MakeContainer
) -> None:
    fake.gpu_host(gpus=1, uvm=511)
    rules = "".join(f"lxc.cgroup2.devices.allow = c {rule} rwm\n" for rule in ("195:*", "509:*", "236:1"))
    container = make_container(rules + bind_entries(nodes.make_all(gpus=1, uvm=511)) + fake.container_entries()).start()
    view = inside.ask(LiveHost(), container.name, {"op": "survey", "declared": {"contexts": True}})
    replayed = load({"schema": SCHEMA, "machines": {"host": view}}, machine)["host"]
    seen = survey(replayed, declared_of(view["declared"]))
    assert seen.calls["allowlist"] == {"allowed": "195:* 236:1 509:*"}
    cause = first_cause(tuple(diagnose({"host": seen}, PROBES)))
    assert cause is not None and (cause.id, cause.proof) == ("HT401", "proved")
    assert cause.evidence[2] == "the device program here lets open: 195:* 236:1 509:*"
    assert container.attach("ls", "/mnt").stdout == "", "the probe's nodes were in a tmpfs of its own"


def test_cgroup_v1_is_asked_in_the_same_way(gpu: None, running: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    done = subprocess.run(["mount", "-t", "cgroup", "-o", "devices", "none", tmp_path], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this kernel has no device controller of cgroup v1: {done.stderr.strip()}")
    group = tmp_path / "hosttune-test"
    group.mkdir()
    try:
        (group / "devices.deny").write_text("c 511:* rwm")
        argv = ["sh", "-c", f"echo $$ > {group}/cgroup.procs; exec python3 -m hosttune doctor -o json"]
        report = json.loads(subprocess.run(argv, capture_output=True, text=True).stdout)
        assert report["first_cause"] == "HT401", report
    finally:
        group.rmdir()
        subprocess.run(["umount", tmp_path], check=True)


ANSWERS = {
    "garbage": ("for i in range(300000): print('x' * 99)\nprint('{\"torch\": [[[')", "error", "does not answer"),
    "silence": ("raise SystemExit(3)", "error", "exit code 3"),
    "odd types": (
        'print(\'{"torch": {"a": 1}, "runtime": 5, "driver": "x", "gpus": "many", "error": [1]}\')',
        "skip",
        "PyTorch",
    ),
    "control": ("import sys; sys.exit('\\x1b[2Jno')", "error", "no"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_engine_python_that_answers_oddly_hides_nothing_else(gpu: None, tmp_path: Path, name: str) -> None:
    """A real program in an interpreter's place: what it says is could-not-tell, and the nodes are judged all the same."""
    text, status, words = ANSWERS[name]
    program = tmp_path / "python"
    program.write_text("#!/usr/bin/env python3\n" + text + "\n")
    program.chmod(0o755)
    Path(UVM).unlink()
    found = findings(Declared(engine_python=str(program)))
    told = [f for f in found if f.id == "HT359" or f.id == "HT903"]
    assert [(f.status, words in f.summary) for f in told] == [(status, True)], told
    cause = first_cause(found)
    assert cause is not None and (cause.id, cause.subject) == ("HT403", UVM)


UNITS = {
    "llm@.service": "[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=%i\nExecStart=/bin/sleep 300\n",
    "bad.service": "[Service]\nPrivateDevices=yes\nExecStart=/bin/false\n",
    "real.service": "[Service]\nExecStart=/bin/sleep 300\n[Install]\nAlias=chat.service\n",
}


def test_a_unit_in_any_state(fake: FakeTrees, nodes: GpuNodes, make_container: MakeContainer) -> None:
    """Of a template, by an alias, failed, masked, none: each is looked at as what it is, or refused by name."""
    fake.gpu_host(gpus=1, uvm=511)
    rules = "".join(f"lxc.cgroup2.devices.allow = c {major}:* rwm\n" for major in (195, 511))
    container = make_container(rules + bind_entries(nodes.make_all(gpus=1, uvm=511)) + fake.container_entries())
    container.start(booted=True)
    for name, text in UNITS.items():
        container.attach("sh", "-c", f"cat > /etc/systemd/system/{name}", input=text)
    container.attach(
        "sh",
        "-c",
        "systemctl enable real; systemctl start real llm@0 bad; systemctl mask gone; systemctl is-failed bad",
    )

    def ask(service: str) -> tuple[Machine, tuple[Finding, ...]]:
        view = inside.ask(LiveHost(), container.name, {"op": "survey", "declared": {"service": service}})
        seen = survey(
            load({"schema": SCHEMA, "machines": {"host": view}}, machine)["host"], declared_of(view["declared"])
        )
        return seen, tuple(diagnose({"host": seen}, PROBES))

    for service, running in (("llm@0", True), ("llm@0.service", True), ("chat", True), ("bad", False), ("gone", False)):
        seen, found = ask(service)
        assert seen.process is not None and bool(seen.process.pid) == running, service
        assert not [f for f in found if f.status == "error"], (service, found)
    assert ask("llm@0")[0].env.get("CUDA_VISIBLE_DEVICES") == "0"
    cause = first_cause(ask("bad")[1])
    assert cause is not None and (cause.id, cause.proof) == ("HT369", "fits"), (
        "it does not run: nothing was seen inside"
    )
    for service in ("nope", "llm@", "*", "-Hroot@elsewhere"):
        with pytest.raises(Refused, match="no such unit|names no unit|neither a valid|not loaded"):
            ask(service)
