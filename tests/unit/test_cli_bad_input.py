# SPDX-License-Identifier: Apache-2.0
"""Bad input on the command line: one message with what, where and the way out, exit code 2, and one document for -o json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from hosttune import cli
from hosttune.core.door.live import LiveHost

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/report.schema.json").read_text())
JSON_FORMS = (("-o", "json"), ("-ojson",), ("--output", "json"), ("--output=json",), ("-vo", "json"), ("-vojson",))
DEEP = "[" * 100000
FILES = {
    "twice.json": '{"mode": "plan",\n "mode": "apply"}',
    "twice-deep.json": '{"knobs": {"numa-balancing": "0", "numa-balancing": "1"}}',
    "twice.yml": "mode: plan\nknobs: {}\nmode: apply\n",
    "control.yml": 'mode: "\x01"\n',
    "list.yml": "- a\n",
    "yaml.conf": "mode: plan\n",
    "broken.yml": "mode: [\n",
    "deep.json": DEEP,
    "deep.yml": DEEP,
    "nul.json": "\0\0",
    "number.json": "7",
    "typo.json": '{"moed": "plan"}',
    "want.json": '{"knobs": {"numa-balancing": "9"}}',
    "type.json": '{"knobs": {"numa-balancing": 0}}',
    "latin.json": '{"mode": "pl\xe4n"}',
}
CASES: list[tuple[list[str], str]] = [
    (["check", "nope"], "no such knob: nope"),
    (["check", "ht106"], "did you mean swappiness?"),
    (["check", "--profile", "DIR/yaml.conf"], "name it FILE.yml if it is YAML"),
    (["check", "--bad"], "No such option"),
    (["nope"], "No such command"),
    (["check", "--profile", "DIR"], "is a directory"),
    (["check", "--profile", "DIR/absent.json"], "there is no such file"),
    (["lxc", "show", "999999"], "there is no container 999999"),
    (["lxc", "show", "../../etc/passwd"], "is no container id or name"),
    (["lxc", "sync", "--", "-n"], "is no container id or name"),
    (["lxc", "show", ""], "is no container id or name"),
    (["lxc", "live", "a/b"], "is no container id or name"),
    (["doctor", "--ct", "../x"], "is no container id or name"),
    (["doctor", "--ct", "-n"], "is no container id or name"),
    (["doctor", "--replay", "DIR/deep.json"], "this is not JSON"),
    (["doctor", "--replay", "DIR/number.json"], "not a recording"),
    (["doctor", "--record", "/dev/null"], "there is such a file already"),
    (["doctor", "--record", "DIR/absent/x"], "there is no such folder"),
    (["doctor", "--host", ""], "--host: its value is empty"),
    (["check", "--profile="], "--profile: its value is empty"),
    (["statsu"], "Did you mean 'status'?"),
    (["lxc", "preview", "DIR/nul.json", "--devices", "DIR/nul.json"], "NUL bytes"),
    (["lxc", "preview", "DIR/typo.json", "--devices", "DIR/broken.yml"], "neither a recording nor a copy of /proc/devices"),
    (["lxc", "preview", "DIR/typo.json", "--devices", "DIR/typo.json"], "not a recording"),
    *[
        (["check", "--profile", "DIR/" + name], said)
        for name, said in {
            "twice.json": 'twice.json:2: the key "mode" stands here a second time',
            "twice-deep.json": 'the key "numa-balancing" stands here a second time',
            "twice.yml": "twice.yml:3: the key mode stands here a second time", "control.yml": "this is not YAML",
            "list.yml": "a map of keys is wanted", "broken.yml": "this is not YAML", "deep.json": "this is not JSON",
            "deep.yml": "this is not YAML", "nul.json": "this is not JSON", "number.json": "a map of keys is wanted",
            "typo.json": "did you mean mode?", "want.json": "9 is none of 0, 1, 2, 3", "type.json": "write it in quotes",
            "latin.json": "is not UTF-8",
        }.items()
    ],
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="latin-1")
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "said"), CASES, ids=lambda case: " ".join(case)[:40] if isinstance(case, list) else ""
)
def test_one_message_and_one_document(
    folder: Path, capfd: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    argv = [word.replace("DIR", str(folder)) for word in argv]
    assert cli.main(argv) == 2
    plain = capfd.readouterr()
    assert said in plain.err and plain.out == "" and "Traceback" not in plain.err
    assert (
        cli.main(
            [*argv[:1], *argv[1:2], "-o", "json", *argv[2:]] if argv[0] == "lxc" else [argv[0], "-o", "json", *argv[1:]]
        )
        == 2
    )
    told = capfd.readouterr()
    document = json.loads(told.out)
    jsonschema.validate(document, SCHEMA)
    assert document["error"]["what"] and not document["ok"] and said in told.err


@pytest.mark.parametrize("argv", [[], ["stage"], ["lxc"]], ids=lambda argv: " ".join(["hosttune", *argv]))
def test_a_group_alone_is_its_help(capfd: pytest.CaptureFixture[str], argv: list[str]) -> None:
    """The first thing that a stranger types."""
    assert cli.main(argv) == 2
    told = capfd.readouterr()
    assert told.err.startswith("\nUsage: hosttune") or told.err.startswith("Usage: hosttune"), told.err
    assert "Commands:" in told.err and "Traceback" not in told.err and told.out == ""


@pytest.mark.parametrize("form", JSON_FORMS)
def test_json_is_understood_however_it_is_asked_for(capfd: pytest.CaptureFixture[str], form: tuple[str, ...]) -> None:
    assert cli.main(["check", *form, "nope"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["what"].startswith("no such knob")


@pytest.mark.parametrize(
    "fault", [PermissionError(13, "Permission denied", "/proc/x"), OSError(5, "Input/output error")]
)
def test_an_error_of_the_machine_is_a_message(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: OSError
) -> None:
    def uname(self: LiveHost) -> tuple[str, str, str]:
        raise fault

    monkeypatch.setattr(LiveHost, "uname", uname)
    assert cli.main(["check", "-o", "json"]) == 2
    told = capfd.readouterr()
    assert json.loads(told.out)["error"]["what"] == fault.strerror and "Traceback" not in told.err


def test_a_defect_says_that_it_is_one(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveHost, "uname", lambda self: 1 / 0)
    assert cli.main(["check", "-o", "json"]) == 2, "exit code 1 would say that the machine is not well"
    told = capfd.readouterr()
    assert "defect of hosttune" in json.loads(told.out)["error"]["what"] and "Traceback" in told.err


@pytest.mark.parametrize("shell", ["{} list >&-", "{} list >&- 2>&-", "{} list <&- >/dev/null", "{} nope 2>&-"])
def test_closed_streams_are_no_defect(tmp_path: Path, shell: str) -> None:
    done = subprocess.run(["sh", "-c", shell.format(f"{sys.executable} -m hosttune")], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and done.returncode == (2 if "nope" in shell else 0), done.stderr


def test_a_pipe_that_nobody_reads_is_no_finding() -> None:
    script = (
        "import subprocess, sys\np = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n"
        "p.stdout.close()\nsys.exit(p.wait())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, sys.executable, "-m", "hosttune", "list"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", ["list", "explain HT401", "journal", "check --bad", "check -v"])
def test_a_locale_without_unicode_is_enough(command: str) -> None:
    env = {"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}  # no HOME either
    done = subprocess.run([sys.executable, "-m", "hosttune", *command.split()], capture_output=True, env=env)
    assert b"Traceback" not in done.stderr and done.stdout.isascii() and done.returncode in (0, 1, 2)
