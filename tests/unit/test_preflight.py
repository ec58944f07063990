# SPDX-License-Identifier: Apache-2.0
"""Go or no-go, judged from what NVML and the machine said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hosttune import nvml, preflight
from hosttune.core.recording.replay import load
from hosttune.core.wanted.profile import Profile
from hosttune.data import machine

IDLE = nvml.Gpu(0, "GPU-1", "0000:01:00.0", "H200", 150 << 30, 600 << 20)
UNIT = "0::/lxc.payload.200/system.slice/hosttune-tp4.service\n"


def host(files: dict[str, str] | None = None, **more: Any) -> Any:
    made = {"files": files or {}, **more}
    return load({"schema": "hosttune.recording/1", "machines": {"host": made}}, machine)["host"]


@pytest.mark.parametrize(
    ("gpu", "status", "words"),
    [
        (IDLE, "ok", "idle"),
        (replace(IDLE, processes=((7, 9 << 30),)), "ok", "only its engine"),
        (replace(IDLE, processes=((8, 9 << 30),)), "fail", "python3 8, 9.0 GiB"),
        (replace(IDLE, processes=((8, None),)), "fail", "python3 8"),
        (replace(IDLE, used=20 << 30), "fail", "20.0 GiB of its memory are in use, by no process"),
        (replace(IDLE, throttled=("hardware thermal",)), "warn", "throttled: hardware thermal"),
        (replace(IDLE, throttled=("power cap",)), "ok", "idle"),
    ],
)
def test_a_gpu_is_idle_or_its_user_is_named(gpu: nvml.Gpu, status: str, words: str) -> None:
    door = host({"/proc/7/cgroup": UNIT, "/proc/7/comm": "python3\n", "/proc/8/cgroup": "0::/user.slice\n",
                 "/proc/8/comm": "python3\n"})  # fmt: skip
    (f,) = preflight.judge_gpu(door, gpu, Profile(), ("tp4",))
    assert f.status == status and words in f.summary, f
    (f,) = preflight.judge_gpu(door, replace(IDLE, processes=((7, 1),)), Profile(), ("another",))
    assert f.status == "fail" and "hosttune-tp4.service" in f.summary, "an engine that is not asked about is a stranger"


def test_a_machine_without_gpus_skips_what_is_about_them() -> None:
    door = host(dirs={"/sys/bus/pci/devices": []})
    assert [f.status for f in preflight.idle(door, Profile(), ())] == ["skip"]
    assert [f.status for f in preflight.devices(door, Profile(), ())] == ["skip"]


def test_a_check_that_could_not_be_made_is_an_error_and_no_pass() -> None:
    door = host(errnos={}, files={"/sys/bus/pci/devices": ""})
    (f,) = preflight._told("idle", lambda: preflight.idle(door, Profile(), ()))
    assert f.status == "error" and f.id == "HT903"


def test_nvml_absent_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    told = nvml.ask()
    assert told.gpus == () and "Library" in told.why


def test_addresses_are_written_as_sysfs_writes_them() -> None:
    assert nvml._bdf("00000000:C1:00.0") == "0000:c1:00.0"
    assert nvml._bdf("00010000:01:00.0") == "10000:01:00.0"
