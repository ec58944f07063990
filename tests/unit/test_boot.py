# SPDX-License-Identifier: Apache-2.0
"""What a boot does, on machines on paper: bounded, stopped by one word, and only what the profile's mode lets it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import corezip, engine, units
from hosttune.core.door.host import digest
from hosttune.core.knobs import boot_units
from hosttune.core.model import Refused
from hosttune.core.recording.merge import merge
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.stage import manifest, nodes, tmpfs
from hosttune.core.unattended import bound, keeping, stages
from hosttune.core.wanted.profile import PATH, validate

ROOT = Path(__file__).resolve().parents[2]
MACHINE = json.loads((Path(__file__).parents[1] / "cases/knobs/mrrs-512-to-4096.json").read_text())["machine"]
SETPCI = "setpci -s 0000:11:00.0 CAP_EXP+8.w=5000:7000"
OFF_FILE = {"files": {keeping.OFF: {"errno": "ENOENT"}}}


def host(profile: Any, **more: Any) -> ReplayHost:
    text = profile if isinstance(profile, str) else json.dumps(profile)
    return ReplayHost(merge(merge(MACHINE, OFF_FILE), merge({"files": {PATH: text}}, more)))


def run(machine: ReplayHost, stage: str = "knobs") -> tuple[int, list[str]]:
    said: list[str] = []
    return stages.run(machine, stage, said.append), said


APPLY = {"mode": "apply", "knobs": {"pcie-max-read-request": "4096", "boot-units": "on"}}


def test_apply_writes_and_says_so() -> None:
    config = "/sys/bus/pci/devices/0000:11:00.0/config"
    after = bytearray.fromhex(MACHINE["files"][config]["hex"])
    after[0x69] = 0x59
    machine = host(APPLY, commands={SETPCI: {"rc": 0, "then": {"files": {config: {"hex": after.hex()}}}}})
    code, said = run(machine)
    assert code == 0, said
    assert "changed 0000:11:00.0 MaxReadReq" in said and said[-1] == "knobs: all is as wanted"


def test_plan_only_says_what_it_would() -> None:
    machine = host(dict(APPLY, mode="plan"))
    code, said = run(machine)
    assert machine.effects == [] and code == 1
    assert "would change 0000:11:00.0 MaxReadReq" in said


@pytest.mark.parametrize(
    "more",
    [{"files": {"/proc/cmdline": "ro quiet hosttune=off\n"}}, {"files": {keeping.OFF: ""}}],
    ids=["kernel-parameter", "file"],
)
@pytest.mark.parametrize("stage", sorted(stages.STAGES))
def test_one_word_stops_it(more: dict[str, Any], stage: str) -> None:
    machine = host(APPLY, **more)
    code, said = run(machine, stage)
    assert (code, machine.effects) == (0, []) and said[0].startswith("off:")


def test_a_word_that_only_looks_like_it_does_not_stop_it() -> None:
    _, said = run(host(dict(APPLY, mode="plan"), files={"/proc/cmdline": "ro xhosttune=off hosttune=offline\n"}))
    assert not said[0].startswith("off:")


def test_models_that_cannot_be_staged_are_named_one_by_one_and_stop_nothing() -> None:
    """One is on another machine, the other asks for a node that there is not: both are told, nothing is raised."""
    NONE = {"errno": "ENOENT"}
    models = {"away": {"source": "ssh:other:/srv/away"}, "odd": {"source": "/srv/odd", "placement": "node:1"}}
    files = {"/proc/self/mountinfo": "", tmpfs.THP: NONE, tmpfs.UNIT: NONE, nodes.SYSFS + "/has_memory": "0\n",
             manifest.manifest_path("away"): NONE, manifest.manifest_path("odd"): NONE}  # fmt: skip
    place = {"files": files, "nodes": {"/srv": NONE},
             "dirs": {"/dev/shm/models": NONE, "/run/systemd": [], "/sys/devices/system/node": NONE}}  # fmt: skip
    machine = host({"mode": "apply", "models": models}, **place)
    code, said = run(machine, "models")
    assert (code, machine.effects, said[-1]) == (1, [], "models: 2 not as wanted")
    told = "\n".join(said)
    assert "HT506 host away: away: a recording cannot ask another machine" in told
    assert "HT506 host odd: odd: this machine has no memory on node 1 (nodes with memory: 0)" in told


def test_without_models_there_is_nothing_to_stage() -> None:
    assert run(host(APPLY), "models") == (0, ["no models are declared", "models: all is as wanted"])


def test_guests_wait_for_settings_and_nodes_but_for_no_copy() -> None:
    waits = {name: "pve-guests.service" in before(boot_units.unit(name, "/code")) for name in UNITS}
    assert waits == {boot_units.KNOBS_UNIT: True, boot_units.DEVICES_UNIT: True, boot_units.STAGE_UNIT: False}
    texts = [boot_units.unit(name, "/code") for name in UNITS]
    assert all("\nTimeoutStartSec=" in text and "\nRequiredBy=" not in text for text in texts), (
        "bounded, and required by nobody"
    )


@pytest.mark.parametrize(
    ("sources", "waits"),
    [
        ([], False),
        (["/srv/m", "hf:org/m@main"], False),  # at boot hf: is the cache of this machine
        (["/srv/m", "ssh:far:/srv/m"], True),
    ],
)
def test_a_boot_waits_for_a_network_only_for_a_model_of_another_machine(sources: list[str], waits: bool) -> None:
    models = {"m%d" % number: {"source": spec} for number, spec in enumerate(sources)}
    by_name, _ = bound.with_profile(validate(dict(APPLY, models=models)))
    sha = "sha256:" + digest(corezip.archive())
    absent = {"files": {boot_units.code_path(sha): {"errno": "ENOENT"}, PATH: {"errno": "ENOENT"}}}
    _, steps = engine.plan(by_name["boot-units"], ReplayHost(merge(merge(MACHINE, SYSTEMD), absent)), "on")
    texts = {step.target: step.after or "" for step in steps}
    asking = [path for path, text in texts.items() if "network" in text and path != PATH]
    assert asking == (["/etc/systemd/system/" + boot_units.STAGE_UNIT] if waits else [])
    if waits:
        lines = texts[asking[0]].splitlines()
        assert "Wants=network-online.target" in lines and "After=network-online.target" in lines


def before(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("Before=")]
    return line.removeprefix("Before=").split()


def test_no_profile_is_nothing_to_do() -> None:
    machine = ReplayHost(merge(merge(MACHINE, OFF_FILE), {"files": {PATH: {"errno": "ENOENT"}}}))
    assert run(machine)[0] == 0 and machine.effects == []


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ('{"kobs": {}}', "did you mean knobs")])
def test_a_bad_profile_changes_nothing_and_is_named(text: str, words: str) -> None:
    machine = host(text)
    with pytest.raises(Refused) as e:
        run(machine)
    assert words in str(e.value) and PATH in str(e.value) and machine.effects == []


UNITS = (boot_units.KNOBS_UNIT, boot_units.DEVICES_UNIT, boot_units.STAGE_UNIT)
SYSTEMD: dict[str, dict[str, Any]] = {
    "dirs": {"/run/systemd/system": []},
    "nodes": {
        "/etc/systemd/system/%s.wants/%s" % (by, name): {"errno": "ENOENT"} for name, by in boot_units.ENABLED.items()
    },
    "files": {"/etc/systemd/system/%s" % name: {"errno": "ENOENT"} for name in boot_units.NAMES},
}


def test_the_units_are_planned_with_profile_and_code() -> None:
    sha = "sha256:" + digest(corezip.archive())
    absent = {"files": {boot_units.code_path(sha): {"errno": "ENOENT"}, PATH: {"errno": "ENOENT"}}}
    machine = ReplayHost(merge(merge(MACHINE, SYSTEMD), absent))
    by_name, _ = bound.with_profile(validate(APPLY))
    findings, steps = engine.plan(by_name["boot-units"], machine, "on")
    targets = {step.target: step for step in steps}
    assert set(targets) == {
        PATH,
        boot_units.code_path(sha),
        *SYSTEMD["files"],
        *boot_units.ENABLED,
    }
    assert targets[PATH].mode == 0o600 and json.loads(targets[PATH].after or "") == APPLY
    assert targets[boot_units.KNOBS_UNIT].argv == ("systemctl", "enable", "--no-reload", boot_units.KNOBS_UNIT)
    watch = targets[boot_units.WATCH_UNIT]
    assert watch.argv == ("systemctl", "enable", "--now", boot_units.WATCH_UNIT), (
        "nobody waits for a boot to be watched over"
    )
    assert watch.undo == ("systemctl", "disable", "--now", boot_units.WATCH_UNIT), "and revert ends what it started"
    order = [step.target for step in steps]
    assert order.index("/etc/systemd/system/" + boot_units.WATCH_UNIT) < order.index(boot_units.WATCH_UNIT)
    assert {f.status for f in findings} == {"fail"} and machine.effects == []


def test_another_profile_is_another_text() -> None:
    by_name, _ = bound.with_profile(validate(APPLY))
    machine = ReplayHost(merge(merge(MACHINE, SYSTEMD), {"files": {PATH: "{}", boot_units.code_path("sha256:" + digest(
        corezip.archive())): {"errno": "ENOENT"}}}))  # fmt: skip
    findings = engine.check(by_name["boot-units"], machine, "on")
    assert {f.have for f in findings if f.subject == PATH} == {"another text"}


def test_without_systemd_or_a_profile_nothing_is_kept() -> None:
    no_systemd = {"dirs": {"/run/systemd/system": {"errno": "ENOENT"}}}
    for knob, machine in (
        (bound.with_profile(validate(APPLY))[0]["boot-units"], ReplayHost(merge(MACHINE, no_systemd))),
        (boot_units.BOOT_UNITS, ReplayHost(merge(MACHINE, SYSTEMD))),
    ):  # fmt: skip
        (found,) = engine.check(knob, machine, "on")
        assert found.status == "skip"


@pytest.mark.parametrize("network", [False, True])
def test_systemd_takes_the_units_without_a_word(network: bool, tmp_path: Path) -> None:
    for name in boot_units.NAMES:
        (tmp_path / name).write_text(boot_units.unit(name, "/usr/bin/true", network).replace("-I ", ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())], capture_output=True, text=True
    )
    mine = [line for line in done.stderr.splitlines() if "hosttune-" in line]
    assert (done.returncode, mine) == (0, [])


def test_the_archive_runs_alone_and_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "core.pyz").write_bytes(corezip.archive())
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "core.pyz"), "nonsense"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "no such stage: nonsense" in done.stderr


def test_the_archive_holds_all_that_it_imports() -> None:
    names = zipfile.ZipFile(io.BytesIO(corezip.archive())).namelist()
    assert {
        "__main__.py",
        "hosttune/core/unattended/main.py",
        "hosttune/core/door/child_script.py",
        "hosttune/core/lxc/sync.py",
        "hosttune/core/stage/copy.py",
    } <= set(names)
    assert not [name for name in names if "/probes/" in name], "a boot diagnoses nothing"


def test_ansible_sends_along_all_that_the_archive_is_made_of() -> None:
    """It bundles what a module imports, and the module makes the archive from that copy."""
    there, here = "hosttune/ansible/module_utils/core/", "hosttune/core/"

    def read(name: str) -> bytes | None:
        path = ROOT / name.replace(there, here)
        return path.read_bytes() if path.is_file() else None

    sent = {name.replace(there, here) for name in corezip.closure("hosttune/ansible/modules/tune.py", read)}
    made = {name for name in zipfile.ZipFile(io.BytesIO(corezip.archive())).namelist() if name.startswith(here)}
    assert len(made) > 50 and made <= sent


def test_what_a_unit_says_is_in_the_journal_when_it_says_it() -> None:
    """A line in a buffer is lost when the time limit ends the process, and the wait for a quorum would look like a hang."""
    ended = "import os; from hosttune.core.unattended import main; main._tell('no quorum: waiting'); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", ended], stdout=subprocess.PIPE, text=True)
    assert done.stdout == "no quorum: waiting\n"


def test_every_unit_is_stopped_by_the_same_words() -> None:
    for name in boot_units.NAMES:
        text = boot_units.unit(name, "/code")
        assert "ConditionKernelCommandLine=!hosttune=off\nConditionPathExists=!/etc/hosttune/off\n" in text
        assert not units.is_engine(name) or name.endswith(".timer")


def test_a_recheck_writes_nothing_whatever_the_profile_lets_it() -> None:
    machine = host(dict(APPLY, mode="apply"), files={"/proc/driver/nvidia/version": {"errno": "ENOENT"}})
    code, said = run(machine, stages.RECHECK)
    assert (code, machine.effects) == (1, [])
    assert "would change 0000:11:00.0 MaxReadReq" in said and said[-1] == "recheck: 1 not as wanted"


@pytest.mark.parametrize(
    ("key", "want", "words"),
    [
        ("numa-balancin", "0", "did you mean numa-balancing"),
        ("numa-balancing", "7", "7 is none of 0, 1, 2, 3"),
        ("swappiness", "", "`leave` takes a setting out"),
    ],
)
def test_a_mistake_in_the_profile_of_a_machine_is_told_by_its_line(key: str, want: str, words: str) -> None:
    machine = host('{"mode": "apply",\n "knobs": {\n  "%s": "%s"}}' % (key, want))
    with pytest.raises(Refused) as e:
        run(machine)
    assert e.value.where == PATH + ":3" and words in str(e.value) and machine.effects == []


def test_every_node_is_made_by_a_call_of_its_own() -> None:
    """-c=0 makes /dev/nvidia0 and not nvidiactl, whose minor is 255; -u -c=0 the uvm pair (nvidia-modprobe's modes exclude each
    other). Seen in the lab: without -c=255 a host whose udev rule is gone has no nvidiactl."""
    gpus = {"0000:11:00.0": 0, "0000:61:00.0": 1}
    calls = [
        ["nvidia-modprobe", "-c=255"],
        ["nvidia-modprobe", "-c=0"],
        ["nvidia-modprobe", "-c=1"],
        ["nvidia-modprobe", "-u", "-c=0"],
    ]
    host = ReplayHost({
        "dirs": {"/proc/driver/nvidia/gpus": sorted(gpus)},
        "files": {f"/proc/driver/nvidia/gpus/{bdf}/information": f"Device Minor: \t {minor}\n" for bdf, minor in gpus.items()},
        "commands": {" ".join(argv): {"out": ""} for argv in [["modprobe", "nvidia"], ["modprobe", "nvidia-uvm"], *calls]},
    })  # fmt: skip
    said: list[str] = []
    stages._make_nodes(host, said.append)
    assert said == []
    assert [effect["argv"] for effect in host.effects][2:] == calls
