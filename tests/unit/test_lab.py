# SPDX-License-Identifier: Apache-2.0
"""The lab's own decisions, without a guest: what to run it with, what it needs, when a guest ends and when it goes on."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from hosttune.bench import plan
from hosttune.core.wanted import profile
from hosttune.serve import declare
from lab import LabError, accel, cases, deploy, needs, supervisor
from lab import __main__ as lab_command
from lab.__main__ import FIRST
from lab.image import engine
from lab.image.build import REPOSITORY, Image
from lab.machine import Machine

FAKE_QEMU = """\
#!{python}
import json, pathlib, sys
runs = pathlib.Path({folder!r}, "runs")
runs.write_text((runs.read_text() if runs.exists() else "") + json.dumps(sys.argv) + "\\n")
reasons = {reasons!r}
print(json.dumps({{"QMP": {{}}}}), flush=True)
json.loads(sys.stdin.readline())
reason = reasons[len(runs.read_text().splitlines()) - 1]
if reason:
    print(json.dumps({{"event": "SHUTDOWN", "data": {{"guest": True, "reason": reason}}}}), flush=True)
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Not pytest's folder: its path, with the name of a test and of a process, can be too long for a guest's sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("HOSTTUNE_CACHE", folder)
        monkeypatch.delenv("HOSTTUNE_LAB_ACCEL", raising=False)
        yield


@pytest.mark.parametrize(
    "make, reason",
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.write_text(""), "makes no virtual machine"),
        (lambda path: path.mkdir(), "Is a directory"),
    ],
)
def test_what_is_no_kvm_is_not_used(tmp_path: Path, make: Callable[[Path], object], reason: str) -> None:
    device, cpuinfo = tmp_path / "kvm", tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu vmx\n")
    make(device)
    assert reason in (accel._obstacle(device, cpuinfo) or "")


