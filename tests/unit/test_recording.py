# SPDX-License-Identifier: Apache-2.0
"""A recording answers as the machine did, says what it does not hold, and carries nothing that is nobody's business."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hosttune.core.doctor import examine
from hosttune.core.doctor.survey import Declared, survey
from hosttune.core.door.host import Host, Inquiry, Ran, Unrecorded, digest
from hosttune.core.door.live import LiveHost
from hosttune.core.model import ERROR, FAIL, WARN, Refused
from hosttune.core.recording.merge import merge
from hosttune.core.recording.record import RecordingHost
from hosttune.core.recording.redaction import redact
from hosttune.core.recording.replay import ReplayHost, load
from hosttune.core.recording.shape import _ANSWERS, _VALUES, SCHEMA
from hosttune.data import machine

ROOT = Path(__file__).resolve().parents[2]
SHAPE = json.loads((ROOT / "docs" / "recording.schema.json").read_text())
VALID = Draft202012Validator(SHAPE)
SHIPPED = sorted(p.stem for p in (ROOT / "hosttune" / "data" / "machines").glob("*.json"))
CASES = sorted((ROOT / "tests" / "cases" / "doctor").glob("*.json"))


def replay(view: dict[str, Any]) -> ReplayHost:
    """The only machine of a recording that went through a file."""
    recording = json.loads(json.dumps({"schema": SCHEMA, "machines": {"host": view}}))
    VALID.validate(recording)
    return load(recording, machine)["host"]


def outcome(ask: Callable[[Host], Any], host: Host) -> Any:
    """The answer, or the errno with which it was refused."""
    try:
        return ask(host)
    except OSError as e:
        return ("errno", e.errno)


QUESTIONS: dict[str, Callable[[Host], Any]] = {
    "text": lambda h: h.read("/t/text"),
    "bytes that are not UTF-8": lambda h: h.read_bytes("/t/bytes"),
    "the same as text": lambda h: h.read("/t/bytes"),
    "nothing there": lambda h: h.read("/t/absent"),
    "a file as a folder": lambda h: h.read("/t/text/below"),
    "a folder as a file": lambda h: h.read("/t/folder"),
    "names": lambda h: h.list("/t/folder"),
    "names of what is no folder": lambda h: h.list("/t/text"),
    "link": lambda h: h.readlink("/t/link"),
    "no link": lambda h: h.readlink("/t/text"),
    "lstat of a file": lambda h: h.lstat("/t/text"),
    "lstat of a link": lambda h: h.lstat("/t/link"),
    "lstat of a device": lambda h: h.lstat("/dev/null"),
    "lstat of nothing": lambda h: h.lstat("/t/absent"),
    "space": lambda h: h.statvfs("/t/folder"),
    "space of nothing": lambda h: h.statvfs("/t/absent"),
    "command": lambda h: h.run(["printf", "%s", "two  words"]),
    "command that fails": lambda h: h.run(["sh", "-c", "echo out; echo err >&2; exit 3"]),
    "no such command": lambda h: h.run(["/t/absent"]),
    "command that takes too long": lambda h: h.run(["sh", "-c", "echo begun; exec sleep 60"], timeout=0.3),
    "kernel": lambda h: h.uname(),
    "who": lambda h: h.who(),
    "holders": lambda h: h.holders("1:3"),
    "nodes": lambda h: h.inquire(["/dev/zero", "/dev/absent", "/etc/passwd"], ()),
}


class Below(LiveHost):
    """A live host whose /t is a folder of the test."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = str(root)

    def _at(self, path: str) -> str:
        return self.root + path[2:] if path.startswith("/t") else path

    def read_bytes(self, path: str, limit: int = 4 << 20) -> bytes:
        return super().read_bytes(self._at(path), limit)

    def list(self, path: str) -> list[str]:
        return super().list(self._at(path))

    def lstat(self, path: str) -> Any:
        return super().lstat(self._at(path))

    def readlink(self, path: str) -> str:
        return super().readlink(self._at(path))

    def statvfs(self, path: str) -> Any:
        return super().statvfs(self._at(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("Grüße\n", encoding="utf-8")
    (tmp_path / "bytes").write_bytes(b"\xff\x00\xfe caf\xe9\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").touch()
    (tmp_path / "folder" / os.fsdecode(b"\xe9")).touch()
    (tmp_path / "link").symlink_to("no/where")
    return tmp_path


def test_a_replay_answers_as_the_machine_did(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    recorder = RecordingHost(Below(folder))
    live = {name: outcome(ask, recorder) for name, ask in QUESTIONS.items()}
    again = replay(recorder.view)
    assert {name: outcome(ask, again) for name, ask in QUESTIONS.items()} == live
    assert again.unrecorded == []
    assert recorder.effects == [], "a question changes nothing"
    # The list above would also agree if every answer were the same error.
    assert live["bytes that are not UTF-8"] == b"\xff\x00\xfe caf\xe9\n"
    assert live["nothing there"] == ("errno", errno.ENOENT) and live["a folder as a file"] == ("errno", errno.EISDIR)
    assert live["command that takes too long"] == Ran(124, "begun\n", "", 0.3)
    assert live["lstat of a device"].rdev == "1:3" and live["nodes"].nodes["/dev/absent"] == {"errno": "ENOENT"}


def test_the_clock_stands_still_at_the_time_of_the_recording(folder: Path) -> None:
    recorder = RecordingHost(Below(folder))
    assert replay(recorder.view).clock() == recorder.view["clock"]


def test_an_unrecorded_question_is_raised_each_time_and_listed_once() -> None:
    host = replay({"files": {"/there": "yes"}})
    asks: list[Callable[[], Any]] = [
        lambda: host.read("/not/there"),
        lambda: host.list("/there"),
        lambda: host.lstat("/there"),
        lambda: host.readlink("/there"),
        lambda: host.statvfs("/there"),
        lambda: host.run(["a", "b c"]),
        lambda: host.holders("511:*"),
    ]
    for ask in asks * 2:
        with pytest.raises(Unrecorded):
            ask()
    assert host.inquire(["/dev/nvidia0"], ["cuInit"]) == Inquiry({}, {})
    assert host.unrecorded == [
        "files /not/there",
        "dirs /there",
        "nodes /there",
        "links /there",
        "statvfs /there",
        "commands a 'b c'",
        "holders 511:*",
        "nodes /dev/nvidia0",
        "calls cuInit",
    ]


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"files": {"/x": "1", "/y": "2"}}, {"files": {"/y": "3"}}, {"files": {"/x": "1", "/y": "3"}}),
        ({"files": {"/x": "1", "/y": "2"}}, {"files": {"/y": None}}, {"files": {"/x": "1"}}),
        ({"files": {"/x": "1"}}, {"files": None}, {}),
        ({}, {"files": {"/x": None}}, {"files": {}}),
        ({"dirs": {"/d": ["a", "b"]}}, {"dirs": {"/d": ["c"]}}, {"dirs": {"/d": ["c"]}}),
        ({"n": {"/d": {"type": "char", "open": "ok"}}}, {"n": {"/d": {"open": "EPERM"}}},
         {"n": {"/d": {"type": "char", "open": "EPERM"}}}),
        ({"n": {"/d": {"type": "char"}}}, {"n": {"/d": {"errno": "ENOENT"}}}, {"n": {"/d": {"errno": "ENOENT"}}}),
        ({"n": {"/d": {"errno": "ENOENT"}}}, {"n": {"/d": {"type": "char"}}}, {"n": {"/d": {"type": "char"}}}),
        ({"f": {"/x": {"errno": "ENOENT"}}}, {"f": {"/x": {"hex": "ff"}}}, {"f": {"/x": {"hex": "ff"}}}),
        ({"c": {"ls": {"timeout": 5}}}, {"c": {"ls": {"rc": 0}}}, {"c": {"ls": {"rc": 0}}}),
    ],
)  # fmt: skip
def test_merge_states_only_what_differs(base: dict[str, Any], over: dict[str, Any], merged: dict[str, Any]) -> None:
    before = json.dumps([base, over])
    assert merge(base, over) == merged
    assert json.dumps([base, over]) == before, "neither side is changed"


