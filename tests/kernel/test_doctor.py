# SPDX-License-Identifier: Apache-2.0
"""The doctor on a real container with a real device cgroup: what was broken is what it names, and the heal it prints heals.

No driver owns the majors here, so a node that everything allows answers ENXIO; CUDA's stand-in takes that for success, and
the doctor then says "warn" of such a node: CUDA counts every GPU all the same.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from hosttune.core.doctor.diagnose import diagnose
from hosttune.core.doctor.examine import examine, judge
from hosttune.core.doctor.survey import Declared, survey
from hosttune.core.door.live import LiveHost
from hosttune.core.model import Finding, first_cause
from hosttune.core.probes import PROBES
from hosttune.core.recording.record import RecordingHost
from hosttune.core.recording.replay import load
from hosttune.core.recording.shape import SCHEMA
from hosttune.data import machine
from tests.kernel.conftest import MakeContainer
from tests.kernel.container import Container
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.leftovers import nothing_left
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.standin import StandIn

UVM = "/dev/nvidia-uvm"
STALE = "lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.cgroup2.devices.allow = c 509:* rwm\n"
RIGHT = STALE.replace("509", "511")


class Patient:
    """A container with two GPUs; `examine` is a joined look at it and its host."""

    def __init__(
        self, make: MakeContainer, fake: FakeTrees, nodes: GpuNodes, standin: StandIn, monkey: pytest.MonkeyPatch
    ):
        for name, value in standin.env.items():
            monkey.setenv(name, value)
        fake.gpu_host(gpus=2, uvm=511)
        self.paths = nodes.make_all(gpus=2, uvm=511)
        self.rest = fake.container_entries() + "lxc.environment = STANDIN_ENXIO_IS_OK=1\n"
        self.standin, self.container = standin, make()

    def start(self, rules: str, paths: list[Path] | None = None, optional: bool = False) -> Container:
        entries = bind_entries(self.paths if paths is None else paths, optional)
        self.container.write_config(rules + entries + self.rest)
        self.standin.install(self.container.rootfs)
        return self.container.start()

    def examine(self) -> tuple[Finding, ...]:
        recording = examine(LiveHost(), {self.container.name: 2}, Declared(2))
        return tuple(judge(recording, machine)[1])

    def cause(self) -> Finding:
        found = first_cause(self.examine())
        assert found is not None and found.machine == "ct:" + self.container.name
        return found


@pytest.fixture
def patient(
    make_container: MakeContainer, fake: FakeTrees, nodes: GpuNodes, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> Patient:
    return Patient(make_container, fake, nodes, standin, monkeypatch)


def test_the_founding_case_is_proved_and_the_printed_command_heals_it(patient: Patient) -> None:
    container = patient.start(STALE)
    found = patient.examine()
    cause = first_cause(found)
    assert cause is not None
    assert (cause.id, cause.proof, cause.subject) == ("HT401", "proved", UVM)
    lines = container.config.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "c 509:*" in text)
    told = " ".join(cause.evidence)
    assert f"{container.config}:{line} allows 509" in told and "no line allows 511" in told and "EPERM" in told
    no_driver = "HT409"  # open(2) of a node that nobody drives
    assert [(f.id, f.because) for f in found if f.because and f.id != no_driver] == [("HT360", ("HT401",))]
    live, _, sync = cause.hint.command.partition(" && ")
    assert sync == f"hosttune lxc sync {container.name}" and "nothing is lost" in cause.hint.costs
    before = container.pid
    subprocess.run(shlex.split(live), check=True)
    healed = patient.examine()
    assert not [f for f in healed if f.status in ("fail", "error")], healed
    assert [f.have for f in healed if f.id == "HT362"] == ["2", "2"]
    assert container.pid == before, "nothing was restarted"


def test_a_config_that_was_mended_after_the_start(patient: Patient) -> None:
    container = patient.start(STALE)
    container.config.write_text(container.config.read_text().replace("c 509:*", "c 511:*"))
    edited = container.config.stat().st_mtime + 60
    os.utime(container.config, (edited, edited))
    cause = patient.cause()
    assert (cause.id, cause.proof) == ("HT402", "proved")
    assert "younger than the running container" in cause.evidence[-1]
    now = edited - 120
    os.utime(container.config, (now, now))
    container.restart()
    assert first_cause(patient.examine()) is None


def test_a_node_that_the_host_made_anew(patient: Patient, nodes: GpuNodes, fake: FakeTrees) -> None:
    nodes.make("nvidia-uvm", 509, 0)
    nodes.make("nvidia-uvm-tools", 509, 1)
    container = patient.start(STALE + RIGHT)
    nodes.make("nvidia-uvm", 511, 0)
    nodes.make("nvidia-uvm-tools", 511, 1)
    cause = patient.cause()
    assert (cause.id, cause.proof, cause.have, cause.want) == ("HT406", "proved", "509:0", "511:0")
    assert cause.hint.command == f"hosttune lxc sync {container.name} --restart always"
    container.restart()
    assert first_cause(patient.examine()) is None


def test_a_placeholder_is_not_mended_by_a_mode(patient: Patient, nodes: GpuNodes) -> None:
    for name in ("nvidia-uvm", "nvidia-uvm-tools"):
        nodes.remove(name)
    patient.start(RIGHT, optional=True)
    nodes.make("nvidia-uvm", 511, 0)
    nodes.make("nvidia-uvm-tools", 511, 1)
    cause = patient.cause()
    assert (cause.id, cause.proof, cause.subject) == ("HT404", "proved", UVM)
    assert "chmod" not in cause.hint.command


def test_a_node_that_no_line_passes_in(patient: Patient) -> None:
    patient.start(RIGHT, [path for path in patient.paths if "uvm" not in path.name])
    cause = patient.cause()
    assert (cause.id, cause.proof, cause.subject) == ("HT403", "proved", UVM)
    assert f"no line of {patient.container.config} passes it in" in cause.evidence[-1]


def test_the_host_sees_a_container_that_cannot_be_asked(patient: Patient) -> None:
    container = patient.start(STALE)
    declared = Declared(container_ids=(container.name,), outside=(container.name,))
    recorder = RecordingHost(LiveHost())
    host = survey(recorder, declared)
    assert host.outside[container.name][UVM].open == "EPERM"
    found = diagnose({"host": host}, PROBES)
    cause = first_cause(tuple(found))
    assert cause is not None
    assert (cause.id, cause.proof, cause.machine) == ("HT401", "proved", "ct:" + container.name)
    replayed = load({"schema": SCHEMA, "machines": {"host": recorder.view}}, machine)["host"]
    assert diagnose({"host": survey(replayed, declared)}, PROBES) == found
    assert replayed.unrecorded == []


@pytest.mark.parametrize("mode", [0o666, 0o660])
def test_the_root_of_an_unprivileged_container_is_asked_as_what_it_is(
    make_container: MakeContainer, fake: FakeTrees, nodes: GpuNodes, mode: int
) -> None:
    fake.gpu_host(gpus=1, uvm=511)
    paths = nodes.make_all(gpus=1, uvm=511, mode=mode)
    container = make_container(bind_entries(paths) + fake.container_entries(), unprivileged=True).start()
    host = survey(LiveHost(), Declared(container_ids=(container.name,), outside=(container.name,)))
    found = diagnose({"host": host}, PROBES)
    ids = {f.id for f in found if (f.status == "fail" or f.because) and f.machine == "ct:" + container.name}
    assert ids == ({"HT409"} if mode == 0o666 else {"HT407"}), "HT409: no driver is here, and ENXIO is its refusal"


def test_a_survey_leaves_no_process_and_no_open_file(fake: FakeTrees, nodes: GpuNodes) -> None:
    fake.gpu_host(gpus=1, uvm=511)
    nodes.make_all(gpus=1, uvm=511)
    with nothing_left():
        survey(LiveHost())


def test_a_container_that_is_not_there_is_could_not_tell(fake: FakeTrees, nodes: GpuNodes) -> None:
    fake.gpu_host(gpus=1, uvm=511)
    nodes.make_all(gpus=1, uvm=511)
    found = diagnose({"host": survey(LiveHost(), Declared(container_ids=("nobody",)))}, PROBES)
    assert [(f.status, f.subject) for f in found if f.machine == "ct:nobody"] == [("error", "container nobody")]