def test_a_kvm_is_not_trusted_where_the_processor_has_no_virtualisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kvm_pvm: it makes virtual machines, and runs no ordinary kernel in them."""
    device, cpuinfo = tmp_path / "kvm", tmp_path / "cpuinfo"
    device.write_text("")

    def ioctl(fd: int, request: int) -> int:
        return 12 if request == accel.KVM_GET_API_VERSION else os.open(os.devnull, os.O_RDWR)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu hypervisor\n")
    assert "runs no ordinary kernel" in (accel._obstacle(device, cpuinfo) or "")
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu svm\n")
    assert accel._obstacle(device, cpuinfo) is None


@pytest.mark.parametrize("wish", ["tcg", "kvm"])
def test_the_environment_decides_how_to_run(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTTUNE_LAB_ACCEL", wish)
    assert accel.choose(Path("/nonexistent")).name == wish


def test_an_unknown_way_to_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTTUNE_LAB_ACCEL", "xen")
    with pytest.raises(LabError, match="'xen': it can be tcg or kvm"):
        accel.choose(Path("/nonexistent"))


def test_what_is_missing_is_said_in_one_sentence_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root.*sudo$"):
        needs.to_build(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LabError, match="not installed here: qemu-system-x86_64, qemu-img, ssh; 'sudo scripts/setup' installs them"
    ):
        needs.to_run(tmp_path)
    monkeypatch.setattr(needs, "TO_RUN", ())
    monkeypatch.setattr(needs, "RUN_BYTES", 1 << 60)
    with pytest.raises(LabError, match="GB free and the lab needs .* HOSTTUNE_CACHE"):
        needs.to_run(tmp_path / "not" / "there" / "yet")


def test_an_unknown_case_lists_those_that_there_are() -> None:
    with pytest.raises(LabError, match="no case is called 'nonsense'") as refusal:
        cases.apply("nonsense", Machine("none", Image(Path())))
    assert all(name in str(refusal.value) for name in cases.CASES)


def test_a_guest_whose_path_no_socket_can_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTTUNE_CACHE", "/" + "deep/" * 20)
    with pytest.raises(LabError, match="set HOSTTUNE_CACHE to a shorter path"):
        Machine("guest", Image(Path()))


def test_two_guests_at_once_and_no_more() -> None:
    held = [supervisor._slot(0), supervisor._slot(0)]
    with pytest.raises(LabError, match="2 guests run"):
        supervisor._slot(0)
    os.close(held.pop())
    held.append(supervisor._slot(0))
    for fd in held:
        os.close(fd)


@pytest.mark.parametrize(
    "reasons, runs, code",
    [
        (["guest-shutdown"], 1, 0),
        (["guest-reset", "guest-reset", "guest-shutdown"], 3, 0),
        (["guest-panic"], 1, 1),
        ([None], 1, 1),
    ],
)
def test_a_reset_goes_on_with_a_fresh_qemu_and_without_the_snapshot(
    tmp_path: Path, reasons: list[str | None], runs: int, code: int
) -> None:
    guest, programs = tmp_path / "guest", tmp_path / "bin"
    guest.mkdir()
    programs.mkdir()
    qemu = programs / "qemu-system-x86_64"
    qemu.write_text(FAKE_QEMU.format(python=sys.executable, folder=str(tmp_path), reasons=reasons))
    qemu.chmod(0o755)
    settings = {"image": str(tmp_path), "port": 2222, "append": "hosttune=off", "snapshot": "ready", "slot_patience": 0,
                "accel": {"name": "tcg", "options": ["-accel", "tcg"], "why": "a test", "patience": 1.0}}  # fmt: skip
    (guest / "guest.json").write_text(json.dumps(settings))
    done = subprocess.run([sys.executable, "-m", "lab.supervisor", str(guest)], cwd=REPOSITORY, capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}, timeout=60)  # fmt: skip
    assert done.returncode == code, done.stderr
    argvs = [json.loads(line) for line in (tmp_path / "runs").read_text().splitlines()]
    assert ["-loadvm" in argv for argv in argvs] == [True] + [False] * (runs - 1)
    assert all(argv[argv.index("-append") + 1].endswith(" hosttune=off") for argv in argvs)


def test_what_the_lab_declares_is_what_a_user_could() -> None:
    machine = Machine("guest", Image(Path()))
    machine.folder.mkdir(parents=True)
    declared = yaml.safe_load(deploy.inventory(machine, mode="apply").read_text())["all"]["hosts"]["lab"]
    wanted = profile.validate(declared["hosttune"])
    assert (wanted.mode, wanted.bench["plan"]) == ("apply", deploy.PLAN)
    assert declare.engine(wanted, "tiny").model_path == "/srv/models/tiny/tiny.gguf"
    assert plan.load(str(REPOSITORY / "lab/plan.yml")).name == "lab"
    # Ansible's own name for a connection knows user, host and port only, which are the same for all guests.
    assert declared["ansible_control_path"].startswith(str(machine.folder))


def test_without_the_engines_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PACKAGE", "hosttune-no-such-package")
    with pytest.raises(LabError, match="'scripts/setup --venv-only' installs it into .venv$"):
        engine.recipe()


def commands_of(page: str) -> list[str]:
    """What a page has after `make lab-ssh`, without the comments."""
    lines = (REPOSITORY / page).read_text().splitlines()
    (start,) = [number for number, line in enumerate(lines) if "make lab-ssh" in line and line.startswith("    ")]
    block = itertools.takewhile(lambda line: line.startswith("    "), lines[start + 1 :])
    return [line.partition("#")[0].strip() for line in block]


@pytest.mark.parametrize("page", ["README.md", "docs/lab.md"])
def test_a_newcomer_is_told_the_same_three_commands_everywhere(page: str) -> None:
    assert commands_of(page) == list(FIRST)


def test_a_newcomer_is_told_them_where_the_guest_is_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guest = Machine("g", Image(Path()))
    guest.folder.mkdir(parents=True)
    monkeypatch.setattr(deploy, "hosttune", lambda machine: None)
    monkeypatch.setattr(Machine, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "511\n", ""))
    lab_command._ready(guest)
    told = [line.partition("#")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in told if line.startswith("hosttune ")] == list(FIRST)


def test_options_of_a_command_in_the_guest_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(lab_command, "_running", lambda: Machine("g", Image(Path())))
    monkeypatch.setattr(os, "execvp", lambda program, argv: asked.append(argv))
    for command in FIRST:
        assert lab_command.main(["ssh", *command.split()]) == 0
    assert [" ".join(argv[argv.index("lab") + 1 :]) for argv in asked] == list(FIRST)
