# SPDX-License-Identifier: Apache-2.0
"""`hosttune topo` and `check` on real GPUs beside what nvidia-smi and sysfs say of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

WORSE = ("PIX", "PXB", "PHB", "NODE", "SYS")


def hosttune(*argv: str, env: Mapping[str, str] | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "hosttune", *argv, "-o", "json"], capture_output=True, text=True, env=env
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def smi(*argv: str) -> str:
    return subprocess.run(["nvidia-smi", *argv], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def told() -> Any:
    return hosttune("topo")


def gpus(told: Any) -> list[Any]:
    return [d for d in told["devices"] if d["kind"] == "gpu"]


def test_links_and_nodes_are_those_of_sysfs_and_nvidia_smi(told: Any) -> None:
    rows = smi(
        "--query-gpu=pci.bus_id,pcie.link.width.max,pcie.link.gen.max", "--format=csv,noheader,nounits"
    ).splitlines()
    by_bdf = {g["bdf"]: g for g in gpus(told)}
    speeds = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
    for row in rows:
        bdf, width, gen = (part.strip() for part in row.split(","))
        gpu = by_bdf[bdf.lower()[-12:]]
        folder = Path("/sys/bus/pci/devices", gpu["bdf"])
        node = int((folder / "numa_node").read_text())
        assert gpu["node"] == (node if node >= 0 else 0 if len(told["nodes"]) == 1 else None)
        assert gpu["link"]["max_width"] >= int(width) and gpu["link"]["max_speed"] >= speeds[int(gen)]
        assert gpu["way"] == [
            p for p in str(folder.resolve()).split("/")[:-1] if re.fullmatch(r"[0-9a-f:]{12,}\.\d", p)
        ]


def test_ways_are_those_of_nvidia_smi_where_no_nvlink_hides_them(told: Any) -> None:
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", row).split() for row in smi("topo", "-m").splitlines()]
    matrix = {row[0]: row[1:] for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and len(row) > 1}
    order = [g["number"] for g in sorted(gpus(told), key=lambda g: g["bdf"])]
    for a, row in enumerate(matrix.values()):
        for b, word in enumerate(row[: len(order)]):
            ours = told["paths"][str(order[a])][str(order[b])]
            assert word in (ours, "X") or word.startswith("NV") or ours == "?", (a, b, word, ours)


TORCH = """
import json, torch
n = torch.cuda.device_count()
at = [torch.cuda.get_device_properties(i) for i in range(n)]
names = ["%04x:%02x:%02x.0" % (p.pci_domain_id, p.pci_bus_id, p.pci_device_id) for p in at]
print(json.dumps([[names[a], names[b], torch.cuda.can_device_access_peer(a, b)] for a in range(n) for b in range(n) if a != b]))
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """What --deep told, and the recording of it. A caller who hides GPUs from himself asks about the machine all the same."""
    file = tmp_path_factory.mktemp("topo") / "recording.json"
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    return hosttune("topo", "--deep", "--record", str(file), env=environ), file


def test_who_reaches_whose_memory_is_what_pytorch_and_nvidia_smi_say(asked: tuple[Any, Path]) -> None:
    deep = asked[0]["p2p"]
    ours = {(pair["one"], pair["other"]): pair for pair in deep["pairs"]}
    assert deep["unknown"] == [] and len(ours) == len(gpus(asked[0])) * (len(gpus(asked[0])) - 1)
    for pair in ours.values():
        assert (pair["read"], pair["write"]) in {
            ("OK", "OK"),
            ("CNS", "CNS"),
            ("NS", "NS"),
            ("GNS", "GNS"),
            ("TNS", "TNS"),
        }
    for kind in ("read", "write"):
        words = re.findall(r"(?m)^ ?GPU\d+\t(?!.*GPU)(.*)", smi("topo", "-p2p", kind[0]))
        assert sorted(pair[kind] for pair in ours.values()) == sorted(
            w for row in words for w in row.split() if w != "X"
        )
    told = subprocess.run(["python3", "-c", TORCH], capture_output=True, text=True)
    if told.returncode:
        pytest.skip("python3 has no PyTorch here")
    for one, other, can in json.loads(told.stdout):
        assert ours[one, other]["cuda"] == ("yes" if can else "no")
    assert len(json.loads(told.stdout)) == len(ours)


def test_what_was_recorded_answers_as_the_machine_did(asked: tuple[Any, Path]) -> None:
    name = {"machine": "host.example"}  # a recording names no machine
    assert hosttune("topo", "--deep", "--replay", str(asked[1])) == {**asked[0], **name}


def test_a_check_of_real_gpus_reads_every_register() -> None:
    found = [f for f in hosttune("check", "pcie-max-read-request")["hosts"][0]["findings"] if f["id"] == "HT201"]
    assert found and {f["status"] for f in found} <= {"ok", "fail", "skip", "error"}
