# SPDX-License-Identifier: Apache-2.0
"""Where a container's config is, when it is refused, and what a sync writes on Proxmox VE: on a machine on paper."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from hosttune.core.door.host import Host, Unrecorded
from hosttune.core.lxc import restart, see, store, sync
from hosttune.core.lxc.needs import Wanted
from hosttune.core.lxc.outlook import wanted_of
from hosttune.core.model import Refused
from hosttune.core.recording.merge import merge
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.wanted.profile import Container
from tests.unit.lxc_cases import NODES, PROC_DEVICES, a_host, real

STOPPED = {"rc": 1, "err": "200 doesn't exist"}


class Paper(ReplayHost):
    """A machine that holds what is written here and nothing else: what is not is not there."""

    def _answer(self, section: str, path: str) -> Any:
        try:
            return super()._answer(section, path)
        except Unrecorded:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def run(self, argv: Any, timeout: float = 20, stdin: bytes = b"") -> Any:
        try:
            return super().run(argv, timeout, stdin)
        except Unrecorded:
            return super().run(["none"])


def node_view() -> dict[str, Any]:
    found = {path: {"type": node.type, "rdev": "" if node.type == "dir" else "%d:%d" % (node.major, node.minor),
                    "mode": "%04o" % node.mode} for path, node in NODES.items()}
    return {**found, "/dev/kfd": {"type": "link"}}


def a_node(config: bytes = b"", **over: Any) -> Paper:
    """A Proxmox VE node `pve1` of a cluster with `pve2`, on the host of the cases, with container 200."""
    path = "/etc/pve/lxc/200.conf"
    view: dict[str, Any] = {
        "uid": 0, "uname": "pve1 6.8.12-1-pve x86_64",
        "files": {path: config.decode("utf-8", "surrogateescape"), "/proc/devices": PROC_DEVICES,
                  "/etc/pve/nodes/pve2/lxc/201.conf": "arch: amd64\n", "/etc/pve/nodes/pve1/qemu-server/300.conf": "cores: 1\n",
                  "/etc/pve/.members": '{"nodename": "pve1", "cluster": {"name": "c", "quorate": 1}}'},
        "dirs": {"/etc/pve/nodes": ["pve1", "pve2"], "/etc/pve/lxc": ["200.conf", "1000.conf", "200.conf.tmp.77"],
                 "/dev": [name[5:] for name in NODES if name.count("/") == 2] + ["null"],
                 "/dev/nvidia-caps": ["nvidia-cap1", "nvidia-cap2"], "/dev/dri": ["card0", "renderD128"]},
        "nodes": {path: {"type": "file", "mode": "0640"}, **node_view()},
        "commands": {"none": {"rc": 127}, "lxc-info -n 200 -p -H": STOPPED,
                     "dpkg-query -W -f '${Version}' pve-container": {"out": "6.1.10"}},
    }
    return Paper(merge(view, over))


def refusal(host: Host, ct_id: str) -> Refused:
    with pytest.raises(Refused) as refused:
        sync.sync(host, ct_id, Wanted())
    return refused.value


@pytest.mark.parametrize(("ct_id", "what", "where", "way_out"), [
    ("201", "container 201 is on node pve2", "/etc/pve/nodes/pve2/lxc/201.conf", "ssh pve2 hosttune"),
    ("300", "300 is a virtual machine, not a container", "/etc/pve/nodes/pve1/qemu-server/300.conf", "qm config 300"),
    ("999", "there is no container 999", "/etc/pve/lxc", "containers here: 200, 1000"),
    ("../200", "'../200' is no container id or name", "container", "vmid"),
])
def test_a_container_that_is_not_here(ct_id: str, what: str, where: str, way_out: str) -> None:
    said = refusal(a_node(real("01")), ct_id)
    assert (said.what, said.where) == (what, where) and way_out in said.way_out


@pytest.mark.parametrize(("over", "what"), [
    ({"files": {"/etc/pve/.members": '{"cluster": {"quorate": 0}}'}}, "no quorum"),
    ({"files": {"/etc/pve/.members": {"errno": "EACCES"}}}, "no quorum"),
    ({"nodes": {"/etc/pve/lxc/200.conf": {"type": "file", "mode": "0440"}}}, "no quorum"),
    ({"uid": 1000}, "root is needed"),
])
def test_a_file_that_cannot_be_written_now_is_refused_before_anything_is(over: dict[str, Any], what: str) -> None:
    host = a_node(real("01"), **over)
    assert what in refusal(host, "200").what and host.effects == []
    assert sync.show(host, "200", Wanted()).steps, "looking at it is fine"


def test_a_file_that_pmxcfs_would_refuse_is_refused() -> None:
    assert "limit is 1048576" in refusal(a_node(b"#" + b"x" * (1 << 20) + b"\n" + real("01")), "200").what


def test_sync_on_proxmox_takes_its_lock_and_replaces_the_file_once() -> None:
    host = a_node(real("01"))
    done = sync.sync(host, "200", Wanted())
    assert done.changed and [f.status for f in done.findings if f.id == "HT430"] == ["skip"]
    targets = [(effect["effect"], effect["target"]) for effect in host.effects]
    assert ("lock", "/run/lock/lxc/pve-config-200.lock") in targets
    assert targets.index(("lock", "/run/lock/lxc/pve-config-200.lock")) < targets.index(("replace", "/etc/pve/lxc/200.conf"))
    assert [target for effect, target in targets if target.startswith("/etc/pve")] == ["/etc/pve/lxc/200.conf"]
    assert host.read_bytes("/etc/pve/lxc/200.conf") == done.steps[0].after.encode()  # type: ignore[union-attr]
    host.effects.clear()
    assert not sync.sync(host, "200", Wanted()).changed and host.effects == []


def test_a_write_that_fails_is_a_finding_and_no_action_follows() -> None:
    host = a_node(real("01"), writes={"/etc/pve/lxc/200.conf": "EACCES"})
    done = sync.sync(host, "200", Wanted())
    assert not done.changed and done.actions == () and "quorum" in done.findings[0].hint.command


def test_a_dry_run_and_show_write_nothing() -> None:
    host = a_node(real("01"))
    report = sync.sync(host, "200", Wanted(), dry_run=True)
    assert report.steps and not report.changed and host.effects == [] and report.mode == "plan"
    assert sync.code(report) == 1 and sync.code(sync.show(a_node(real("07")), "200", Wanted(gpus=()))) == 1
    assert sync.code(sync.show(a_node(b"arch: amd64\n"), "200", Wanted())) == 0
    with pytest.raises(Refused, match="never, idle, always"):
        sync.sync(host, "200", Wanted(), restart="maybe")


def test_the_host_that_is_seen_is_the_host_of_the_cases() -> None:
    host = a_node(real("01"))
    seen = see.devices_for(host, store.find(host, "200"))
    assert seen == a_host()


def test_a_link_in_dev_is_followed() -> None:
    host = a_node(b"lxc.mount.entry: /dev/dri/by-path/pci-0000:c7:00.0-card dev/dri/card0 none bind,create=file\n",
                  nodes={"/dev/dri/by-path/pci-0000:c7:00.0-card": {"type": "link"}},
                  links={"/dev/dri/by-path/pci-0000:c7:00.0-card": "../card0"})
    seen = see.devices_for(host, store.find(host, "200"))
    assert seen.nodes and seen.nodes["/dev/dri/by-path/pci-0000:c7:00.0-card"].major == 226


def test_the_version_of_proxmox_decides_what_is_dropped() -> None:
    data = b"lxc.environment.runtime: A=1\n"
    for version, dropped in (("5.3.5", 1), ("6.1.10", 0), ("4.4-7", 1)):
        host = a_node(data, commands={"dpkg-query -W -f '${Version}' pve-container": {"out": version}})
        lines = store.find(host, "200").document.lines
        assert sum(bool(line.reason) for line in lines) == dropped


def test_plain_lxc_where_there_is_no_proxmox() -> None:
    text = "lxc.uts.name = llm\n"
    view = {"files": {"/srv/lxc/llm/config": text, "/proc/devices": PROC_DEVICES}, "dirs": {"/srv/lxc": ["llm", "lost+found"]},
            "commands": {"none": {"rc": 127}, "lxc-config lxc.lxcpath": {"out": "/srv/lxc\n"}}}
    config = store.find(Paper(view), "llm")
    assert (config.path, config.document.dialect, config.lock) == ("/srv/lxc/llm/config", "lxc", "")
    assert config.tool_options == ("-n", "llm", "-P", "/srv/lxc")
    assert "containers here: llm" in refusal(Paper(view), "200").way_out


def test_the_generated_config_of_a_proxmox_container_is_never_taken_for_one() -> None:
    host = a_node(files={"/var/lib/lxc/555/config": "lxc.arch = amd64\n"})
    assert refusal(host, "555").what == "there is no container 555"


# ---- a running container, as a recording holds it

def running(config: bytes, seen: dict[str, Any], **over: Any) -> Paper:
    init = {"commands": {"lxc-info -n 200 -p -H": {"rc": 0, "out": "4242\n"}}, "holders": {"195:*": [], "511:*": []},
            "files": {"/proc/4242/mountinfo": MOUNTS, "/proc/self/mountinfo": "1 0 0:5 / / rw - tmpfs t rw\n"},
            "statvfs": {"/proc/4242/root/dev/shm": {"size": 1 << 30, "free": 0, "used": 3 << 20}}}
    host = a_node(config, **merge(init, over))
    host.views = {"pid:4242": {"nodes": seen}}
    return host


MOUNTS = ("10 1 0:90 / / rw - zfs p rw\n11 10 0:91 / /dev rw - tmpfs none rw\n12 11 0:92 / /dev/shm rw - tmpfs tmpfs rw\n"
          "13 10 0:93 / /run rw - tmpfs tmpfs rw\n14 10 0:5 / /srv/models ro - tmpfs t rw\n")


def inside(**states: dict[str, Any]) -> dict[str, Any]:
    """Nodes of config 05 as the container has them: all well but for `states`."""
    good = {"nvidia0": "195:0", "nvidiactl": "195:255", "nvidia-uvm": "511:0"}
    return {"/dev/" + name: {"type": "char", "rdev": rdev, "nlink": 1, "open": "ok", **states.get(name.replace("-", "_"), {})}
            for name, rdev in good.items()}


REPLACED = {"rdev": "509:0", "nlink": 0}


@pytest.mark.parametrize(("uvm", "id", "rule", "restarts"), [
    ({}, "", False, False),
    ({"open": "EPERM"}, "HT401", True, False),
    ({"open": "EACCES"}, "HT407", False, False),
    ({"open": {"timeout": 5}}, "HT409", False, False),
    ({"errno": "ENOENT"}, "HT403", False, True),
    ({"type": "file"}, "HT404", False, True),
    ({"rdev": "509:0"}, "HT405", False, True),
    (REPLACED, "HT406", False, True),
    ({"nlink": 0}, "", False, False),  # of the right number: as good as the one that the host has now
])
def test_what_is_seen_inside_decides_between_a_rule_and_a_restart(uvm: dict[str, Any], id: str, rule: bool,
                                                                  restarts: bool) -> None:
    report = sync.show(running(real("05"), inside(nvidia_uvm=uvm)), "200", Wanted())
    told = {f.id: f for f in report.findings if f.machine == "ct:200"}
    assert [f.id for f in told.values() if f.status == "fail"] == ([id] if id else [])
    assert (told["HT429"].status, told["HT429"].because) == (("skip", (id,)) if id else ("ok", ()))
    assert [action.argv for action in report.actions] == [
        ("lxc-cgroup", "-n", "200", "devices.allow", "c 511:* rwm")] * rule + [("pct", "reboot", "200")] * restarts
    if restarts:
        (pending,) = [f for f in report.findings if f.id == "HT402"]
        assert pending.hint.costs.endswith("it destroys: 3.0 MiB in its own tmpfs /dev/shm")
        assert (pending.status, pending.because, pending.hint) == ("skip", (id,), told[id].hint), "told once, where the cause is"


def test_a_restart_before_the_edit_would_be_made_from_the_old_file() -> None:
    host = running(real("05"), inside(nvidia_uvm=REPLACED))
    (pending,) = [f for f in sync.show(host, "200", Wanted(form="dev")).findings if f.id == "HT402"]
    assert pending.hint.command == "hosttune lxc sync 200 --restart always"
    (pending,) = [f for f in sync.show(host, "200", Wanted()).findings if f.id == "HT402"]
    assert pending.hint.command == "pct reboot 200", "nothing is to be edited"


def test_what_the_driver_refuses_is_told_once_for_one_errno_and_sends_to_the_doctor() -> None:
    refused: dict[str, Any] = {"open": "ENXIO"}
    host = running(real("05"), inside(nvidia0={"open": "EIO"}, nvidiactl=refused, nvidia_uvm=refused))
    told = [f for f in sync.show(host, "200", Wanted()).findings if f.id == "HT409"]
    assert [(f.subject, f.status) for f in told if f.status == "fail"] == [("/dev/nvidia0", "fail"), ("/dev/nvidiactl", "fail")]
    assert "so is 1 more: nvidia-uvm" in told[1].summary and {f.hint.word for f in told} == {"look"}


def test_gpus_that_the_host_has_not_are_one_finding() -> None:
    (told,) = [f for f in sync.show(a_node(real("05")), "200", Wanted(gpus=(0, 6, 7))).findings if "wanted" in f.summary]
    assert told.summary == "GPU 6, 7 are wanted, and the host has no /dev/nvidiaN of them"


def test_a_restart_does_not_help_while_the_host_itself_has_no_right_node() -> None:
    host = running(real("05"), inside(nvidia_uvm={"type": "file"}), nodes={"/dev/nvidia-uvm": {"type": "char", "rdev": "509:0"}})
    report = sync.show(host, "200", Wanted())
    assert report.actions == ()
    (one,) = [f for f in report.findings if f.id == "HT404"]
    assert one.hint.command == "nvidia-modprobe -u -c=0"


def test_processes_that_hold_a_gpu_are_named_and_keep_idle_from_restarting() -> None:
    host = running(real("05"), inside(nvidia_uvm=REPLACED), holders={"195:*": [[77, "sglang"], [88, "Xorg"]], "511:*": []},
                   files={"/proc/77/cgroup": "0::/lxc/200/ns/system.slice\n", "/proc/88/cgroup": "0::/lxc/2001/ns\n"},
                   statvfs={"/proc/4242/root/dev/shm": {"size": 1, "free": 1, "used": 0}})
    report = sync.sync(host, "200", Wanted(), restart="idle")
    assert host.effects == [] and not report.changed
    assert report.actions == (), "what is pending is a finding"
    (pending,) = [f for f in report.findings if f.id == "HT402"]
    assert pending.hint.costs.endswith("it destroys: GPU process 77 (sglang)")


@pytest.mark.parametrize(("mounts", "shm"), [
    ("", {"errno": "EACCES"}),
    ("14 12 0:99 / /dev/shm rw - fuse.hangs x rw\n", {"used": "asked"}),
    ("14 11 0:99 / /dev rw - fuse.hangs x rw\n", {"used": "asked"}),
])
def test_a_tmpfs_that_cannot_be_looked_at_is_a_loss_and_a_covered_one_is_never_asked(mounts: str, shm: dict[str, Any]) -> None:
    """The root of a container decides what lies over its mounts: asking could wait for ever."""
    host = running(real("05"), inside(nvidia_uvm=REPLACED), files={"/proc/4242/mountinfo": MOUNTS + mounts},
                   statvfs={"/proc/4242/root/dev/shm": shm})
    (pending,) = [f for f in sync.show(host, "200", Wanted()).findings if f.id == "HT402"]
    assert "what could not be seen in its own tmpfs /dev/shm" in pending.hint.costs


def ha_node(**commands: Any) -> Paper:
    """Container 200 of the HA manager, with a node inside that only a start makes right."""
    resources = "vm: 100\n\nct: 200\n\tstate started\n"
    return running(real("05"), inside(nvidia_uvm=REPLACED), files={"/etc/pve/ha/resources.cfg": resources},
                   commands=commands)


def test_a_container_of_the_ha_manager_is_restarted_through_it_and_only_when_the_policy_says_so() -> None:
    host = ha_node()
    command = next(f for f in sync.sync(host, "200", Wanted()).findings if f.id == "HT402").hint.command
    assert host.effects == []
    stopped, started = command.index("--state stopped"), command.index("--state started")
    assert stopped < command.index("pct status") < started, "a start asked for before the stop is done would be lost"

    states = {"then": {"commands": {"pct status 200": {"out": "status: stopped\n"}}}}
    host = ha_node(**{"ha-manager set ct:200 --state stopped": states, "ha-manager set ct:200 --state started": {
        "then": {"commands": {"pct status 200": {"out": "status: running\n"}}}}})
    done = sync.sync(host, "200", Wanted(), restart="always")
    assert [action.argv[-1] for action in done.actions] == ["stopped", "started"]
    assert not [effect for effect in host.effects if "pct" in str(effect["target"])], "nothing goes past the manager"


def test_a_stop_that_the_ha_manager_does_not_make_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "TIMEOUT", 1)
    answer = {"rc": 0}
    host = ha_node(**{"ha-manager set ct:200 --state stopped": answer, "ha-manager set ct:200 --state started": answer,
                      "pct status 200": {"out": "status: running\n"}})
    done = sync.sync(host, "200", Wanted(), restart="always")
    assert "has not stopped it within" in next(f.summary for f in done.findings if f.id == "HT402")
    assert [effect["target"].split()[-1] for effect in host.effects if effect["effect"] == "run"] == ["stopped", "started"]


def test_a_container_that_a_backup_holds_is_not_restarted_under_it() -> None:
    host = running(b"lock: backup\n" + real("05"), inside(nvidia_uvm=REPLACED))
    done = sync.sync(host, "200", Wanted(), restart="always")
    assert host.effects == [] and not done.actions
    assert any("lock: backup" in f.summary and f.hint.command.endswith("pct unlock 200") for f in done.findings)


# ---- preview

def test_a_preview_needs_nothing_but_a_file_and_a_device_list() -> None:
    report, data = sync.preview(real("02"), "copy.conf", Wanted(), a_host())
    assert sync.code(report) == 1 and report.steps[0].after == data.decode()
    again, same = sync.preview(data, "copy.conf", Wanted(), a_host())
    assert same == data and not again.steps


@pytest.mark.parametrize(("data", "path", "dialect"), [
    (b"lxc.uts.name = a\n", "x", "lxc"), (b"lxc.uts.name = a\n", "200.conf", "lxc"), (b"arch: amd64\nlxc.x = 1\n", "x", "pve"),
    (b"arch:amd64\nlxc.x = 1\n", "x", "pve"),
    (b"lxc.x = 1\n\n[before]\nlxc.x = 2\n", "x", "pve"), (b"lxc.cap.drop:\n", "x", "pve"),
    (b"", "200.conf", "pve"), (b"", "/var/lib/lxc/a/config", "lxc"),
])
def test_the_dialect_of_a_copy_is_guessed_from_what_stands_in_it(data: bytes, path: str, dialect: str) -> None:
    assert store.guess_dialect(path, data) == dialect


def test_a_declaration_becomes_minors_of_this_host() -> None:
    assert wanted_of(a_node(), Container()) == Wanted(gpus=None, required=True)
    assert wanted_of(a_node(), Container(gpus="1,0", gpu="optional", form="path", caps=True), (506,)) == Wanted(
        (0, 1), False, "path", True, (506,))


def test_a_user_is_told_that_roots_containers_are_roots() -> None:
    view = {"uid": 1000, "dirs": {"/var/lib/lxc": []}, "commands": {"none": {"rc": 127}}}
    assert "only root" in refusal(Paper(view), "200").way_out
    assert "only root" not in refusal(Paper(dict(view, uid=0)), "200").way_out
