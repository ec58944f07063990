# SPDX-License-Identifier: Apache-2.0
"""hosttune lxc on a Proxmox node as the lab plays it: forms and their conversion, HA, quorum, many containers, GPUs of VMs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import engine
from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import docker, fleet, outlook, see, store, sync, vms
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Refused, Report
from hosttune.core.wanted.profile import Container
from tests.kernel import mission
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.nodes import GpuNodes
from tests.kernel.proxmox import PVE, Proxmox
from tests.kernel.test_proxmox_pct import settle
from tests.kernel.view import unmount

UVM = "/dev/nvidia-uvm"
NAMES = ("nvidia0", "nvidiactl", "nvidia-uvm")
BINDS = "".join(f"lxc.mount.entry: /dev/{name} dev/{name} none bind,optional,create=file\n" for name in NAMES)
STALE = "lxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow: c 509:* rwm\n"


@pytest.fixture
def node(proxmox: Proxmox, nodes: GpuNodes, fake: FakeTrees) -> Iterator[Proxmox]:
    """Two GPUs, nvidia-uvm at 511; hosttune's state is the test's own."""
    folders = [path for path in mission.private_state() if path != "/run/lock"]
    unmount("/run/lock")
    fake.gpu_host(2)
    nodes.make_all(2)
    yield proxmox
    for folder in folders:
        unmount(folder)


def hosttune(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hosttune", "lxc", *words], capture_output=True, text=True, timeout=90,
                          env=dict(os.environ))  # fmt: skip


def told(report: Report, id: str) -> list[str]:
    return [f.status for f in report.findings if f.id == id]


class Counting(LiveHost):
    """This machine, and how often each file was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def read_bytes(self, path: str, limit: int = 0) -> bytes:
        self.reads[path] += 1
        return super().read_bytes(path, limit)


def test_fifty_containers_need_one_pass_over_the_devices_and_no_restart(node: Proxmox) -> None:
    for number in range(50):
        node.conf(400 + number).write_text(f"arch: amd64\nhostname: ct{400 + number}\nostype: debian\n" + STALE + BINDS)
    node.conf(450).write_text("arch: amd64\nhostname: web\n")
    try:
        host = Counting()
        devices = see.device_table_of(host)
        ids = fleet.with_gpus(host, devices)
        assert len([name for name in ids if 400 <= int(name) < 450]) == 50 and "450" not in ids
        orders = {str(400 + number): fleet.Order(lambda: Wanted(), "always") for number in range(50)}
        reports = fleet.sync_each(host, orders, devices=devices)
        assert host.reads["/proc/devices"] == 1
        assert all(report.changed for report in reports)
        assert all("c 511:* rwm" in node.conf(int(ct_id)).read_text() for ct_id in orders)
        assert {action.name for report in reports for action in report.actions} == set()
        again = fleet.sync_each(LiveHost(), orders)
        assert not any(report.changed or report.effects for report in again)
    finally:
        for number in range(51):
            node.conf(400 + number).unlink()


@pytest.mark.parametrize("unprivileged", [False, True])
def test_every_form_becomes_every_other_in_one_write_and_starts(node: Proxmox, nodes: GpuNodes, unprivileged: bool) -> None:
    path = node.container(360, BINDS + ("" if unprivileged else STALE), unprivileged)
    assert node.pct("start", "360").returncode == 0
    for form in ("dev", "number") if unprivileged else ("dev", "path", "number", "dev"):
        wanted = Wanted(gpus=(0,), required=True, form=form)
        done = sync.sync(LiveHost(), "360", wanted)
        writes = [e for e in done.effects if e["effect"] == "replace" and e["target"].endswith("/lxc/360.conf")]
        text = path.read_text()
        assert len(writes) == 1, "one write"
        assert (text.count("\ndev"), text.count("mount.entry")) == ((4, 0) if form == "dev" else (0, 4)), text
        assert text.count("devices.allow: /dev/") == (4 if form == "path" and not unprivileged else 0)
        if unprivileged:
            assert "devices.allow" not in text
        assert node.pct("stop", "360").returncode == 0 and node.pct("start", "360").returncode == 0, form
        assert [node.open_errno(360, "/dev/" + name) for name in NAMES] == ["ENXIO"] * 3, form
        assert not sync.sync(LiveHost(), "360", wanted).changed
    nodes.make("nvidia-uvm", 508, 0)
    assert node.pct("stop", "360").returncode == 0 and node.pct("start", "360").returncode == 0
    assert node.open_errno(360, UVM) == "ENXIO", "the form follows the number"


def test_the_dev_form_says_before_it_writes_that_a_missing_node_stops_the_start(node: Proxmox, nodes: GpuNodes) -> None:
    node.container(361, BINDS)
    said = sync.sync(LiveHost(), "361", Wanted(gpus=(0,), form="dev"), dry_run=True)
    assert told(said, "HT434") == ["warn"]
    assert told(sync.sync(LiveHost(), "361", Wanted(gpus=(0,), form="dev", required=True), dry_run=True), "HT434") == []
    for form, starts in (("dev", False), ("path", True)):
        sync.sync(LiveHost(), "361", Wanted(gpus=(0,), form=form))
        nodes.remove("nvidia0")
        assert (node.pct("start", "361").returncode == 0) is starts, form
        nodes.make("nvidia0", 195, 0)
    seen = sync.show(LiveHost(), "361", Wanted(gpus=(0,)))
    assert told(seen, "HT404") == ["fail"], "an empty file stands in its place"