def test_a_machine_may_have_a_base_of_its_own() -> None:
    recording = {
        "schema": SCHEMA,
        "base": "healthy-lxc",
        "machines": {
            "host": {"base": "healthy-host", "files": {"/proc/devices": None}},
            "ct:200": {"calls": {"cuInit": 999}},
        },
    }
    hosts = load(recording, machine)
    assert hosts["ct:200"].read("/run/systemd/container") == "lxc\n"
    assert hosts["ct:200"].inquire([], ["cuInit", "nvmlInit"]).calls == {"cuInit": 999, "nvmlInit": 0}
    assert hosts["host"].read("/proc/self/uid_map").split() == ["0", "0", "4294967295"]
    with pytest.raises(Unrecorded):
        hosts["host"].read("/proc/devices")


def test_another_user_sees_what_its_view_says_over_the_default() -> None:
    node = {"type": "char", "rdev": "195:255", "mode": "0660", "access": "ok", "open": "ok"}
    host = replay(
        {
            "nodes": {"/dev/nvidiactl": node},
            "calls": {"nvmlInit": 0, "cuInit": 0},
            "views": {
                "uid:1000": {
                    "nodes": {"/dev/nvidiactl": {"access": "EACCES", "open": "EACCES"}},
                    "calls": {"nvmlInit": 4},
                },
                "pid:4242": {"nodes": {"/dev/nvidiactl": {"errno": "ENOENT"}}},
                "default": {"calls": {"cuInit": 100}},
            },
        }
    )
    user = host.inquire(["/dev/nvidiactl"], ["nvmlInit", "cuInit"], uid=1000)
    assert user.nodes["/dev/nvidiactl"] == dict(node, access="EACCES", open="EACCES")
    assert user.calls == {"nvmlInit": 4, "cuInit": 100}
    assert host.inquire(["/dev/nvidiactl"], ["nvmlInit"]).calls == {"nvmlInit": 0}
    assert host.inquire(["/dev/nvidiactl"], (), pid=4242).nodes == {"/dev/nvidiactl": {"errno": "ENOENT"}}


