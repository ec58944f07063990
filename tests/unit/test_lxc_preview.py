# SPDX-License-Identifier: Apache-2.0
"""hosttune lxc preview: any copy of a config, anywhere; the new file on one stream, what is wrong with the old on the other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hosttune.cli import main
from tests.unit.lxc_cases import CASES, PROC_DEVICES, real

STALE = str(next(CASES.glob("01*.conf")))
HEALED = real("01").replace(b"lxc.cgroup2.devices.allow: c 509:* rwm\n", b"lxc.cgroup2.devices.allow: c 511:* rwm\n"
                            b"lxc.cgroup2.devices.allow: c 236:* rwm\n")  # fmt: skip


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    path = tmp_path / "devices.txt"
    path.write_text(PROC_DEVICES)
    return str(path)


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    """A host of eight GPUs on two NUMA nodes."""
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"schema": "hosttune.recording/1", "machines": {"host": {"base": "healthy-host"}}}))
    return str(path)


def test_the_file_is_on_stdout_and_nothing_else(numbers: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["lxc", "preview", STALE, "--devices", numbers]) == 1
    told = capsysbinary.readouterr()
    assert told.out == HEALED and b"HT420" in told.err


def test_json_holds_file_meaning_and_findings(numbers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lxc", "preview", STALE, "--devices", numbers, "-o", "json"]) == 1
    (host,) = json.loads(capsys.readouterr().out)["hosts"]
    assert host["facts"]["file"].encode() == HEALED == host["steps"][0]["after"].encode()
    assert "c 509:* rwm\topens every number of hidraw" in host["facts"]["gets"]
    assert {"HT420", "HT421"} <= {f["id"] for f in host["findings"]}


def test_the_command_that_is_told_asks_for_what_was_asked_here(numbers: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Pasted without its options it would do something else."""
    asked = ["--form", "dev", "--gpus", "0,1", "--drop", "506", "--drop", "507"]
    assert main(["lxc", "preview", STALE, "--devices", numbers, *asked]) == 1
    commands = set(re.findall(r"fix \(host\): +(hosttune lxc sync .*)", capsys.readouterr().err))
    assert commands == {
        "hosttune lxc sync ID --form dev --gpus 0,1 --drop 506 --drop 507",
        "hosttune lxc sync ID --form path --gpus 0,1 --drop 506 --drop 507",
        "hosttune lxc sync ID --drop 506 --form dev --gpus 0,1 --drop 507",
    }, "what a hint says itself stands (HT434: --form path, HT420: --drop)"


def test_a_file_with_nothing_to_do_is_there_in_json(numbers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tmp_path / "300.conf"
    plain.write_text("arch: amd64\n")
    assert main(["lxc", "preview", str(plain), "--devices", numbers, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["hosts"][0]["facts"]["file"] == "arch: amd64\n"


@pytest.mark.parametrize(("words", "want", "no"), [
    (["--gpus", "numa:1"], ["/dev/nvidia4 ", "/dev/nvidia7 ", "c 195:4 rwm"], ["/dev/nvidia0 ", "c 195:*"]),
    (["--gpus", "1,0", "--form", "dev"], [": /dev/nvidia0,mode=0666", ": /dev/nvidia1,mode=0666"], ["/dev/nvidia2"]),
    (["--drop", "506"], ["c 511:* rwm"], ["c 506"]),
    (["--prune"], ["c 511:* rwm"], ["c 506", "c 509"]),
    (["--cpus", "0-3"], ["lxc.cgroup2.cpuset.cpus: 0-3"], []),
])
def test_what_the_words_mean_on_a_recorded_host(
    recorded: str, words: list[str], want: list[str], no: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["lxc", "preview", STALE, "--devices", recorded, *words])
    out = capsys.readouterr().out
    assert [text for text in want if text not in out] == [] and [text for text in no if text in out] == [], out


@pytest.mark.parametrize("words", [["--gpus", "numa:0"], ["--gpus", "GPU-1"], ["--cpus", "numa"], ["--gpus", "x"]])
def test_what_numbers_cannot_tell_is_refused(numbers: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lxc", "preview", STALE, "--devices", numbers, *words]) == 2
    told = capsys.readouterr()
    assert told.out == "" and words[0] in told.err


def test_a_form_that_makes_starts_depend_on_nodes_is_said_unless_it_is_declared(
    recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (([], True), (["--required"], False)):
        main(["lxc", "preview", STALE, "--devices", recorded, "--form", "dev", "--gpus", "0", *words])
        assert ("HT434" in capsys.readouterr().err) is said


def test_the_version_decides_which_lines_are_kept(numbers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "300.conf"
    copy.write_text("lxc.environment.runtime: A=1\n")
    for version, code in (("5.3.5", 1), ("6.1.10", 0)):
        assert main(["lxc", "preview", str(copy), "--devices", numbers, "--pve-container", version]) == code
        assert ("HT422" in capsys.readouterr().err) is bool(code)
