# SPDX-License-Identifier: Apache-2.0
"""`hosttune check` of a real GPU beside nvidia-smi's and sysfs's own words. Nothing of the GPU is changed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import engine
from hosttune.core.door.live import LiveHost
from hosttune.core.gpu import own
from hosttune.core.knobs import KNOBS
from tests.gpu.test_preflight import COMPUTES

SPEEDS = {"1": "2.5", "2": "5", "3": "8", "4": "16", "5": "32", "6": "64"}
"""GT/s of each generation."""


@pytest.fixture(scope="module")
def checked(gpu_machine: None) -> dict[tuple[str, str], dict[str, Any]]:
    """{(finding id, subject): finding} of one `check --nvml` of everything."""
    argv = [sys.executable, "-m", "hosttune", "check", "--nvml", "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    report = json.loads(done.stdout)["hosts"][0]
    assert report["effects"] == [], "a check writes nothing"
    return {(f["id"], f["subject"]): f for f in report["findings"]}


def asked(gpu_count: int, *fields: str) -> dict[str, tuple[str, ...]]:
    """{bdf: values} of nvidia-smi, one question for these fields."""
    query = "--query-gpu=" + ",".join(("pci.bus_id", *fields))
    said = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    ).stdout
    rows = [[value.strip() for value in line.split(",")] for line in said.splitlines()]
    assert len(rows) == gpu_count
    return {row[0].lower()[4:]: tuple(row[1:]) for row in rows}


def attribute(bdf: str, name: str) -> str:
    return Path("/sys/bus/pci/devices", bdf, name).read_text().strip()


def test_no_setting_of_a_gpu_could_not_be_told(checked: dict[tuple[str, str], dict[str, Any]]) -> None:
    errors = [f for (id, _), f in checked.items() if id.startswith(("HT2", "HT33", "HT34")) and f["status"] == "error"]
    assert errors == []
    assert {f["status"] for f in checked.values()} <= {"ok", "warn", "fail", "skip", "error"}


def test_lanes_are_nvidia_smis(checked: dict[tuple[str, str], dict[str, Any]], gpu_count: int) -> None:
    for bdf, (now, most) in asked(gpu_count, "pcie.link.width.current", "pcie.link.width.max").items():
        found = checked["HT209", bdf]
        if found["status"] == "skip":
            assert attribute(bdf, "max_link_width") in ("0", "255"), found
        else:
            assert found["have"].split()[0] == f"x{now}" and int(found["have"].split()[2][1:]) <= int(most), found


def test_speed_is_nvidia_smis(checked: dict[tuple[str, str], dict[str, Any]], gpu_count: int) -> None:
    for bdf, (now,) in asked(gpu_count, "pcie.link.gen.current").items():
        found = checked["HT204", bdf]
        assert found["have"].split()[0] == SPEEDS[now] or attribute(bdf, "current_link_speed").startswith("Unknown"), (
            found
        )


def test_bar1_is_as_large_as_nvidia_smi_says(checked: dict[tuple[str, str], dict[str, Any]], gpu_count: int) -> None:
    said = subprocess.run(["nvidia-smi", "-q", "-d", "MEMORY"], capture_output=True, text=True, check=True).stdout
    sizes = [int(size) for size in re.findall(r"BAR1 Memory Usage\s+Total\s+: (\d+) MiB", said)]
    haves = [f["have"].split(" of ")[0] for (id, _), f in checked.items() if id == "HT212"]
    assert len(sizes) == gpu_count
    told = [int(have.split()[0]) << (10 if have.endswith("GiB") else 0) for have in haves]
    assert sorted(told) == sorted(sizes)


def test_what_the_driver_alone_knows_is_what_it_says_to_one_question_each(
    checked: dict[tuple[str, str], dict[str, Any]], gpu_count: int
) -> None:
    for bdf, (mode, mig, ecc, limit) in asked(
        gpu_count, "compute_mode", "mig.mode.current", "ecc.mode.current", "power.limit"
    ).items():
        assert checked["HT340", bdf]["have"] == mode
        assert checked["HT341", bdf]["have"].split(",")[0] == ("" if mig.startswith("[") else mig)
        assert checked["HT342", bdf]["have"].split(",")[0] == ("" if ecc.startswith("[") else ecc)
        assert float(checked["HT343", bdf]["have"]) == float(limit)


def test_registers_are_those_of_config_space(checked: dict[tuple[str, str], dict[str, Any]], gpu_count: int) -> None:
    """lspci's words where it is installed, else the register itself, found by hand."""
    for bdf in asked(gpu_count):
        space = Path("/sys/bus/pci/devices", bdf, "config").read_bytes()
        at = space[0x34]
        while space[at] != 0x10:
            at = space[at + 1]
        control = int.from_bytes(space[at + 8 : at + 10], "little")
        assert int(checked["HT201", bdf]["have"]) == 128 << (control >> 12 & 7)
        assert checked["HT206", bdf]["have"] == ("on" if control & 0x10 else "off")
        assert checked["HT207", bdf]["have"] == ("on" if control & 0x100 else "off")
        if shutil.which("lspci"):
            words = subprocess.run(["lspci", "-vv", "-s", bdf], capture_output=True, text=True, check=True).stdout
            assert f"MaxReadReq {checked['HT201', bdf]['have']} bytes" in words


def test_no_register_is_written_while_a_real_process_computes_on_that_gpu(gpu_count: int) -> None:
    """Planned only: what apply would do."""
    process = subprocess.Popen([sys.executable, "-c", COMPUTES], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "computes\n"
        host = LiveHost()
        # CUDA opens the node of each GPU that it may use, also of those on which nothing is computed: all of them wait.
        held = [bdf for bdf in asked(gpu_count) if process.pid in dict(own.computing(host, bdf))]
        readings = KNOBS["pcie-max-read-request"].read(host)
        other = next(size for size in ("128", "256", "512") if size not in {readings[bdf].have for bdf in held})
        found, steps = engine.plan(KNOBS["pcie-max-read-request"], host, other)
        words = {f.subject: f.summary for f in found}
        for bdf in held:
            assert "deferred: compute processes use this GPU" in words[bdf] and str(process.pid) in words[bdf]
        assert held and not {step.subject for step in steps} & set(held)
        speed = KNOBS["pcie-link-speed"].read(host)[held[0]]
        assert not speed.skip and speed.have.split()[0] == speed.have.split()[2], "under load it is judged, and full"
    finally:
        process.kill()
        process.wait()


def test_parameters_are_the_drivers_own(checked: dict[tuple[str, str], dict[str, Any]]) -> None:
    params = dict(re.findall(r"(?m)^(\w+): (.*)$", Path("/proc/driver/nvidia/params").read_text()))
    assert checked["HT333", "now"]["have"] == {"0": "off", "1": "on"}[params["EnableResizableBar"]]
    words = {"0": "never", "1": "coarse", "2": "fine", "3": "driver"}
    assert checked["HT335", "now"]["have"] == words[params["DynamicPowerManagement"]]
    hmm = Path("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    if hmm.exists():
        assert checked["HT332", "now"]["have"] == {"Y": "off", "N": "on"}[hmm.read_text().strip()]


def test_the_iommu_is_told_as_sysfs_tells_it(checked: dict[tuple[str, str], dict[str, Any]], gpu_count: int) -> None:
    for bdf in asked(gpu_count):
        group = Path("/sys/bus/pci/devices", bdf, "iommu_group")
        found = checked["HT210", bdf]
        assert found["have"] == (attribute(bdf, "iommu_group/type") if group.exists() else ""), found