def test_a_command_can_change_what_is_read_afterwards() -> None:
    host = replay(
        {
            "files": {"/proc/devices": "195 nvidia"},
            "commands": {"modprobe nvidia-uvm": {"then": {"files": {"/proc/devices": "195 nvidia\n511 nvidia-uvm"}}}},
        }
    )
    assert "511" not in host.read("/proc/devices")
    assert host.execute(["modprobe", "nvidia-uvm"]) == Ran(0)
    assert "511" in host.read("/proc/devices")


def test_recorded_mounts_count_over_those_of_the_base() -> None:
    own = "1 1 0:1 / / rw - tmpfs none rw"
    host = replay({"base": "healthy-lxc", "files": {"/proc/self/mountinfo": own}})
    assert host.read("/proc/self/mountinfo") == own
    assert "/dev/nvidia-uvm" in replay({"base": "healthy-lxc"}).read("/proc/self/mountinfo")


class TwiceAsked(LiveHost):
    """A node that is made, or goes away, between two questions."""

    def __init__(self, nodes: dict[str, Any]) -> None:
        super().__init__()
        self.nodes = nodes

    def inquire(self, nodes: Any, *args: Any, **kwargs: Any) -> Inquiry:
        return Inquiry(self.nodes, {})


@pytest.mark.parametrize("later", [{"errno": "ENOENT"}, {"type": "char", "rdev": "511:0", "open": "ok"}])
def test_the_later_word_on_a_node_counts_whole(later: dict[str, Any]) -> None:
    path = "/dev/null" if "errno" in later else "/dev/absent"
    recorder = RecordingHost(TwiceAsked({path: later}))
    outcome(lambda h: h.lstat(path), recorder)
    recorder.inquire([path], ())
    assert replay(recorder.view).inquire([path], ()).nodes[path] == later


# ---- what is no recording