def test_a_guest_of_the_ha_manager_is_restarted_through_it(node: Proxmox, nodes: GpuNodes) -> None:
    node.container(362, BINDS)
    nodes.make("nvidia-uvm", 509, 0)
    assert node.run("ha-manager", "add", "ct:362", "--state", "started").returncode == 0
    try:
        settle(node, 362, "running")
        assert node.run("lxc-wait", "-n", "362", "-s", "RUNNING", "-t", "30").returncode == 0, "its mounts are made"
        nodes.make("nvidia-uvm", 511, 0)  # as nvidia-modprobe does: the container holds the old inode
        sync.sync(LiveHost(), "362", Wanted(gpus=(0,)))
        pid = see.running_pid(LiveHost(), store.find(LiveHost(), "362"))
        kept = sync.sync(LiveHost(), "362", Wanted(gpus=(0,)))
        assert (told(kept, "HT406"), told(kept, "HT402")) == (["fail"], ["skip"])
        assert see.running_pid(LiveHost(), store.find(LiveHost(), "362")) == pid
        done = sync.sync(LiveHost(), "362", Wanted(gpus=(0,)), restart="always")
        assert [action.argv for action in done.actions] == [
            ("ha-manager", "set", "ct:362", "--state", state) for state in ("stopped", "started")]
        assert told(done, "HT402") == [] and node.open_errno(362, UVM) == "ENXIO"
        assert "state started" in node.run("ha-manager", "config").stdout
    finally:
        node.run("ha-manager", "remove", "ct:362")


def test_a_quorum_that_is_late_is_waited_for_and_one_that_does_not_come_is_not_waited_for_long(node: Proxmox) -> None:
    path = node.container(363, STALE + BINDS)
    before = path.read_bytes()
    node.lab("quorum", "off")
    refused = hosttune("sync", "363", "--wait-quorum", "1")
    assert refused.returncode == 2 and "no quorum: waiting up to 1 s" in refused.stderr and "pvecm status" in refused.stderr
    assert path.read_bytes() == before
    late = threading.Timer(2, node.lab, ("quorum", "on"))
    late.start()
    done = hosttune("sync", "363", "--wait-quorum", "60")
    late.join()
    assert done.returncode == 0, done.stderr + done.stdout
    assert "c 511:* rwm" in path.read_text() and "c 509" not in path.read_text()
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("to put it back without hosttune:  "))
    copy = line.split("  ")[1].split()
    assert copy[0] == "cp" and copy[-1] == str(path) and Path(copy[-2]).read_bytes() == before
    node.lab("quorum", "off")
    quiet = hosttune("sync", "363", "--wait-quorum", "60")
    assert quiet.returncode == 0 and "quorum" not in quiet.stderr, "with nothing to write there is nothing to wait for"


def test_revert_takes_out_its_own_lines_after_proxmox_has_rewritten_the_file(node: Proxmox) -> None:
    path = node.container(364, "# my notes\n" + STALE + BINDS)
    assert sync.sync(LiveHost(), "364", Wanted(gpus=(0,))).changed
    assert node.pct("set", "364", "--onboot", "1", "--memory", "600").returncode == 0
    steps, failed = engine.revert(LiveHost(), {})
    text = path.read_text()
    assert failed == [] and len(steps) == 1
    assert "c 195:* rwm" in text and "c 509:* rwm" in text and "c 511" not in text and "195:0" not in text
    assert "onboot: 1\n" in text and "memory: 600\n" in text and "# my notes\n" in text


def test_a_gpu_of_a_virtual_machine_is_given_to_no_container(node: Proxmox, fake: FakeTrees) -> None:
    node.container(365, BINDS)
    machine = PVE / "qemu-server" / "900.conf"
    bdf = fake.functions(2)[1].bdf
    machine.write_text(f"cores: 1\nhostpci0: {bdf},pcie=1\n")
    try:
        host = LiveHost()
        assert vms.assigned(host) == {1: f"{machine}:2"}
        for named in ("1", "0,1", bdf):
            with pytest.raises(Refused, match="GPU 1 is given to a virtual machine") as refused:
                outlook.wanted_of(host, Container(gpus=named))
            assert refused.value.where == f"{machine}:2"
        done = sync.sync(host, "365", outlook.wanted_of(host, Container(gpus="all", gpu="optional")))
        assert "/dev/nvidia1" not in node.conf(365).read_text() and told(done, "HT433") == ["skip"]
    finally:
        machine.unlink()


