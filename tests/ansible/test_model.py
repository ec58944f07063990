# SPDX-License-Identifier: Apache-2.0
"""Models through Ansible: planned, predicted, copied detached, left alone the second time, refused with a way out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosttune.core.stage import manifest
from tests.ansible.conftest import Machine
from tests.kernel.container import REPOSITORY
from tests.kernel.view import mount, unmount
from tests.unit.hub_server import Hub, serving
from tests.unit.stage_models import contents, plain, read_back

MOUNT = Path(manifest.MOUNT)


@pytest.fixture(autouse=True)
def shm(private_namespace: None) -> Iterator[None]:
    """An empty /dev/shm."""
    mount("-t", "tmpfs", "-o", "mode=1777,size=1g", "tests-shm", "/dev/shm")
    yield
    if MOUNT.is_mount():
        unmount(MOUNT)
    unmount("/dev/shm")


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, Any]:
    """A profile with one model."""
    return {"mode": "apply", "models": {"tiny": {"source": str(plain(tmp_path / "a model"))}}}


def test_plan_and_check_mode_say_what_would_be_copied_and_make_nothing(machine: Machine, wanted: dict[str, Any]) -> None:
    for flags, profile, changed in (((), {**wanted, "mode": "plan"}, "changed=0"), (("--check",), wanted, "changed=1")):
        told = machine.play("models", profile, *flags)
        assert told.returncode == 0 and changed in told.stdout, told.stdout + told.stderr
        assert "would run on tiny: hosttune stage add tiny" in told.stdout and "HT501 tiny" in told.stdout
        assert not MOUNT.exists()


def test_apply_copies_detached_and_the_second_run_changes_nothing(machine: Machine, wanted: dict[str, Any]) -> None:
    told = machine.play("models", wanted)
    assert told.returncode == 0 and "changed=1" in told.stdout, told.stdout + told.stderr
    assert "ASYNC OK" in told.stdout + told.stderr
    assert read_back(MOUNT / "tiny") == contents()
    told = machine.play("models", wanted)
    assert told.returncode == 0 and "changed=0" in told.stdout, told.stdout
    again = machine.module("model", profile=wanted)
    assert again["ok"] and not again["changed"] and again["effects"] == [] and again["actions"] == []


def test_model_that_is_refused_keeps_no_other_from_being_staged_and_fails_the_play(
    machine: Machine, wanted: dict[str, Any]
) -> None:
    wanted["models"]["away"] = {"source": "hf:org/away@main"}
    told = machine.play("models", wanted)
    assert told.returncode == 2 and "HT506 away" in told.stdout and "hf download org/away" in told.stdout
    assert read_back(MOUNT / "tiny") == contents()


def test_only_named_models_are_staged(machine: Machine, wanted: dict[str, Any]) -> None:
    wanted["models"]["away"] = {"source": "/nonexistent"}
    told = machine.module("model", profile=wanted, only=["tiny"])
    assert told["ok"] and told["changed"] and (MOUNT / "tiny").is_dir()
    told = machine.module("model", profile=wanted, only=["tinny"])
    assert told["rc"] == 2 and "known: away, tiny" in told["msg"]


def test_machine_without_models_is_told_so(machine: Machine) -> None:
    told = machine.play("models", {"mode": "apply"})
    assert told.returncode == 0 and "no models are declared" in told.stdout and "changed=0" in told.stdout


def test_model_of_the_hub_is_planned_then_downloaded_by_the_command_of_the_target(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "hosttune"
    code = "import sys; sys.path.insert(0, %r); from hosttune.cli import main; sys.exit(main(sys.argv[1:]))" % str(REPOSITORY)
    command.write_text("#!%s\n%s\n" % (sys.executable, code.replace("; ", "\n")))
    command.chmod(0o755)
    token = tmp_path / "token"
    token.write_text("hf_x")
    token.chmod(0o600)
    wanted = {"mode": "apply", "models": {"tiny": {"source": "hf:org/tiny@main", "token-file": str(token)}}}
    with serving(Hub("org/tiny", contents(), token="hf_x")) as hub:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        told = machine.module("model", profile={**wanted, "mode": "plan"}, command=str(command))
        assert not told["changed"] and told["actions"][0]["argv"][:3] == ["hf", "download", "org/tiny"] and hub.asked == []
        told = machine.module("model", profile=wanted, command=str(command))
        assert told["ok"] and told["changed"] and read_back(MOUNT / "tiny") == contents(), told
        hub.asked.clear()
        told = machine.module("model", profile=wanted, command=str(command))
        assert told["ok"] and not told["changed"] and hub.asked == []