@pytest.mark.parametrize(
    ("recording", "words"),
    [
        ([], "schema"),
        ({}, "schema"),
        ({"schema": "hosttune.recording/2", "machines": {"host": {}}}, "hosttune.recording/1"),
        ({"schema": SCHEMA}, "machines"),
        ({"schema": SCHEMA, "machines": {}}, "machines"),
        ({"schema": SCHEMA, "machines": {"host": []}}, "machines.host"),
        ({"schema": SCHEMA, "machines": {"host": {"base": "healthy"}}}, "healthy-host"),
        ({"schema": SCHEMA, "machines": {"host": {"files": []}}}, "machines.host.files"),
        ({"schema": SCHEMA, "machines": {"host": {"files": {"/x": 5}}}}, "machines.host.files./x"),
        ({"schema": SCHEMA, "machines": {"host": {"files": {"/x": {"hex": "f"}}}}}, "hexadecimal"),
        ({"schema": SCHEMA, "machines": {"host": {"files": {"/x": {"errno": "absent"}}}}}, "absent"),
        ({"schema": SCHEMA, "machines": {"host": {"dirs": {"/x": "a b"}}}}, "machines.host.dirs./x"),
        ({"schema": SCHEMA, "machines": {"host": {"nodes": {"/x": "char"}}}}, "machines.host.nodes./x"),
        ({"schema": SCHEMA, "machines": {"host": {"commands": {"ls": "out"}}}}, "machines.host.commands.ls"),
        ({"schema": SCHEMA, "machines": {"host": {"holders": {"1:3": [5]}}}}, "machines.host.holders.1:3"),
        ({"schema": SCHEMA, "machines": {"host": {"writes": {"/x": "never"}}}}, "machines.host.writes./x"),
        ({"schema": SCHEMA, "machines": {"host": {"uid": "root"}}}, "machines.host.uid"),
        ({"schema": SCHEMA, "machines": {"host": {"uid": True}}}, "machines.host.uid"),
        ({"schema": SCHEMA, "machines": {"host": {"caps": "all"}}}, "machines.host.caps"),
        ({"schema": SCHEMA, "machines": {"host": {"views": {"uid:0": {"env": []}}}}}, "machines.host.views.uid:0.env"),
    ],
)
def test_load_refuses_what_cannot_be_a_recording(recording: Any, words: str) -> None:
    with pytest.raises(Refused) as caught:
        load(recording, machine)
    assert words in str(caught.value)
    assert caught.value.way_out or caught.value.where
    with pytest.raises(Refused):
        examine.judge(recording, machine)
    assert list(VALID.iter_errors(recording)) != [], "an editor with the schema says so as well"


def test_an_errno_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(Refused, match="ENOPE"):
        load({"schema": SCHEMA, "machines": {"host": {"files": {"/x": {"errno": "ENOPE"}}}}}, machine)


def test_schema_and_code_know_the_same_sections() -> None:
    known = set(SHAPE["$defs"]["machine"]["properties"])
    assert set(_ANSWERS) | set(_VALUES) | {"views"} == known


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_recordings_of_the_tests_keep_to_the_schema(path: Path) -> None:
    VALID.validate(json.loads(path.read_text()))


def test_a_recording_of_containers_that_could_not_be_asked_says_why() -> None:
    absent = {"absent": {"id": "HT430", "what": "the container does not run", "way_out": "pct start 200"}}
    recording = {"schema": SCHEMA, "machines": {"ct:200": absent}}
    VALID.validate(recording)
    machines, (finding,) = examine.judge(recording, machine)
    assert machines == {} and (finding.id, finding.hint.command) == ("HT430", "pct start 200")


# ---- shipped machines


def test_the_schema_names_every_shipped_machine() -> None:
    assert SHAPE["$defs"]["base"]["enum"] == [
        "healthy-host",
        "healthy-lxc",
        "healthy-lxc-unprivileged",
        "healthy-docker",
    ]
    assert sorted(SHAPE["$defs"]["base"]["enum"]) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("key", ["host", "ct:200"])
