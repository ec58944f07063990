# SPDX-License-Identifier: Apache-2.0
"""Each cause of tests/cases/causes.yml is the first that a doctor names, and its near neighbour is not taken for it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hosttune.core.doctor import surroundings
from hosttune.core.doctor.diagnose import diagnose
from hosttune.core.doctor.survey import Declared, survey
from hosttune.core.machine import engine_python, trace
from hosttune.core.model import FAIL, Finding, first_cause
from hosttune.core.probes import PROBES
from hosttune.core.recording.merge import merge
from hosttune.core.recording.record import RecordingHost
from hosttune.core.recording.redaction import redact
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.recording.shape import SCHEMA
from hosttune.data import machine

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).resolve().parents[1] / "cases" / "causes.yml").read_text(encoding="utf-8")
)
BASES = {"host": "healthy-host", "inside": "healthy-lxc", "docker": "healthy-docker", "pod": "healthy-docker"}
FIRST = "0000:11:00.0"


def view(case: Mapping[str, Any]) -> dict[str, Any]:
    """A machine of a recording for one row; see the head of the table."""
    out = machine(BASES[case.get("where", "host")])
    code, calls = case.get("code", 0), {}
    if case.get("where") == "pod":
        out = merge(out, {"dirs": {"/var/run/secrets/kubernetes.io": ["serviceaccount"]}})
    if code:
        calls = {"cuInit": code, "cuInit@clean-env": case.get("clean", code)}
        calls.update(dict.fromkeys(["cuDeviceGetCount", "cuDeviceGetCount@clean-env"]))
    if case.get("nvml"):
        calls.update(nvmlInit=case["nvml"], nvmlDeviceCount=None)
    if case.get("context"):
        calls.update({f"cuCtxCreate@{n}": case["context"] for n in range(8)})
    out = merge(
        out, {"calls": calls, "commands": {"dmesg": {"out": "".join(f"{line}\n" for line in case.get("log", ()))}}}
    )
    if case.get("gpu", "ok") != "ok":
        out = merge(out, {"nodes": {"/dev/nvidia0": {"open": case["gpu"]}}})
    if case.get("unbound"):
        gone = {f"/sys/bus/pci/devices/{FIRST}/driver": {"errno": "ENOENT"}}
        out = merge(
            out, {"links": gone, "dirs": {"/proc/driver/nvidia/gpus": []}, "nodes": {"/dev/nvidia0": {"open": "ok"}}}
        )
    if case.get("loaded") is False:
        none: dict[str, Any] = {"/proc/devices": "Character devices:\n  1 mem\n\nBlock devices:\n"}
        none.update(dict.fromkeys(["/sys/module/nvidia/version", "/proc/driver/nvidia/version"], {"errno": "ENOENT"}))
        out = merge(out, {"files": none, "dirs": {"/proc/driver/nvidia/gpus": {"errno": "ENOENT"}}})
    delta = dict(case.get("machine", {}))
    torch = delta.pop("torch", None)
    if torch is not None:
        command = shlex.join((case["engine_python"], "-c", engine_python.SCRIPT))
        out = merge(
            out, {"commands": {command: {"out": json.dumps({k: v for k, v in torch.items() if v is not None})}}}
        )
    return merge(out, delta)


def report(case: Mapping[str, Any]) -> tuple[Finding, ...]:
    deep = bool(case.get("context")) or bool(case.get("deep"))
    declared = Declared(contexts=deep, engine_python=case.get("engine_python", ""), gpus=case.get("expected"))
    machines = {"host": survey(ReplayHost(view(case)), declared, "host")}
    return tuple(diagnose(machines, PROBES))


def told(found: tuple[Finding, ...]) -> str:
    return "\n".join(f"{f.status} {f.id} [{f.proof}] {f.subject}: {f.summary} {f.evidence} {f.hint.command} because={f.because}"
                     for f in found if f.status != "ok")  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_the_first_that_is_named(name: str) -> None:
    expect = CASES[name]["expect"]
    found = report(CASES[name])
    cause = first_cause(found)
    assert cause is not None and (cause.id, cause.proof) == (expect["id"], expect["proof"]), told(found)
    assert bool(cause.decide) == (cause.proof == "fits"), told(found)
    assert 0 < len(cause.evidence) <= 3 and cause.hint.command, told(found)
    said = " ".join(
        [cause.summary, cause.have, cause.want, cause.decide, *cause.evidence, cause.hint.command, cause.hint.costs]
    )
    assert [word for word in expect.get("words", ()) if word not in said] == [], said
    assert {f.id for f in found if f.status == FAIL} == {expect["id"]}, "one cause in place of its symptoms\n" + told(
        found
    )
    standing = {f.id for f in found if f.status == FAIL}
    assert all(set(f.because) <= standing for f in found), told(found)


@pytest.mark.parametrize("name", [name for name in CASES if "neighbour" in CASES[name]])
def test_its_near_neighbour_is_not_taken_for_it(name: str) -> None:
    case = {key: value for key, value in CASES[name].items() if key != "neighbour"}
    found = report(merge(case, CASES[name]["neighbour"]))
    assert CASES[name]["expect"]["id"] not in {f.id for f in found if f.status in (FAIL, "warn")}, told(found)


AROUND = {*surroundings._FILES[2], *surroundings._FILES[3], *surroundings._FILES[304], *surroundings._FILES[999]}


@pytest.mark.parametrize("name", ["healthy-host", "healthy-lxc", "healthy-lxc-unprivileged", "healthy-docker"])
def test_a_healthy_machine_is_asked_nothing_of_what_surrounds_it(name: str) -> None:
    """No log, no nvidia-smi, no systemctl: a doctor is as quick as a bare cuInit where there is nothing to find."""
    recorder = RecordingHost(ReplayHost(machine(name)))
    survey(recorder)
    assert {command.split()[0] for command in recorder.view.get("commands", {})} <= {"lxc-config"}
    assert not AROUND & set(recorder.view["files"]) and "/lib/modules" not in recorder.view.get("dirs", {})
    assert not any("@GPU" in call for call in recorder.view["calls"])


NODE_FAULTS: list[dict[str, Any]] = [
    {"nodes": {"/dev/nvidia0": {"errno": "ENOENT"}}}, {"nodes": {"/dev/nvidiactl": {"rdev": "509:255", "open": "ENXIO"}}},
    {"nodes": {"/dev/nvidia-uvm": {"type": "file", "rdev": ""}}},
    {"nodes": {"/dev/nvidia0": {"access": "EACCES", "open": "EACCES"}}},
    {"calls": {"nvmlInit": 9}}, {"files": {"/proc/devices": "Character devices:\n  1 mem\n\nBlock devices:\n"}},
]  # fmt: skip


@pytest.mark.parametrize("fault", NODE_FAULTS, ids=str)
@pytest.mark.parametrize("code", [46, 100])
def test_nothing_is_started_that_would_heal_what_it_looks_at(fault: dict[str, Any], code: int) -> None:
    """nvidia-smi loads the module and makes nodes: a doctor that runs it on a machine without them changes that machine."""
    calls = {"cuInit": code, "cuInit@clean-env": code} if code == 100 else {f"cuCtxCreate@{n}": code for n in range(8)}
    recorder = RecordingHost(ReplayHost(merge(merge(machine("healthy-host"), {"calls": calls}), fault)))
    survey(recorder, Declared(contexts=code == 46))
    assert not [command for command in recorder.view.get("commands", {}) if command.startswith("nvidia-")]


SECRETS = ["Command line: BOOT_IMAGE=/vmlinuz nvidia-drm.modeset=1 password=hunter2", "systemd[1]: hunter2 started",
           'audit: apparmor="DENIED" operation="open" profile="x" name="/home/bob/nvidia/hunter2"',
           "audit: avc:  denied  { read } for pid=9 comm=\"hunter2\" name=\"nvidia\""]  # fmt: skip


def test_a_recording_holds_no_line_of_the_log_and_no_call_of_the_trace_that_is_about_something_else() -> None:
    kept = "NVRM: Xid (PCI:0000:11:00): 79, pid=0, GPU has fallen off the bus."
    calls = 'openat(AT_FDCWD, "/home/bob/hunter2", O_RDONLY) = -1 ENOENT (No such file)\n'
    wanted = 'openat(AT_FDCWD, "/dev/nvidia-uvm", O_RDWR) = -1 EPERM (Operation not permitted)\n'
    commands = {
        "dmesg": {"out": "\n".join([*SECRETS, kept, ""])},
        shlex.join(trace.COMMAND): {"out": "hunter2", "err": calls + wanted},
    }
    view = merge(machine("healthy-host"), {"calls": {"cuInit": 999, "cuInit@clean-env": 999}, "commands": commands})
    recorder = RecordingHost(ReplayHost(view))
    seen = survey(recorder, Declared(contexts=True))
    assert seen.around.log == (kept,) and seen.around.trace == (wanted.strip(),)
    assert "hunter2" not in json.dumps(recorder.view) and "bob" not in json.dumps(recorder.view)


@pytest.mark.parametrize("name", ["H10 one sick GPU", "T14 exclusive GPU that somebody has"])
def test_a_redacted_recording_names_no_gpu_and_says_the_same(name: str) -> None:
    """UUIDs stand in keys ("cuInit@GPU-...") and in what programs print: each becomes the same number everywhere."""
    text = (
        json.dumps(view(CASES[name]))
        .replace("GPU-11111111-", "GPU-1a2b3c4d-")
        .replace('"GPU-1, ', '"GPU-1a2b3c4d-5e6f-0000-0000-000000000000, ')
    )
    text = text.replace("[N/A], GPU-1", "[N/A], GPU-1a2b3c4d-5e6f-0000-0000-000000000000")
    clean = redact({"schema": SCHEMA, "machines": {"host": json.loads(text)}})
    assert "1a2b3c4d" in text and "1a2b3c4d" not in json.dumps(clean)
    seen = survey(ReplayHost(clean["machines"]["host"]), Declared(contexts=bool(CASES[name].get("context"))))
    cause = first_cause(tuple(diagnose({"host": seen}, PROBES)))
    assert cause is not None and (cause.id, cause.proof) == (CASES[name]["expect"]["id"], "proved")


def test_every_public_report_has_its_row() -> None:
    here = {name.split()[0] for name in CASES}
    asan = {"T10"}  # seen in a process: tests/kernel/test_doctor_process.py
    assert {f"T{n:02d}" for n in range(1, 16)} - here == asan
