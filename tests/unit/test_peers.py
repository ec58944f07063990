# SPDX-License-Identifier: Apache-2.0
"""Who reaches whose memory: told from a recording of two real GPUs, and from what differs from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hosttune.cli import main
from hosttune.core.door import child
from hosttune.core.gpu import peers
from hosttune.core.pci import topology
from hosttune.core.recording.merge import merge
from hosttune.core.recording.replay import ReplayHost
from hosttune.render import peers_text
from tests.unit import topology_machines as machines

FILE = Path(__file__).parents[1] / "cases/topo/two-h200.json"
VIEW: dict[str, Any] = json.loads(FILE.read_text())["machines"]["host"]
A, B = "0000:00:06.0", "0000:00:07.0"
READ, WRITE, INDEX = (
    "nvidia-smi topo -p2p r",
    "nvidia-smi topo -p2p w",
    "nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader",
)


def table(ab: str, ba: str) -> dict[str, Any]:
    return {"rc": 0, "out": " \tGPU0\tGPU1\n GPU0\tX\t%s\t\n GPU1\t%s\tX\t\n\nLegend:\n\n  X    = Self\n" % (ab, ba)}


def cuda(ab: Any, ba: Any) -> dict[str, Any]:
    return {"cuPeer@%s,%s" % (A, B): ab, "cuPeer@%s,%s" % (B, A): ba}


NO, YES = {"access": "no", "atomics": "no"}, {"access": "yes", "atomics": "no"}
CNS = {READ: table("CNS", "CNS"), WRITE: table("CNS", "CNS")}
BROKEN = {READ: {"rc": 9, "err": "NVIDIA-SMI has failed\n"}, WRITE: {"rc": 9, "err": "NVIDIA-SMI has failed\n"}}


@pytest.mark.parametrize(
    ("over", "line", "disputed"),
    [
        ({}, "the driver: 2 of 2 pairs, CUDA: 2 of 2 pairs, with atomics: 2", ""),
        ({"commands": CNS, "calls": cuda(NO, NO)}, "the driver: 0 of 2 pairs, CUDA: 0 of 2 pairs, with atomics: 0", ""),
        ({"commands": CNS, "calls": cuda(YES, YES)}, "the driver: 0 of 2 pairs, CUDA: 2 of 2 pairs, with atomics: 0",
         "of 0→1, 1→0 the driver's table says CNS, and CUDA says yes"),
        ({"calls": cuda(YES, NO)}, "the driver: 2 of 2 pairs, CUDA: 1 of 2 pairs, with atomics: 0",
         "of 1→0 the driver's table says OK, and CUDA says no"),
        ({"commands": {READ: table("NS", "OK")}, "calls": cuda(NO, YES)},
         "the driver: 1 of 2 pairs, CUDA: 1 of 2 pairs, with atomics: 0", ""),
        ({"commands": {INDEX: {"rc": 0, "out": "0, 00000000:00:07.0\n1, 00000000:00:06.0\n"}, READ: table("NS", "OK")},
          "calls": cuda(YES, NO)}, "the driver: 1 of 2 pairs, CUDA: 1 of 2 pairs, with atomics: 0", ""),
        ({"commands": BROKEN}, "the driver: not told (NVIDIA-SMI has failed), CUDA: 2 of 2 pairs, with atomics: 2", ""),
        ({"commands": {INDEX: {"timeout": 20}}},
         "the driver: not told (no answer in 20 s), CUDA: 2 of 2 pairs, with atomics: 2", ""),
        ({"calls": cuda({"error": "cuInit returned 999"}, {"error": "cuInit returned 999"})},
         "the driver: 2 of 2 pairs, CUDA: not told (cuInit returned 999)", ""),
        ({"calls": cuda({"timeout": 30}, {"error": "not asked"})},
         "the driver: 2 of 2 pairs, CUDA: not told (no answer in 30 s)", ""),
        ({"calls": cuda(7, None)}, "the driver: 2 of 2 pairs, CUDA: not told (answered 7)", ""),
        ({"commands": dict.fromkeys((READ, WRITE, INDEX)), "calls": cuda(None, None)},
         "the driver: not told (not recorded), CUDA: not told (not recorded)", ""),
    ],
    ids=["as-recorded", "none", "cuda-alone", "driver-alone", "one-way", "counted-otherwise", "smi-fails", "smi-hangs",
         "cuda-fails", "cuda-hangs", "nonsense", "not-recorded"],
)  # fmt: skip
def test_both_are_told_and_where_they_differ_that_is_said(over: dict[str, Any], line: str, disputed: str) -> None:
    host = ReplayHost(merge(VIEW, over))
    machine = topology.see(host)
    told = peers.ask(host, machine)
    assert peers_text.p2p_words(told) == line
    assert [f.summary for f in peers.disputes(machine, told)] == ([disputed] if disputed else [])
    assert host.effects == []


def test_the_matrix_names_the_words_only_where_pairs_differ() -> None:
    def drawn(over: dict[str, Any]) -> list[str]:
        host = ReplayHost(merge(VIEW, over))
        machine = topology.see(host)
        return list(peers_text.reach(machine, peers.ask(host, machine), lambda text, **_: text))

    assert drawn({}) == []
    lines = [line.split() for line in drawn({"calls": cuda(YES, NO)})[1:]]
    assert lines == [["0", "1"], ["0", "X", "OK"], ["1", "OK/no", "X"]]


def test_eight_gpus_are_asked_in_every_direction_by_one_child(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], dict[str, str]]] = []

    def calls(names: list[str], env: dict[str, str], uid: object, timeout: object) -> tuple[dict[str, Any], bool, str]:
        asked.append((names, env))
        return dict.fromkeys(names, YES), True, ""

    monkeypatch.setattr(child, "_calls", calls)
    gpus = [gpu.bdf for gpu in topology.see(ReplayHost(machines.founding())).gpus]
    names = [peers.CALL % (one, other) for one in gpus for other in gpus if one != other]
    told = child.inquire([], names, env={"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}).calls
    assert told == dict.fromkeys(names, YES) and len(names) == 56
    assert asked == [(names, {"PATH": "/bin"})], "CUDA_VISIBLE_DEVICES is the caller's, not the machine's"


def test_a_child_without_cuda_says_so() -> None:
    """The real child, on a machine without the driver's library."""
    environ = {**os.environ, "LD_LIBRARY_PATH": ""}
    (answer,) = child.inquire([], [peers.CALL % (A, B)], env=environ).calls.values()
    assert set(answer) == {"error"} or answer["access"] in ("yes", "no")


def test_topo_deep_of_a_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["topo", "--deep", "--replay", str(FILE), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["p2p"]
    assert told["unknown"] == [] and told["pairs"][0] == {
        "one": A, "other": B, "read": "OK", "write": "OK", "cuda": "yes", "atomics": "yes"}  # fmt: skip
    assert main(["topo", "--replay", str(FILE), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["p2p"] == "unknown"
    disputed = tmp_path / "disputed.json"
    machine = merge(VIEW, {"calls": cuda(NO, NO)})
    disputed.write_text(json.dumps({"schema": "hosttune.recording/1", "machines": {"host": machine}}))
    assert main(["topo", "--deep", "--replay", str(disputed), "--svg", str(tmp_path / "a.svg")]) == 0
    out = capsys.readouterr().out
    assert "HT912" in out and "hosttune explain HT912" in out
    assert "CUDA: 0 of 2 pairs" in (tmp_path / "a.svg").read_text()
    assert main(["topo", "--deep", "--strict", "--replay", str(disputed)]) == 1


def test_help_says_what_deep_starts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hosttune", "topo", "--help"], capture_output=True, text=True, check=True
    )
    assert "--deep" in done.stdout and "may load the driver" in " ".join(done.stdout.split())