def test_a_shipped_machine_answers_everything_and_has_no_fault(name: str, key: str) -> None:
    recording: dict[str, Any] = {"schema": SCHEMA, "machines": {"host": machine(name)}}
    VALID.validate(recording)
    declared = {"gpus": 8, "contexts": True, "container_ids": ["200"] if name == "healthy-host" else []}
    recording["machines"] = {key: dict(machine(name), declared=declared)}
    machines, findings = examine.judge(recording, machine)
    assert [f for f in findings if f.status in (FAIL, WARN, ERROR)] == []
    assert machines[key].unknowns == ()
    assert len(machines[key].gpus or ()) == 8 and machines[key].module == "595.71.05"
    assert machines[key].kind == {"healthy-host": "host", "healthy-docker": "docker"}.get(name, "lxc")
    assert machines[key].userns == (name == "healthy-lxc-unprivileged")


@pytest.mark.parametrize("guest", ["healthy-lxc", "healthy-lxc-unprivileged"])
def test_a_healthy_host_and_its_healthy_container_have_no_fault_together(guest: str) -> None:
    config = machine("healthy-host")["files"]["/etc/pve/lxc/200.conf"]
    if guest.endswith("unprivileged"):
        config += "unprivileged: 1\n"
        config = re.sub(r"(?m)^lxc\.cgroup2.*\n", "", config)
    host = {"base": "healthy-host", "files": {"/etc/pve/lxc/200.conf": config}}
    _, findings = examine.judge({"schema": SCHEMA, "machines": {"host": host, "ct:200": {"base": guest}}}, machine)
    assert [f for f in findings if f.status in (FAIL, WARN, ERROR)] == []


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_machine_names_nobody(name: str) -> None:
    recording: dict[str, Any] = {"schema": SCHEMA, "machines": {"host": machine(name)}}
    again = redact(recording)
    view = again["machines"]["host"]
    view["uname"] = recording["machines"]["host"]["uname"]
    for path, text in recording["machines"]["host"]["files"].items():
        if "hostname:" in str(text):
            view["files"][path] = text
    assert again == recording


def test_a_fault_in_a_shipped_machine_is_seen() -> None:
    """The three tests above would also pass if nothing were looked at."""
    view = dict(machine("healthy-lxc"), base="healthy-lxc")
    for path, node in view["nodes"].items():
        recording = {
            "schema": SCHEMA,
            "machines": {"host": {"base": "healthy-lxc", "nodes": {path: {"errno": "ENOENT"}}}},
        }
        _, findings = examine.judge(recording, machine)
        assert [f for f in findings if f.id == "HT403" and f.subject == path], node


# ---- redaction

SECRET = {
    "host name": "rack7-gpu01",
    "domain": "cellar.lan",
    "home": "mmuster",
    "mac": "bc:24:11:aa:bb:cc",
    "ipv4": "10.20.30.40",
    "ipv6": "fd12:3456::10",
    "gpu": "5a1c2b3d-1111-2222-3333-abcdefabcdef",
    "serial": "1654923007451",
    "token": "hf_Abc123",
    "note": "ask Erika",
    "name of a container": "shop-db",
}


