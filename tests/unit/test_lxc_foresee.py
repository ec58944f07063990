# SPDX-License-Identifier: Apache-2.0
"""What a config is said to give, line by line; and what its owner should know of it beyond its rules."""

from __future__ import annotations

from dataclasses import replace

from hosttune.core.lxc import document as doc
from hosttune.core.lxc import store, sync
from hosttune.core.lxc.edit import edit
from hosttune.core.lxc.foresee import foresee
from hosttune.core.lxc.gets import gets
from hosttune.core.lxc.needs import Wanted
from hosttune.core.machine.devices import device_table
from hosttune.core.model import Finding
from tests.unit.lxc_cases import NODES, PROC_DEVICES, a_host, inputs, real
from tests.unit.test_lxc_store import a_node

HOST, KEEP = a_host(), Wanted()


def foreseen(data: bytes, wanted: Wanted = KEEP) -> list[Finding]:
    document = doc.parse(data, path="200.conf")
    planned = edit(document, wanted, HOST, "ct:200")
    return list(foresee(document, wanted, HOST, planned, "ct:200"))


def ids(found: list[Finding]) -> list[str]:
    return [f.id for f in found]


def test_a_gpu_that_is_not_declared_is_named_with_its_line() -> None:
    found = [f for f in foreseen(real("02"), Wanted(gpus=(1,))) if f.id == "HT432"]
    assert [f.status for f in found] == ["fail"] and found[0].summary == "line 22 gives it GPUs that are not declared"
    assert "/dev/nvidia0 dev/nvidia0" in found[0].evidence[0] and found[0].hint.command == "hosttune lxc sync 200 --gpus 1"
    assert foreseen(real("02"), Wanted(gpus=None)) == [] == foreseen(real("02"))


def test_a_gpu_of_a_virtual_machine_is_named_with_both_lines() -> None:
    (found,) = foreseen(real("05"), Wanted(vms={0: "/etc/pve/qemu-server/100.conf:4"}))
    assert (found.id, found.status, found.evidence[1]) == ("HT433", "warn", "/etc/pve/qemu-server/100.conf:4")
    (left_out,) = foreseen(b"arch: amd64\n", Wanted(gpus=None, vms={1: "100.conf:4"}))
    assert left_out.status == "skip"
    new = edit(doc.parse(b"arch: amd64\n"), Wanted(gpus=None, vms={1: "100.conf:4"}), HOST).data.decode()
    assert "/dev/nvidia0" in new and "/dev/nvidia1" not in new


def test_dri_nodes_come_when_they_are_declared_and_only_those() -> None:
    wanted = Wanted(gpus=(0,), dri=("/dev/dri/card0", "/dev/dri/renderD128", "/dev/dri/card7"))
    for form, line in (("path", "lxc.cgroup2.devices.allow: /dev/dri/renderD128 rwm"), ("number", "c 226:128 rwm"),
                       ("dev", "/dev/dri/renderD128,mode=")):  # fmt: skip
        data = edit(doc.parse(b"arch: amd64\n"), replace(wanted, form=form), HOST).data
        assert line.encode() in data and b"card7" not in data, data.decode()
        assert edit(doc.parse(data), replace(wanted, form=form), HOST).changes == ()


def test_prune_drops_what_nobody_can_explain_and_never_what_may_be_meant() -> None:
    text = PROC_DEVICES.replace("509 hidraw", "509 kfd")
    host = device_table(text, NODES)
    data = real("01")  # 506 may be the Coral TPU's, 509 is AMD's kfd now
    kept = edit(doc.parse(data), Wanted(), host)
    pruned = edit(doc.parse(data), Wanted(prune=True), host)
    assert b"c 506:* rwm" in kept.data and b"c 509:* rwm" in kept.data
    assert b"c 506:* rwm" not in pruned.data and b"c 509:* rwm" in pruned.data
    named = edit(doc.parse(data), Wanted(drop=(509,)), host)
    assert b"c 509:* rwm" not in named.data
    (told,) = [f for f in kept.findings if f.id == "HT420" and "kfd" in f.summary]
    assert told.status == "warn" and "--drop 509" in told.hint.command


def test_each_line_says_what_it_means_now() -> None:
    document = doc.parse(real("01") + b"dev0: /dev/nvidia9\nlxc.cgroup.devices.allow: c 195:* rwm\n\n[old]\n"
                         b"lxc.cgroup2.devices.allow: c 509:* rwm\n", path="200.conf")  # fmt: skip
    means = {row.says.split(": ", 1)[-1]: row.means for row in gets(document, HOST)}
    assert means["c 195:* rwm"] == "nothing: cgroup v1 only", "the last of two that say the same"
    assert means["c 506:* rwm"] == "opens nothing now: nobody owns 506, and the next driver may get it"
    assert means["/dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file"] == "node: /dev/nvidia-uvm (511:0)"
    assert means["/dev/nvidia9"] == "node and rule, made anew at each start: /dev/nvidia9 (not there now)"
    rows = [row for row in gets(document, HOST) if "509" in row.says]
    assert [row.means for row in rows] == ["opens every number of hidraw", "snapshot, counts after a rollback: opens every "
                                           "number of hidraw"]


def test_every_config_can_be_told_on_every_host() -> None:
    for data in inputs().values():
        for dialect in (doc.PVE, doc.LXC):
            document = doc.parse(data, dialect, path="x.conf")
            for host in (HOST, device_table(PROC_DEVICES), device_table("Character devices:\n", {})):
                assert all(row.means and row.place for row in gets(document, host))


def test_the_way_out_of_a_pending_change_names_the_container_and_the_key() -> None:
    host = a_node(real("01") + b"\n[pve:pending]\ndelete: dev3\n")
    shown = sync.show(host, "200", Wanted())
    (told,) = [f for f in shown.findings if f.id == "HT428"]
    assert "pct set 200 --revert dev3" in told.hint.command and shown.steps == ()
    assert store.find(host, "200").document.lines
