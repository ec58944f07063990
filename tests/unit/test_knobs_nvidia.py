# SPDX-License-Identifier: Apache-2.0
"""What the cases in tests/cases/knobs do not say of the NVIDIA settings: module options, when the driver is asked, the boot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosttune import preflight
from hosttune.cli import main
from hosttune.core import engine
from hosttune.core.configured import modprobe, module_options
from hosttune.core.gpu.nvidia_smi import ASK
from hosttune.core.knobs import BY_ID, KNOBS, NVIDIA
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.settings import wants
from hosttune.core.unattended import keeping, stages
from hosttune.core.wanted.profile import PATH, validate
from tests.unit import gpu_host

GPU = "0000:11:00.0"
ROWS: list[dict[str, Any]] = [{"bdf": "0000:10:00.0", "port": True}, {"bdf": GPU, "below": "0000:10:00.0"}]
SMI = " ".join(ASK)
TOLD = f"0000{GPU}, Default, Disabled, Disabled, Enabled, Enabled, 600.00, 300.00, 600.00, 210, 2430, 0\n"
NOBODY = {"errno": "ENOENT"}


def options(files: dict[str, str], cmdline: str = "ro quiet") -> list[tuple[str, str, str]]:
    """Of these files of modprobe.d: (parameter, value, where), in the order in which they count."""
    dirs: dict[str, Any] = {folder: [] for folder in modprobe.FOLDERS}
    for path in files:
        folder, _, name = path.rpartition("/")
        dirs[folder] = [*dirs[folder], name]
    host = ReplayHost({"files": {**files, "/proc/cmdline": cmdline}, "dirs": dirs})
    return [(option.parameter, option.value, option.where) for option in module_options.options(host, "nvidia-uvm")]


@pytest.mark.parametrize(
    ("files", "cmdline", "told"),
    [
        ({}, "ro", []),
        ({"/etc/modprobe.d/a.conf": "options nvidia_uvm a=1 b=0x2\n"}, "ro",
         [("a", "1", "/etc/modprobe.d/a.conf:1"), ("b", "0x2", "/etc/modprobe.d/a.conf:1")]),
        ({"/etc/modprobe.d/a.conf": "# options nvidia-uvm a=1\n\noptions nvidia a=1\n options nvidia-uvm a=2\n"}, "ro",
         [("a", "2", "/etc/modprobe.d/a.conf:4")]),
        ({"/etc/modprobe.d/a.conf": "options nvidia-uvm \\\n  a=1\noptions nvidia-uvm b=1\n"}, "ro",
         [("a", "1", "/etc/modprobe.d/a.conf:1"), ("b", "1", "/etc/modprobe.d/a.conf:3")]),
        ({"/etc/modprobe.d/b.conf": "options nvidia-uvm a=2\n", "/usr/lib/modprobe.d/a.conf": "options nvidia-uvm a=1\n"}, "ro",
         [("a", "1", "/usr/lib/modprobe.d/a.conf:1"), ("a", "2", "/etc/modprobe.d/b.conf:1")]),
        ({"/etc/modprobe.d/a.conf": "", "/usr/lib/modprobe.d/a.conf": "options nvidia-uvm a=1\n"}, "ro", []),
        ({"/etc/modprobe.d/a.conf": "options nvidia-uvm a=1\n"}, "ro nvidia_uvm.a=0 nvidia.a=7 quiet",
         [("a", "1", "/etc/modprobe.d/a.conf:1"), ("a", "0", "/proc/cmdline")]),
        ({"/etc/modprobe.d/a.conf": 'options nvidia-uvm d="x=1;y=2 z" e\n'}, "ro",
         [("d", "x=1;y=2 z", "/etc/modprobe.d/a.conf:1"), ("e", "", "/etc/modprobe.d/a.conf:1")]),
    ],
    ids=["none", "two-of-a-line", "comments-and-others", "joined-lines", "by-name", "masked", "command-line-last", "quotes"],
)  # fmt: skip
def test_what_counts_of_modprobe_d(files: dict[str, str], cmdline: str, told: list[tuple[str, str, str]]) -> None:
    assert options(files, cmdline) == told


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1", "0x1", True),
        ("Y", "1", True),
        ("N", "0", True),
        ("0x00", "0", True),
        ("1", "2", False),
        ("a=1", "a=1", True),
        ("", "0", False),
    ],
)
def test_when_two_texts_are_one_value(one: str, other: str, same: bool) -> None:
    assert module_options.same(one, other) is same


def test_what_the_driver_alone_knows_is_asked_when_somebody_asks() -> None:
    asked = {knob.name for knob in NVIDIA if knob.starts}
    assert asked == {"nvidia-compute-mode", "nvidia-mig", "nvidia-ecc", "nvidia-power-limit", "nvidia-clocks"}
    nothing, pinned = validate({}), validate({"knobs": {"nvidia-power-limit": "450"}})
    assert not asked & set(wants(nothing, KNOBS)), "a check of everything"
    assert asked <= set(wants(nothing, KNOBS, driver=True)), "--nvml"
    assert asked & set(wants(pinned, KNOBS)) == {"nvidia-power-limit"}, "a pin"
    assert set(wants(nothing, KNOBS, ("nvidia-mig",))) == {"nvidia-mig"}, "by name"
    assert wants(pinned, KNOBS, driver=True)["nvidia-power-limit"] == "450"


def recorded(tmp_path: Path, **more: Any) -> str:
    file = tmp_path / "host.json"
    machine = gpu_host.machine(ROWS, more)
    file.write_text(json.dumps({"schema": "hosttune.recording/1", "machines": {"host": machine}}))
    return str(file)


def findings(told: str) -> dict[str, dict[str, Any]]:
    return {f["id"]: f for f in json.loads(told)["hosts"][0]["findings"]}


def test_check_says_what_it_did_not_ask_and_nvml_asks_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = recorded(tmp_path, commands={SMI: {"out": TOLD.replace("Default", "Prohibited")}})
    main(["check", "--replay", file, "-o", "json"])
    found = findings(capsys.readouterr().out)
    assert {found[f"HT34{n}"]["status"] for n in range(5)} == {"skip"}
    assert "only nvidia-smi can tell" in found["HT340"]["summary"]
    assert found["HT340"]["hint"]["command"] == "hosttune check --nvml"
    main(["check", "--nvml", "--replay", file, "-o", "json"])
    found = findings(capsys.readouterr().out)
    assert (found["HT340"]["status"], found["HT340"]["have"]) == ("warn", "Prohibited")
    assert (found["HT341"]["status"], found["HT343"]["have"]) == ("ok", "600")


def test_without_being_asked_no_command_is_run() -> None:
    host = ReplayHost(gpu_host.machine(ROWS, {"commands": {SMI: {"out": TOLD}}}))
    for name in wants(validate({}), KNOBS):
        if KNOBS[name] in NVIDIA:
            assert not [f for f in engine.check(KNOBS[name], host) if f.status == "error"]
    assert [question for question in host.unrecorded if question.startswith("commands")] == []


@pytest.mark.parametrize(("stage", "commands"), [("knobs", set()), ("devices", {SMI, f"nvidia-smi -i {GPU} -pl 450"})])
def test_at_boot_the_drivers_own_settings_come_after_its_nodes(stage: str, commands: set[str]) -> None:
    """Before its nodes are there nvidia-smi would load the driver, and what it sets is lost when it ends."""
    profile = {"mode": "apply", "knobs": {"nvidia-power-limit": "450"}}
    modules = ("modprobe nvidia", "modprobe nvidia-uvm")
    nodes = ("nvidia-modprobe -c=255", "nvidia-modprobe -c=0", "nvidia-modprobe -u -c=0")
    made = {argv: {"rc": 0} for argv in (*modules, *nodes)}
    lowered = {"rc": 0, "then": {"commands": {SMI: {"out": TOLD.replace("600.00, 300", "450.00, 300")}}}}
    more = {
        "files": {
            PATH: json.dumps(profile), keeping.OFF: NOBODY, "/var/lib/hosttune/journal.jsonl": NOBODY,
            f"/proc/driver/nvidia/gpus/{GPU}/information": "Device Minor: \t 0\n",
        },
        "dirs": {"/proc/driver/nvidia/gpus": [GPU]},
        "commands": {**made, SMI: {"out": TOLD}, f"nvidia-smi -i {GPU} -pl 450": lowered},
    }  # fmt: skip
    host = Ran(gpu_host.machine(ROWS, more))
    said: list[str] = []
    assert stages.run(host, stage, said.append) == 0, said
    assert {argv for argv in host.ran if argv.startswith("nvidia-smi")} == commands
    if commands:
        assert host.ran.index(SMI) > host.ran.index("nvidia-modprobe -u -c=0")


def test_preflight_asks_the_driver_apart_from_the_files() -> None:
    """nvidia-smi may mend nodes, so it is asked once they were looked at."""
    profile = validate({"knobs": {"nvidia-power-limit": "450", "pcie-link-width": "all lanes"}})
    host = Ran(gpu_host.machine(ROWS, {"commands": {SMI: {"out": TOLD}}}))
    assert [f.id for f in preflight.knobs(host, profile)] == ["HT209"] and host.ran == []
    assert [(f.id, f.status) for f in preflight.knobs(host, profile, driver=True)] == [("HT343", "fail")]
    assert set(host.ran) == {SMI}


class Ran(ReplayHost):
    """Keeps the commands that were run."""

    def __init__(self, view: dict[str, Any]) -> None:
        super().__init__(view)
        self.ran: list[str] = []

    def run(self, argv: Any, timeout: float = 20, stdin: bytes = b"") -> Any:
        self.ran.append(" ".join(argv))
        return super().run(argv, timeout, stdin)


def test_a_power_limit_that_the_driver_drops_again_is_a_failure_with_the_likely_reason() -> None:
    more = {"commands": {SMI: {"out": TOLD}, f"nvidia-smi -i {GPU} -pl 450": {"rc": 0}},
            "files": {"/var/lib/hosttune/journal.jsonl": NOBODY}}  # fmt: skip
    host = ReplayHost(gpu_host.machine(ROWS, more))
    done = engine.tune(host, {"nvidia-power-limit": "450"}, KNOBS, BY_ID, dry_run=False)
    (failed,) = done.findings
    assert failed.status == "fail" and "wrote 450, read back 600" in failed.summary
    assert "likely: the driver put the GPU down again: hosttune apply nvidia-persistence" in failed.summary
    assert not done.changed


def test_a_module_option_is_written_told_to_wait_for_a_reboot() -> None:
    own = "/etc/modprobe.d/hosttune-nvidia-hmm.conf"
    host = ReplayHost(gpu_host.machine(ROWS, {"files": {own: NOBODY, "/var/lib/hosttune/journal.jsonl": NOBODY}}))
    done = engine.tune(host, {"nvidia-hmm": "off"}, KNOBS, BY_ID, dry_run=False)
    assert [(f.subject, f.status) for f in done.findings] == [("now", "fail"), ("boot", "ok")]
    assert host.read(own).splitlines()[-1] == "options nvidia_uvm uvm_disable_hmm=1"
    again = engine.tune(host, {"nvidia-hmm": "off"}, KNOBS, BY_ID, dry_run=False)
    assert not again.changed, "a second run writes nothing"