def test_a_gpu_may_be_named_by_address_and_by_uuid(node: Proxmox, fake: FakeTrees) -> None:
    host, bdf = LiveHost(), fake.functions(2)[1].bdf
    uuid = "GPU-00000000-0000-4000-8000-000000000001"
    for named in ("1", bdf, bdf.partition(":")[2].upper(), uuid):
        assert outlook.wanted_of(host, Container(gpus=named)).gpus == (1,), named
    with pytest.raises(Refused, match="the driver has no GPU 0000:ff:00.0") as refused:
        outlook.wanted_of(host, Container(gpus="0000:ff:00.0"))
    assert bdf in refused.value.way_out


def test_docker_inside_is_seen_and_told_what_it_needs(node: Proxmox) -> None:
    node.container(367, BINDS, unprivileged=True)
    assert node.pct("start", "367").returncode == 0
    host = LiveHost()

    def advice() -> list[Any]:
        config = store.find(host, "367")
        return [f.summary for f in docker.advice(host, config, see.devices_for(host, config)) if f.status != "ok"]

    assert advice() == [], "no Docker, no word"
    script = ("mkdir -p /etc/nvidia-container-runtime /etc/cdi; cp /bin/sleep /usr/local/bin/dockerd\n"
              "printf '[nvidia-container-cli]\\n#no-cgroups = false\\n' >/etc/nvidia-container-runtime/config.toml\n"
              "printf -- '- deviceNodes:\\n  - path: /dev/nvidia-uvm\\n    major: 509\\n' >/etc/cdi/nvidia.yaml\n"
              "until systemd-run -q /usr/local/bin/dockerd 600 2>/dev/null; do sleep 0.1; done")  # fmt: skip
    assert node.pct("exec", "367", "--", "sh", "-c", script).returncode == 0
    said = advice()
    assert len(said) == 2 and "may not" in said[0] and "509: it is 511 now" in said[1]
    runtime = "/etc/nvidia-container-runtime/config.toml"
    node.pct("exec", "367", "--", "sed", "-i", "s/^#no-cgroups = false/no-cgroups = true/", runtime)
    node.pct("exec", "367", "--", "sed", "-i", "s/509/511/", "/etc/cdi/nvidia.yaml")
    assert advice() == []


def test_show_tells_what_each_line_means_now(node: Proxmox) -> None:
    node.container(368, STALE + "lxc.cgroup2.devices.allow: c  511:* rwm\n" + BINDS)
    shown = hosttune("show", "368")
    assert shown.returncode == 1
    table = [line.split(None, 1)[1] for line in shown.stdout.splitlines() if " allow c " in line]
    assert table[0].endswith("opens every number of nvidia, nvidiactl")
    assert "nobody owns 509" in table[1] and "LXC skips it: two blanks" in table[2]
    assert "node: /dev/nvidia-uvm (511:0)" in shown.stdout and "privileged, does not run" in shown.stdout
    locked = node.conf(368)
    locked.write_text(locked.read_text() + "lock: backup\n")
    again = hosttune("show", "368")
    assert again.returncode == 1 and "the container is locked (backup)" in again.stdout, "looking is not editing"


def test_all_finds_every_container_with_gpus_and_one_refusal_keeps_no_other_back(node: Proxmox) -> None:
    first, second = node.container(369, STALE + BINDS), node.container(370, "lock: backup\n" + STALE + BINDS)
    third, other = node.container(371, STALE + BINDS), node.container(372, "")
    was = {path: path.read_bytes() for path in (second, other)}
    done = hosttune("sync", "--all")
    assert done.returncode == 1 and "ct:370" in done.stdout and "locked" in done.stdout
    assert all("c 511:* rwm" in path.read_text() for path in (first, third))
    assert {path: path.read_bytes() for path in was} == was
    for words in (("sync",), ("sync", "369", "--all")):
        assert hosttune(*words).returncode == 2


def test_a_narrower_declaration_takes_out_what_it_no_longer_names(node: Proxmox) -> None:
    second = BINDS.replace("nvidia0", "nvidia1").splitlines()[0] + "\n"
    path = node.container(373, STALE + BINDS + second)
    done = sync.sync(LiveHost(), "373", replace(Wanted(), gpus=(1,)))
    text = path.read_text()
    assert done.changed and "/dev/nvidia0" not in text and "195:*" not in text
    assert "c 195:1 rwm" in text and "c 195:255 rwm" in text


@pytest.mark.parametrize("form", ["dev", "path"])
def test_an_undeclared_gpu_closes_at_once_in_every_form(node: Proxmox, form: str) -> None:
    node.container(374)
    sync.sync(LiveHost(), "374", Wanted(gpus=(0, 1), form=form))
    assert node.pct("start", "374").returncode == 0
    assert node.open_errno(374, "/dev/nvidia1") == "ENXIO", "it is let through; only a driver is missing"
    done = sync.sync(LiveHost(), "374", Wanted(gpus=(0,), form=form))
    assert [action.name for action in done.actions] == ["live-deny"]
    assert (node.open_errno(374, "/dev/nvidia1"), node.open_errno(374, "/dev/nvidia0")) == ("EPERM", "ENXIO")