def test_a_redacted_recording_holds_no_name_and_is_still_replayed() -> None:
    node = SECRET["host name"]
    config = (
        "# {note}\narch: amd64\nhostname: {name}\nnet0: name=eth0,bridge=vmbr0,hwaddr={mac},ip={ipv4}/24,gw={ipv4}\n"
        "nameserver: {ipv4}\nlxc.environment: HF_TOKEN={token}\nlxc.environment: NVIDIA_VISIBLE_DEVICES=all\n"
        "lxc.cgroup2.devices.allow: c 511:* rwm\n"
    ).format(
        note=SECRET["note"], name=SECRET["name of a container"], **{k: SECRET[k] for k in ("mac", "ipv4", "token")}
    )
    recording: dict[str, Any] = {
        "schema": SCHEMA,
        "machines": {
            "host": {
                "uname": "%s 6.14.11-4-pve x86_64" % node,
                "files": {
                    "/etc/pve/lxc/200.conf": config,
                    "/etc/pve/nodes/%s/lxc/200.conf" % node: config,
                    "/home/%s/.hosttune.json" % SECRET["home"]: "{}",
                    "/etc/hosts": "127.0.0.1 localhost\n{ip} {node}.{domain} {node}\n{ip6} {node}\n".format(
                        ip=SECRET["ipv4"], ip6=SECRET["ipv6"], node=node, domain=SECRET["domain"]
                    ),
                    "/boot/config-6.14.11-4-pve": "CONFIG_NUMA=y\n",
                },
                "commands": {
                    "nvidia-smi -q": {
                        "out": "Serial Number : %s\nGPU UUID : GPU-%s\n" % (SECRET["serial"], SECRET["gpu"])
                    },
                    "ping -c 1 %s" % SECRET["ipv4"]: {"out": "64 bytes from (%s): ttl=64" % SECRET["ipv4"]},
                },
                "calls": {
                    "cuInit@GPU-%s" % SECRET["gpu"]: 0,
                    "cuInit@GPU-5a1c2b3d-1111-2222-3333-000000000002": 999,
                    "dlopen:libcuda.so.1": {"path": "/usr/lib/libcuda.so.595.71.05", "size": 1, "class": 64},
                },
                "links": {"/root/models": "/home/%s/models" % SECRET["home"]},
            },
            "ct:200": {"uname": "%s 6.14.11-4-pve x86_64" % SECRET["name of a container"]},
        },
    }
    VALID.validate(recording)
    clean = redact(recording)
    VALID.validate(clean)
    text = json.dumps(clean).lower()
    assert [what for what, word in SECRET.items() if word.lower() in text] == []
    host = load(clean, machine)["host"]
    assert host.uname() == ("host.example", "6.14.11-4-pve", "x86_64")
    assert load(clean, machine)["ct:200"].uname()[0] == "host2.example"
    assert host.read("/boot/config-6.14.11-4-pve") == "CONFIG_NUMA=y\n"
    assert host.read("/etc/pve/nodes/host.example/lxc/200.conf") == host.read("/etc/pve/lxc/200.conf")
    kept = host.read("/etc/pve/lxc/200.conf")
    assert "lxc.cgroup2.devices.allow: c 511:* rwm\n" in kept and "NVIDIA_VISIBLE_DEVICES=all" in kept
    assert kept.count("\n") == config.count("\n"), "file:line in a report stays right"
    assert "127.0.0.1 localhost" in host.read("/etc/hosts")
    calls = {call for call in clean["machines"]["host"]["calls"] if "GPU" in call}
    assert len(calls) == 2, "two GPUs stay two"
    assert "libcuda.so.595.71.05" in text
    assert recording["machines"]["host"]["uname"].startswith(node), "the recording itself is as it was"
    assert redact(clean) == clean


def test_an_included_file_keeps_what_is_judged_of_it_and_nothing_else() -> None:
    """It lies anywhere, and LXC passes over whatever in it does not begin with its name."""
    text = "# note: t0ken\nPASSWORD=t0ken\nlxc.environment = HF_TOKEN=t0ken\nlxc.cgroup2.devices.allow = c 511:* rwm\n"
    files = {
        "/etc/pve/lxc/200.conf": "arch: amd64\nlxc.include: /srv/gpu.conf\nlxc.include: /srv/more\n",
        "/srv/gpu.conf": text,
        "/srv/more/a.conf": "lxc.include = /srv/deep.conf\n" + text,
        "/srv/deep.conf": text,
    }
    clean = redact({"schema": SCHEMA, "machines": {"host": {"files": files}}})["machines"]["host"]["files"]
    assert "t0ken" not in json.dumps(clean)
    for path in ("/srv/gpu.conf", "/srv/more/a.conf", "/srv/deep.conf"):
        assert clean[path].count("\n") == files[path].count("\n") and "lxc.cgroup2.devices.allow = c 511:* rwm" in clean[path]


def test_a_host_called_pve_does_not_lose_its_paths() -> None:
    host = load(redact({"schema": SCHEMA, "machines": {"host": machine("healthy-host")}}), machine)["host"]
    seen = survey(host, Declared(gpus=8, container_ids=("200",)))
    assert seen.unknowns == () and host.unrecorded == []


