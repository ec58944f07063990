# SPDX-License-Identifier: Apache-2.0
"""From door to door: nvidia-smi's library works, cuInit is 999, and hosttune says why, heals it live and takes it back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.kernel import mission
from tests.kernel.mission import Mission
from tests.kernel.standin import StandIn, codes


@pytest.fixture
def host(lxc: None, standin: StandIn) -> Iterator[Mission]:
    made = mission.broken(standin)
    yield made
    made.undo()


def test_the_fault_is_the_founding_one(host: Mission) -> None:
    said = codes(lambda argv: host.container.attach(*argv))
    assert (said.nvml, said.nvml_devices, said.cuda) == (0, 8, 999)


def test_doctor_from_the_host_proves_the_cause(host: Mission) -> None:
    done = host.hosttune("doctor", "--ct", host.ct)
    first = done.stdout.splitlines()[0]
    assert done.returncode == 1, done.stderr
    assert "HT401" in first and "/dev/nvidia-uvm" in first, done.stdout
    for words in ("proved", "EPERM", "511", f"/var/lib/lxc/{host.ct}/config:", "509",
                  f"lxc-cgroup -n {host.ct} devices.allow"):  # fmt: skip
        assert words in done.stdout, done.stdout


def test_doctor_from_inside_names_the_missing_rule(host: Mission) -> None:
    from hosttune.core import corezip

    done = host.container.attach(*corezip.argv(), input=corezip.stdin({"op": "survey"}))
    view = json.loads(done.stdout.splitlines()[-1])["result"]
    (host_file := host.container.folder / "inside.json").write_text(
        json.dumps({"schema": "hosttune.recording/1", "machines": {"host": view}})
    )
    told = host.hosttune("doctor", "--replay", str(host_file))
    assert "HT401" in told.stdout.splitlines()[0] and "c 511:* rwm" in told.stdout, told.stdout


def test_the_live_rule_heals_and_doctor_is_green(host: Mission) -> None:
    host.container.live("devices.allow", "c 511:* rwm")
    said = codes(lambda argv: host.container.attach(*argv))
    assert (said.cuda, said.cuda_devices) == (0, 8)
    done = host.hosttune("doctor", "--ct", host.ct, "--gpus", "8")
    assert "HT401" not in done.stdout, done.stdout


def test_a_container_without_python_is_seen_from_its_host(host: Mission) -> None:
    (host.container.rootfs / "usr/bin/python3").rename(host.container.rootfs / "usr/bin/python3.away")
    done = host.hosttune("doctor", "--ct", host.ct)
    assert "HT904" in done.stdout and "no python3 inside" in done.stdout, done.stdout
    assert "HT401" in done.stdout.splitlines()[0] and "511" in done.stdout, done.stdout


def test_a_container_that_does_not_run_is_could_not_tell(host: Mission) -> None:
    host.container.stop()
    done = host.hosttune("doctor", "--ct", host.ct)
    assert done.returncode == 1 and "HT430" in done.stdout and f"lxc-start -n {host.ct}" in done.stdout, done.stdout
