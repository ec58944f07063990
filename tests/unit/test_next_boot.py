# SPDX-License-Identifier: Apache-2.0
"""`doctor --next-boot`: each way in which a reboot breaks a host is told before it happens, and its near neighbour is not.

A machine on paper: the shipped healthy host, and a disk on which whatever is not named is not there.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hosttune.core.door.host import Ran
from hosttune.core.model import FAIL, OK, WARN, Finding, Refused
from hosttune.core.nextboot import grub
from hosttune.core.nextboot import module as boot
from hosttune.core.nextboot.verdict import next_boot, recorded
from hosttune.core.recording.merge import merge
from hosttune.core.recording.record import RecordingHost
from hosttune.core.recording.redaction import redact
from hosttune.core.recording.replay import ReplayHost, load
from hosttune.core.wanted.profile import validate
from hosttune.data import machine
from tests.unit.test_hostile_answers import EVILS, texts, would_run

NOW, OLD, VERSION = "6.14.11-4-pve", "6.8.12-4-pve", "595.71.05"
WANTS = "/etc/systemd/system/multi-user.target.wants"
UNITS = ["hosttune-devices.service", "hosttune-knobs.service", "hosttune-stage.service"]
CONFIG = "/etc/pve/lxc/200.conf"


class Disk(ReplayHost):
    """Files, folders and nodes that nobody named are not there; programs that nobody named are not installed."""

    def _answer(self, section: str, path: str) -> Any:
        if path not in self._section(section) and not path.startswith("/proc/4242/"):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return super()._answer(section, path)

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        if argv[0] == "modinfo" and shlex.join(argv) not in self._section("commands"):
            return Ran(1, err=f"modinfo: ERROR: Module {argv[-1]} not found.\n")
        known = argv[0] in {key.split()[0] for key in self._section("commands")}
        return super().run(argv, timeout, stdin) if known else Ran(127)


FOLDER = Path(__file__).resolve().parents[1] / "cases" / "nextboot"
TABLE: dict[str, Any] = yaml.safe_load((FOLDER / "cases.yml").read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = TABLE["cases"]
GRUB = (FOLDER / "grub.cfg").read_text(encoding="utf-8")
PROFILE = {"mode": "apply", "containers": {"200": {}}, "knobs": {"pcie-max-read-request": "4096"}}


def judged(
    delta: Mapping[str, Any], profile: Mapping[str, Any] = PROFILE, default: str | None = None
) -> tuple[Finding, ...]:
    view = merge(merge(machine("healthy-host"), TABLE["healthy"]), delta)
    if default is not None:
        view = merge(view, {"files": {"/boot/grub/grub.cfg": GRUB.replace("DEFAULT", default)}})
    return next_boot(Disk(view), validate(profile)).findings


@pytest.mark.parametrize("name", CASES)
def test_a_fault_of_the_next_boot_is_told_and_its_neighbour_is_not(name: str) -> None:
    case = CASES[name]
    id, status, words = case["expect"]["id"], case["expect"]["status"], case["expect"].get("words", [])
    delta = case.get("machine", {})
    found = judged(delta, default=delta.get("grub_default"))
    told = "\n".join(
        f"{f.status} {f.id} {f.subject}: {f.summary} {f.evidence} {f.hint.command} {f.decide}" for f in found
    )
    mine = [f for f in found if f.id == id and (f.machine == "host" or f.status == status)]
    assert status in {f.status for f in mine}, told
    if status == OK:
        assert {f.status for f in mine} == {OK}, told
    said = " ".join(
        " ".join([f.subject, f.summary, *f.evidence, f.hint.command, f.hint.costs, f.decide])
        for f in mine
        if f.status == status
    )
    assert [word for word in words if word not in said] == [], told
    for f in found:
        assert f.status not in (WARN, FAIL) or f.proof, f"says no proof: {f.id} {f.summary}"
        assert bool(f.decide) == (f.proof == "fits") or f.status == "skip", (
            f"only what is not proved names a command that decides: {f.id}"
        )


APPLY = "hosttune apply boot-units"


@pytest.mark.parametrize(("profile", "at", "command"), [
    ({}, False, "mkdir -p /etc/hosttune && printf '{\"mode\": \"apply\"}\\n' > /etc/hosttune/profile.json && " + APPLY),
    ({}, True, APPLY),
    ({"mode": "apply", "knobs": {}}, True, APPLY),
    ({"mode": "apply", "knobs": {}}, False, APPLY + " --profile FILE"),
])  # fmt: skip
def test_the_command_for_the_boot_units_names_the_profile_that_it_needs(
    profile: dict[str, Any], at: bool, command: str
) -> None:
    there: dict[str, Any] = {} if at else {"nodes": {"/etc/hosttune/profile.json": {"errno": "ENOENT"}}}
    found = judged(merge({"dirs": {WANTS: ["hosttune-knobs.service"]}}, there), profile)
    (hint,) = {f.hint for f in found if f.id == "HT706"}
    assert hint.command.partition("   #")[0] == command and ("/etc/hosttune/profile.json" in hint.command) == (command != APPLY)
    skipped = [f.summary for f in found if f.status == "skip"]
    assert ["is not judged" in text for text in skipped] == ([] if profile else [True])


def test_units_that_only_tell_are_no_promise() -> None:
    """In mode plan, the default, the boot makes no node and renews no rule."""
    found = judged({}, {**PROFILE, "mode": "plan"})
    assert {f.id: f.status for f in found if f.id in ("HT706", "HT707", "HT711")} == {
        "HT706": FAIL, "HT707": WARN, "HT711": WARN}  # fmt: skip
    assert all("mode: apply" in f.hint.command for f in found if f.id in ("HT706", "HT711"))


def test_a_plain_container_is_told_a_form_that_it_has() -> None:
    numbers = "lxc.cgroup2.devices.allow = c 511:* rwm\nlxc.mount.entry = /dev/nvidia0 dev/nvidia0 none bind,create=file\n"
    plain = {
        "dirs": {"/etc/pve/nodes": {"errno": "ENOENT"}, "/var/lib/lxc": ["ai"]},
        "files": {"/var/lib/lxc/ai/config": numbers},
        "commands": {"lxc-info -n ai -p -H": {"out": ""}, "lxc-config lxc.lxcpath": {"out": "/var/lib/lxc\n"}},
    }
    (told,) = [f for f in judged(plain) if f.id == "HT707"]
    assert told.hint.command == "hosttune lxc sync ai --form path"


def test_a_host_that_is_ready_has_nothing_to_look_at() -> None:
    assert {f.status for f in judged({})} == {OK}


MODEL = {"/srv/m": ["config.json", "model.safetensors"]}
HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
WHOLE = (len(HEADER)).to_bytes(8, "little") + HEADER + b"\0\0\0\1"


def test_a_model_of_another_machine_needs_that_machine_at_boot() -> None:
    found = judged({"dirs": {WANTS: UNITS}}, {"mode": "apply", "models": {"m": {"source": "ssh:nas:/srv/m"}}})
    (told,) = [f for f in found if f.id == "HT710"]
    assert told.status == WARN and "has to answer when this one boots" in told.summary


@pytest.mark.parametrize(
    ("size", "units", "status"), [(len(WHOLE), UNITS, OK), (len(WHOLE) - 1, UNITS, FAIL), (len(WHOLE), UNITS[:2], WARN)]
)
def test_a_model_survives_only_from_a_whole_source_that_a_unit_stages(size: int, units: list[str], status: str) -> None:
    nodes = {"/srv": {"type": "dir"}, "/srv/m": {"type": "dir"}, "/srv/m/config.json": {"type": "file", "size": 2},
             "/srv/m/model.safetensors": {"type": "file", "size": size}}  # fmt: skip
    files = {"/srv/m/config.json": '{"architectures": ["X"]}', "/srv/m/model.safetensors": {"hex": WHOLE[:size].hex()}}
    found = judged(
        {"nodes": nodes, "files": files, "dirs": {**MODEL, WANTS: units}},
        {"mode": "apply", "models": {"m": {"source": "/srv/m"}}},
    )
    assert [(f.subject, f.status) for f in found if f.id == "HT710"] == [("m", status)]


def test_settings_that_nobody_declared_do_not_fall_back() -> None:
    assert [f.status for f in judged({}, {}) if f.id == "HT711"] == ["skip"]
    found = judged({"files": {"/etc/hosttune/profile.json": None}, "dirs": {WANTS: []}}, PROFILE)
    assert {f.subject for f in found if f.id == "HT711"} == {"pcie-max-read-request"}


WRITES = re.compile(r"\b(install|upgrade|update|remove|hold|enable|start|--configure|modprobe|rm|mv|tee)\b")


def test_it_runs_programs_that_only_read() -> None:
    recorder = RecordingHost(Disk(merge(machine("healthy-host"), TABLE["healthy"])))
    next_boot(recorder, validate(PROFILE))
    ran = list(recorder.view["commands"])
    assert any(command.startswith("apt-cache ") for command in ran)
    assert [command for command in ran if WRITES.search(command.replace("Unattended-Upgrade", ""))] == []
    assert {command.split()[0] for command in ran} <= {
        "modinfo",
        "dpkg-query",
        "apt-cache",
        "apt-config",
        "lxc-config",
        "lxc-info",
    }


ODD = ["", "\0", "9" * 6000, "submenu 'a' {\n" * 3000, "- path: /dev/nvidia-uvm\n  major: " + "9" * 6000,
       "[[" * 50000, "\udcff: \udcfe\n",
       "=\n==", "install nvidia modprobe -i\noptions\nblacklist\n", "version\nlinux\noptions\n"]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_odd_file_breaks_nothing_and_becomes_no_command(name: str) -> None:
    """Each text that a case is about, replaced by nonsense, or with a command behind it: the rest is judged all the same."""
    dice, delta = random.Random(name), CASES[name].get("machine", {})
    for path in [
        path for path in texts({**delta, "grub_default": []}) if path[0] in ("files", "dirs", "commands", "links")
    ]:
        for odd in (dice.choice(ODD), None):
            changed = copy.deepcopy(delta)
            at = changed
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = at[path[-1]].rstrip("\n") + dice.choice(EVILS) if odd is None else odd
            found = judged(changed, default=delta.get("grub_default"))
            assert any(f.status == OK for f in found)
            for f in found:
                assert not would_run(f.hint.command, "curl") and not would_run(f.decide, "curl"), (path, f)


SECRET = {
    "/etc/systemd/system/web.service": "[Unit]\nBefore=pve-guests.service\n[Service]\nEnvironment=NVIDIA_TOKEN=hunter2\n"
    "ExecStartPre=/bin/sh -c 'export T=hunter2; nvidia-modprobe -c 0 -u && curl -H hunter2'\n"
    "ExecStart=/usr/bin/docker run -e T=hunter2 --device /dev/nvidia0 x\n",
    "/var/spool/cron/crontabs/root": "@reboot mknod -m 666 /dev/nvidia-uvm c 239 0; backup --password hunter2 # nvidia\n",
    "/etc/cron.d/latin": "@reboot root mknod /dev/nvidia-uvm c 239 0; echo \udce9 hunter2\n",
    "/etc/tmpfiles.d/x.conf": "f /etc/token 0600 - - - hunter2\n",
    "/boot/grub/grub.cfg": "set superusers=hunter2\npassword_pbkdf2 root grub.pbkdf2.hunter2\n"
    + GRUB.replace("DEFAULT", "0"),
}


def test_a_recording_holds_no_command_line_token_or_password_of_others_and_says_the_same() -> None:
    delta = {
        "files": {**SECRET, "/etc/kernel/proxmox-boot-uuids": None, f"{boot.SECURE_BOOT}": {"hex": "0600000001"}},
        "dirs": {"/etc/systemd/system": ["multi-user.target.wants", "web.service"], WANTS: ["web.service"],
                 "/var/spool/cron/crontabs/root": {"errno": "ENOTDIR"}, "/etc/tmpfiles.d": ["x.conf"], "/etc/cron.d": ["latin"]},
    }  # fmt: skip
    whole = Disk(merge(merge(machine("healthy-host"), TABLE["healthy"]), delta))
    recording = redact(recorded(whole, validate(PROFILE)))
    assert "hunter2" not in json.dumps(recording)
    again = next_boot(load(recording, machine)["host"], validate(PROFILE)).findings
    judged_whole = next_boot(whole, validate(PROFILE)).findings
    assert [(f.id, f.status, f.subject) for f in again] == [(f.id, f.status, f.subject) for f in judged_whole]
    assert {("HT706", "ok"), ("HT707", "fail"), ("HT703", "fail"), ("HT701", "ok")} <= {(f.id, f.status) for f in again}


def test_a_container_boots_no_kernel() -> None:
    with pytest.raises(Refused, match="on the host of this container"):
        next_boot(Disk(merge(machine("healthy-lxc"), {})), validate({}))


def test_what_may_not_be_read_is_told_and_keeps_nothing_else_from_being_judged() -> None:
    found = judged({"dirs": {"/etc/pve/lxc": {"errno": "EACCES"}}})
    assert [f.summary for f in found if f.id == "HT903"] == ["could not be told: EACCES: /etc/pve/lxc"]
    assert {"HT701", "HT702", "HT712"} <= {f.id for f in found if f.status == OK}


def test_a_menu_is_read_with_its_submenus() -> None:
    menu, default = grub.parse(GRUB.replace("DEFAULT", "1>0"))
    assert [entry.title for entry in menu] == ["Proxmox VE GNU/Linux", "Advanced options for Proxmox VE GNU/Linux"]
    entry = grub.chosen(menu, default)
    assert entry is not None and (entry.linux, entry.initrd) == (f"/boot/vmlinuz-{NOW}", f"/boot/initrd.img-{NOW}")
