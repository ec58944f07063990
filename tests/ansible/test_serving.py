# SPDX-License-Identifier: Apache-2.0
"""The serving and preflight plays with a real engine in a real container: planned, started, awaited, and left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.conftest import Ansible, Machine
from tests.kernel import serving
from tests.kernel.conftest import MakeContainer, _cannot, make_container
from tests.kernel.container import Container

__all__ = ["make_container"]

UNIT = "hosttune-tiny.service"


@dataclass
class Serving:
    """The machine, its container, and the profile with one engine."""

    ansible: Ansible
    ct: Container

    def profile(self, mode: str, **engine: Any) -> dict[str, Any]:
        made = serving.profile(self.ct, **engine)
        return {"mode": mode, "models": dict(made.models), "engines": dict(made.engines)}

    def state(self) -> str:
        return self.ct.attach("systemctl", "show", UNIT, "-P", "ActiveState").stdout.strip()


@pytest.fixture
def host(machine: Machine, lxc: None, make_container: MakeContainer) -> Iterator[Serving]:
    package = serving.package()
    if package is None:
        _cannot("not installed: xllamacpp; scripts/setup installs it")
    for folder in ("/usr/local/bin", "/usr/local/lib"):
        machine.fake.folder(folder, {})
    yield Serving(machine, serving.container(make_container, package))


def test_plan_and_check_show_the_unit_and_leave_nothing_behind(host: Serving) -> None:
    for mode, flags in (("plan", ()), ("apply", ("--check", "--diff"))):
        told = host.ansible.play("serving", host.profile(mode), *flags)
        assert told.returncode == 0, told.stdout + told.stderr
        assert "would change ct:%s:/etc/systemd/system/%s" % (host.ct.name, UNIT) in told.stdout
        assert "would run on ct:%s:%s: systemctl start" % (host.ct.name, UNIT) in told.stdout
        assert ("changed=0" in told.stdout) is (mode == "plan"), told.stdout
        assert "+AssertPathExists=" in told.stdout if flags else True
        assert host.state() == "inactive" and not (host.ct.rootfs / "etc/systemd/system" / UNIT).exists()
        assert list(Path("/usr/local/bin").iterdir()) == list(Path("/usr/local/lib").iterdir()) == []
        assert not list(Path("/tmp").glob("hosttune-*/hosttune"))


def test_apply_starts_it_and_waits_and_a_second_run_changes_nothing(host: Serving) -> None:
    told = host.ansible.play("serving", host.profile("apply"))
    assert told.returncode == 0 and host.state() == "active", told.stdout + told.stderr
    assert Path("/usr/local/bin/hosttune").resolve().parent.parent == Path("/usr/local/lib/hosttune")
    pid = host.ct.attach("systemctl", "show", UNIT, "-P", "MainPID").stdout
    told = host.ansible.play("serving", host.profile("apply"))
    assert told.returncode == 0 and "changed=0" in told.stdout, told.stdout
    assert host.ct.attach("systemctl", "show", UNIT, "-P", "MainPID").stdout == pid

    (host.ct.rootfs / "srv/models/tiny/tiny.gguf").rename(host.ct.rootfs / "srv/models/tiny/gone.gguf")
    host.ct.attach("systemctl", "stop", UNIT)
    told = host.ansible.play("preflight", host.profile("plan"))
    assert told.returncode == 2 and "the model is not there" in told.stdout and "hosttune stage add tiny" in told.stdout


def test_an_engine_that_dies_fails_the_play_with_its_reason(host: Serving) -> None:
    told = host.ansible.play("serving", host.profile("apply", args={"no_such": "1"}))
    assert told.returncode == 2 and "does not know an argument" in told.stdout, told.stdout