def test_variables_of_another_process_are_recorded_by_the_same_rule(tmp_path: Path) -> None:
    class Init(LiveHost):
        def read_bytes(self, path: str, limit: int = 4 << 20) -> bytes:
            return b"HF_TOKEN=secret\0container=lxc\0NVIDIA_VISIBLE_DEVICES=all\0PATH=/bin\0"

    recorder = RecordingHost(Init())
    assert "HF_TOKEN" in recorder.read("/proc/1/environ")
    assert replay(recorder.view).read("/proc/1/environ") == "container=lxc\0NVIDIA_VISIBLE_DEVICES=all\0"


def test_only_variables_that_matter_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    recorder = RecordingHost(LiveHost())
    recorder.who()
    assert recorder.view["env"]["NCCL_PROTO"] == "LL" and "secret" not in json.dumps(recorder.view)


# ---- effects on a copy


def test_effects_change_the_copy_only() -> None:
    none = {"errno": "ENOENT"}
    files = {"/a": "one\n", "/p": "0\n", "/d/new": none, "/e/first": none}
    view = {"files": files, "dirs": {"/d": ["x"], "/e": none}, "clock": 5}
    before = json.dumps(view)
    host = ReplayHost(view)
    with host.lock("/run/lock/x"):
        host.replace("/a", b"two\n", digest(b"one\n"))
    host.poke("/p", "1")
    host.append("/j", b"line 1\n")
    host.append("/j", b"line 2\n")
    host.replace("/d/new", b"\xff", None)
    host.replace("/e/first", b"", None)
    host.remove("/d/new", digest(b"\xff"))
    assert (host.read("/a"), host.read("/p"), host.read("/j")) == ("two\n", "1\n", "line 1\nline 2\n")
    assert (host.list("/d"), host.list("/e")) == (["x"], ["first"])
    with pytest.raises(FileNotFoundError):
        host.read("/d/new")
    done = [(e["effect"], e["target"]) for e in host.effects]
    assert done[:3] == [("lock", "/run/lock/x"), ("replace", "/a"), ("poke", "/p")] and done[-1] == ("remove", "/d/new")
    assert json.dumps(view) == before


def test_a_replay_refuses_to_write_over_what_it_did_not_expect() -> None:
    host = ReplayHost({"files": {"/a": "one\n", "/none": {"errno": "ENOENT"}}})
    for expect in (digest(b"other"), None):
        with pytest.raises(Refused):
            host.replace("/a", b"two\n", expect)
    with pytest.raises(Refused):
        host.remove("/none", digest(b"one\n"))
    assert host.read("/a") == "one\n" and host.effects == []


def test_a_write_may_be_ignored_or_refused_as_the_recording_says() -> None:
    host = ReplayHost(
        {
            "files": {"/sys/x": "0\n", "/etc/pve/lxc/200.conf": "a\n"},
            "writes": {"/sys/x": "ignored", "/etc/pve/lxc/200.conf": "EACCES", "/j": "ENOSPC"},
        }
    )
    host.poke("/sys/x", "1")
    assert host.read("/sys/x") == "0\n" and host.effects == [{"effect": "poke", "target": "/sys/x"}]
    with pytest.raises(PermissionError) as caught:
        host.replace("/etc/pve/lxc/200.conf", b"b\n", digest(b"a\n"))
    assert caught.value.filename == "/etc/pve/lxc/200.conf"
    with pytest.raises(OSError) as full:
        host.append("/j", b"x")
    assert full.value.errno == errno.ENOSPC
    assert len(host.effects) == 1, "what was refused is no effect"


# ---- the page about it


def test_the_example_of_the_page_is_a_recording_and_means_what_it_says() -> None:
    page = (ROOT / "docs" / "recordings.md").read_text()
    block = re.search(r'(?ms)^    \{\n      "schema"[^`]*?"note": "nvidia-smi works.*?^    \}\n', page)
    assert block
    recording = json.loads(block[0])
    VALID.validate(recording)
    _, findings = examine.judge(recording, machine)
    assert [f.id for f in findings if f.status == FAIL] == ["HT401"]


def test_the_page_names_every_key_of_a_machine_and_every_shipped_one() -> None:
    page = (ROOT / "docs" / "recordings.md").read_text()
    assert [key for key in SHAPE["$defs"]["machine"]["properties"] if "`%s`" % key not in page] == []
    assert [name for name in SHIPPED if "`%s`" % name not in page] == []
