# SPDX-License-Identifier: Apache-2.0
"""The edit of the eight real configs, line by line; forms; refusals; and what holds for every config there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hosttune.core.lxc import document as doc
from hosttune.core.lxc import pve
from hosttune.core.lxc.edit import Edit, edit
from hosttune.core.lxc.needs import Wanted
from hosttune.core.machine.devices import DeviceTable, Node, device_table
from hosttune.core.model import Refused
from tests.unit.lxc_cases import NODES, PROC_DEVICES, a_host, inputs, real

HOST = a_host()
KEEP, ALL = Wanted(), Wanted(gpus=None)


def run(data: bytes, wanted: Wanted = KEEP, devices: DeviceTable = HOST, dialect: str = doc.PVE) -> Edit:
    return edit(doc.parse(data, dialect, path="200.conf"), wanted, devices, "ct:200")


def changed(result: Edit) -> list[str]:
    """The changes without their reasons."""
    return [line.split("  (")[0] for line in result.changes]


def found(result: Edit, id: str) -> list[str]:
    return [f.summary for f in result.findings if f.id == id]


def bind(name: str) -> str:
    return "+ lxc.mount.entry: /dev/%s dev/%s none bind,optional,create=file" % (name, name)


def allow(sign: str, *rules: str) -> list[str]:
    return ["%s lxc.cgroup2.devices.allow: %s" % (sign, rule) for rule in rules]


# ---- the eight real configs

def test_01_a_stale_509_goes_511_and_caps_come_and_506_may_be_the_coral_tpu() -> None:
    result = run(real("01"))
    assert changed(result) == allow("-", "c 509:* rwm") + allow("+", "c 511:* rwm", "c 236:* rwm")
    stale = [f for f in result.findings if f.id == "HT420"]
    assert [f.status for f in stale] == ["warn", "fail"]
    assert "/dev/apex_0" in stale[0].summary and stale[0].hint.command == "hosttune lxc sync 200 --drop 506"
    assert "hidraw, which owns 509 now" in stale[1].summary and stale[1].evidence[0] == "200.conf:10"
    assert "/dev/dri is bound, and no rule opens its nodes (226, drm)" in found(result, "HT421")
    assert changed(run(real("01"), Wanted(drop=(506,))))[:2] == allow("-", "c 506:* rwm", "c 509:* rwm")


def test_01_once_the_tpu_is_there_506_is_its_own_or_nobodys() -> None:
    for major, want in ((506, []), (120, allow("-", "c 506:* rwm"))):
        host = device_table(PROC_DEVICES + "", {**NODES, "/dev/apex_0": Node("char", major, 0)})
        assert [line for line in changed(run(real("01"), devices=host)) if "506" in line] == want


def test_02_six_stale_majors_go_and_every_note_stays_at_its_place() -> None:
    result = run(real("02"))
    assert changed(result) == allow("-", *("c %d:* rwm" % n for n in (234, 237, 238, 239, 240, 508))) + [
        bind("nvidiactl")] + allow("+", "c 511:* rwm", "c 236:* rwm")
    assert found(result, "HT420")[0] == "rule `c 234:* rwm` opens megaraid_sas_ioctl, which owns 234 now"
    lines = result.data.split(b"\n")
    assert lines[9:15] == [b"# ==== gpu lines begin ====", b"# slot: 0000:c7:00.0", b"# rules: card and render",
                           b"lxc.cgroup2.devices.allow: c 195:* rwm", b"lxc.cgroup2.devices.allow: c 226:* rwm",
                           b"lxc.cgroup2.devices.allow: c 511:* rwm"]
    assert lines[-1] == b"# ==== gpu lines end ====", "no final newline was there, and none was added"
    assert b"lxc.cap.drop:\n" in result.data and b"lxc.apparmor.profile: unconfined\n" in result.data


def test_03_lines_go_above_the_snapshots_and_an_unprivileged_container_gets_no_rule() -> None:
    assert run(real("03")).changes == (), "nothing of NVIDIA's is there and nothing is declared"
    result = run(real("03"), Wanted(gpus=(0,)))
    assert changed(result) == [bind(name) for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")]
    before, after = real("03").split(b"\n[fresh]"), result.data.split(b"\n[fresh]")
    assert before[1] == after[1] and after[0].startswith(before[0])
    required = run(real("03"), replace(ALL, required=True))
    assert changed(required) == ["+ dev%d: /dev/%s,mode=0666" % (n, name) for n, name in enumerate(
        ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"))]


def test_04_notes_that_look_like_rules_are_notes() -> None:
    result = run(real("04"), Wanted(gpus=(0,)))
    assert not any(line.startswith("-") for line in result.changes)
    assert real("04")[:real("04").index(b"arch:")] in result.data
    assert found(result, "HT424") == ["line 22 without effect: an unprivileged container may open every device that the "
                                      "node's mode lets it"]


def test_05_inline_notes_do_not_hide_a_rule_and_two_letters_with_a_note_are_no_rule() -> None:
    result = run(real("05"))
    assert result.changes == () and result.data == real("05")
    assert found(result, "HT424") == ["line 8 without effect: LXC skips this rule (text follows fewer than three access "
                                      "letters, and only text after three is ignored), so the device stays denied"]


def test_06_v1_rules_are_dead_and_their_v2_twins_come() -> None:
    result = run(real("06"))
    assert changed(result) == allow("+", "c 195:* rwm", "c 511:* rwm", "c 236:* rwm")
    assert found(result, "HT424") == ["lines 6, 7, 8, 9 without effect: lxc.cgroup.devices.allow is for cgroup v1, and "
                                      "containers are on v2"]
    assert result.data.startswith(real("06")), "every old line stays, both lxc.environment lines too"


def test_07_an_id_map_counts_as_unprivileged_and_keeps_its_order() -> None:
    result = run(real("07"), Wanted(gpus=(0,)))
    assert all("lxc.mount.entry" in line for line in result.changes)
    maps = [line for line in result.data.split(b"\n") if line.startswith(b"lxc.idmap")]
    assert maps == [line for line in real("07").split(b"\n") if line.startswith(b"lxc.idmap")]


def test_08_where_everything_is_allowed_a_rule_is_pointless() -> None:
    result = run(real("08"))
    assert result.changes == ()
    assert found(result, "HT423") == ["`a` opens every device of the host; further rules mean nothing"]
    more = run(real("08"), ALL)
    assert changed(more) == ["+ dev3: /dev/nvidia1,mode=0666"]
    assert b"dev0: /dev/nvidia0,gid=44\n" in more.data, "options of what is there stay"


# ---- forms

@pytest.mark.parametrize("form", ["dev", "path", "number"])
def test_a_conversion_leaves_nothing_of_the_old_form_and_makes_no_clash(form: str) -> None:
    for name in ("01", "02", "05"):
        result = run(real(name), Wanted(gpus=None, form=form))
        after = run(result.data, Wanted(gpus=None, form="keep"))
        assert after.changes == () and not found(after, "HT426") and not found(after, "HT421")[1:]
        nvidia = [line for line in result.data.decode().splitlines() if "/dev/nvidia" in line and not line.startswith("#")]
        assert bool([line for line in nvidia if line.startswith("dev")]) is (form == "dev")
        assert bool([line for line in nvidia if line.startswith("lxc.mount.entry")]) is (form != "dev")
        assert bool([line for line in nvidia if ".allow: /dev" in line]) is (form == "path")
        assert (b"c 511:* rwm" in result.data) is (form == "number")


def test_dev_entries_take_the_next_free_number_and_leave_those_of_others() -> None:
    data = b"dev0: /dev/ttyUSB0\ndev2: /dev/nvidia0,uid=7\nhostname: a\n"
    result = run(data)
    assert result.data == data.replace(b"hostname", b"dev1: /dev/nvidiactl,mode=0666\ndev3: /dev/nvidia-uvm,mode=0666\nhostname")


def test_a_node_that_the_host_lacks_gets_no_dev_entry_since_the_container_would_not_start() -> None:
    host = device_table(PROC_DEVICES, {path: node for path, node in NODES.items() if "uvm" not in path}, (6, 1, 10))
    result = run(b"dev0: /dev/nvidia0\ndev1: /dev/nvidiactl\n", devices=host)
    assert result.changes == ()
    assert found(result, "HT403") == ["the host has no /dev/nvidia-uvm, and a devN entry for it would keep the container from "
                                      "starting; it is not added"]


@pytest.mark.parametrize(("data", "clash"), [
    (b"dev0: /dev/nvidia0\nlxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\n", "dev0 and line 2"),
    (b"dev0: /dev/nvidia0\ndev1: /dev/nvidia0\n", "dev1 and line 1"),
    (b"dev0: /dev/dri/card0\nlxc.mount.entry: /dev/dri dev/dri none bind,optional,create=dir\n", "dev0 and line 2"),
    (b"lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none\n", "line 1 keeps the container from starting"),
])
def test_a_clash_that_keeps_the_container_from_starting_is_found(data: bytes, clash: str) -> None:
    assert any(clash in summary for summary in found(run(data), "HT426"))


def test_a_target_that_another_source_has_is_not_taken_again() -> None:
    data = b"lxc.mount.entry: /dev/nvidia1 dev/nvidia0 none bind,create=file\n"
    result = run(data, Wanted(gpus=(0,)))
    assert found(result, "HT426") == ["/dev/nvidia0 is wanted, and another source is mounted there"]
    assert not any("/dev/nvidia0 dev/nvidia0" in line for line in result.changes)


def test_a_path_rule_heals_by_itself_so_nothing_is_written() -> None:
    names = ("nvidia0", "nvidiactl", "nvidia-uvm")
    data = "".join("lxc.mount.entry: /dev/%s dev/%s none bind,optional,create=file\nlxc.cgroup2.devices.allow: /dev/%s rwm\n"
                   % (n, n, n) for n in names).encode()
    assert run(data).changes == ()
    assert changed(run(data, ALL)) == [bind("nvidia1")] + allow("+", "/dev/nvidia1 rwm")


def test_exact_minors_stay_exact() -> None:
    data = b"lxc.cgroup2.devices.allow: c 195:0 rwm\nlxc.cgroup2.devices.allow: c 195:255 rwm\n" + b"".join(
        b"lxc.mount.entry: /dev/%s dev/%s none bind,optional,create=file\n" % (n, n)
        for n in (b"nvidia0", b"nvidiactl", b"nvidia-uvm"))
    assert changed(run(data)) == allow("+", "c 511:0 rwm")


def test_one_gpu_wanted_and_all_opened_is_said() -> None:
    assert found(run(real("05"), Wanted(gpus=(0,))), "HT423") == [
        "`c 195:* rwm # check this number` opens all 2 GPUs, and GPU 0 is wanted"]


def test_a_gpu_that_the_host_lacks_is_said_and_not_written() -> None:
    result = run(real("05"), Wanted(gpus=(0, 7)))
    assert result.changes == () and found(result, "HT421") == ["GPU 7 is wanted, and the host has no /dev/nvidia7"]


@pytest.mark.parametrize("data", [b"lxc.cgroup2.devices.allow:\n", b"lxc.cgroup2.devices.allow: c *:* rwm\n"])
def test_a_list_that_opens_everything_is_a_security_finding(data: bytes) -> None:
    (one,) = [f for f in run(real("01") + data).findings if f.id == "HT423"]
    assert one.severity == "security" and one.evidence == ("200.conf:16",)


def test_rules_after_an_empty_line_start_a_new_list() -> None:
    result = run(b"lxc.cgroup2.devices.allow:\n" + real("01"))
    assert not found(result, "HT423") and changed(result)[1:] == allow("+", "c 511:* rwm", "c 236:* rwm")


def test_a_deny_rule_counts_where_everything_else_is_open() -> None:
    data = b"lxc.cgroup2.devices.allow: a\nlxc.cgroup2.devices.deny: c 511:* rwm\n" + real("05")[real("05").index(b"lxc.mount"):]
    assert changed(run(data)) == allow("+", "c 511:* rwm")
    assert found(run(data), "HT421") == ["line 2 denies /dev/nvidia-uvm, which is 511:0 now"]


def test_a_deny_rule_for_more_than_nvidia_is_told_and_no_pointless_rule_is_written() -> None:
    """Only an allow rule of the same text takes a deny rule back; one for 195:* beside `c *:255 rw` would do nothing."""
    data = b"lxc.cgroup2.devices.allow: a\nlxc.cgroup2.devices.deny: c *:255 rw\n" + real("05")[real("05").index(b"lxc.mount"):]
    assert run(data).changes == ()
    (one,) = [f for f in run(data).findings if f.id == "HT421"]
    assert one.summary == "line 2 denies /dev/nvidiactl, which is 195:255 now"
    assert one.hint.command == "remove or narrow that line"


def test_in_a_user_namespace_plain_lxc_needs_no_rule_until_there_is_one() -> None:
    binds = b"".join(b"lxc.mount.entry = /dev/%s dev/%s none bind,optional,create=file\n" % (n, n)
                     for n in (b"nvidia0", b"nvidiactl", b"nvidia-uvm"))
    idmap = b"lxc.idmap = u 0 100000 65536\n"
    assert run(idmap + binds, dialect=doc.LXC).changes == ()
    ruled = run(idmap + b"lxc.cgroup2.devices.allow = c 195:* rwm\n" + binds, dialect=doc.LXC)
    assert b"lxc.cgroup2.devices.allow = c 511:* rwm\n" in ruled.data, "one rule, and all else is refused"


@pytest.mark.parametrize("last", [b"lxc.cgroup2.devices.deny: a\n", b"lxc.cgroup2.devices.allow:\n"])
def test_a_list_that_ends_up_empty_opens_every_device(last: bytes) -> None:
    """No rule left, no program attached: the harmless-looking `deny: a` as the last rule is the widest one there is."""
    result = run(real("01") + last)
    assert result.changes == ()
    assert found(result, "HT423") == [
        "line 16 leaves an empty list, so no device program is attached, and every device of the host is open"]


def test_taking_out_a_stale_rule_never_empties_the_list() -> None:
    data = b"lxc.cgroup2.devices.deny: a\nlxc.cgroup2.devices.allow: c 509:* rwm\n"
    binds = real("05")[real("05").index(b"lxc.mount"):]
    assert changed(run(data + binds)) == allow("-", "c 509:* rwm") + allow("+", "c 195:* rwm", "c 511:* rwm")
    with pytest.raises(Refused, match="an empty list opens every device"):
        run(data + b"dev0: /dev/ttyUSB0\n", Wanted(drop=(509,)))


def test_a_rule_that_stops_the_container_is_a_failure() -> None:
    (one,) = [f for f in run(b"lxc.cgroup2.devices.allow: a *:* rwm\n").findings if f.id == "HT423"]
    assert one.status == "fail" and "keeps the container from starting" in one.summary


def test_a_snapshot_is_reported_and_never_edited() -> None:
    data = b"hostname: a\n\n[old]\nlxc.cgroup2.devices.allow: c 509:* rwm\n"
    result = run(data, Wanted(gpus=(0,)))
    assert found(result, "HT425") == ["snapshot [old] holds `c 509:* rwm`, and 509 is hidraw now: a rollback brings it back"]
    assert result.data.endswith(b"\n[old]\nlxc.cgroup2.devices.allow: c 509:* rwm\n")


def test_without_the_uvm_module_nobody_can_say_its_number() -> None:
    host = device_table("Character devices:\n195 nvidia\n509 hidraw\n", NODES)
    result = run(real("01"), devices=host)
    assert changed(result) == allow("-", "c 509:* rwm"), "hidraw's rule goes; 506 may be uvm's next number"
    (one,) = [f for f in result.findings if f.status == "error"]
    assert one.hint.command == "nvidia-modprobe -u -c=0" and "nvidia-uvm is not in /proc/devices" in one.summary


def test_a_container_without_anything_of_nvidias_is_never_touched() -> None:
    data = b"lxc.cgroup2.devices.allow: c 509:* rwm\nlxc.cgroup2.devices.allow: c 510:* rwm\n"
    result = run(data)
    assert result.changes == () and {f.status for f in result.findings} == {"warn"}
    assert result.findings[0].hint.command == "hosttune lxc sync 200 --drop 509"


@pytest.mark.parametrize("path", ["/dev/hidraw0", "/dev/hidraw9"])
def test_a_rule_that_another_device_of_the_config_explains_stays(path: str) -> None:
    host = device_table(PROC_DEVICES, {**NODES, "/dev/hidraw0": Node("char", 509, 0)})
    data = real("01") + ("lxc.mount.entry: %s dev/x none bind,optional,create=file\n" % path).encode()
    assert not any("509" in line for line in run(data, devices=host).changes)


# ---- refusals

@pytest.mark.parametrize(("extra", "place", "what", "way_out"), [
    (b"lock: backup\n", "200.conf:1", "locked (backup)", "pct unlock"),
    (b"template: 1\n", "200.conf:1", "template", "cloned"),
])
def test_a_file_that_must_not_be_edited_now_is_refused(extra: bytes, place: str, what: str, way_out: str) -> None:
    with pytest.raises(Refused) as refused:
        run(extra + real("01"))
    assert refused.value.where == place and what in refused.value.what and way_out in refused.value.way_out


@pytest.mark.parametrize("pending", [b"lxc.cap.drop:\n", b"dev0: /dev/x\n", b"delete: cores,dev3\n"])
def test_a_pending_change_that_would_undo_the_edit_is_refused(pending: bytes) -> None:
    with pytest.raises(Refused, match="pending change"):
        run(real("01") + b"\n[pve:pending]\n" + pending)
    assert run(real("01") + b"\n[pve:pending]\nmemory: 1\ndelete: cores\n").changes


def test_a_locked_file_with_nothing_to_change_is_not_refused() -> None:
    assert run(b"lock: backup\n" + real("05")).changes == ()


def test_dev_entries_are_refused_where_there_are_none() -> None:
    with pytest.raises(Refused, match="plain LXC"):
        run(b"", Wanted(gpus=None, form="dev"), dialect=doc.LXC)
    with pytest.raises(Refused, match=r"pve-container 5\.0\.7, this host has 4\.4\.7"):
        run(b"", Wanted(gpus=None, form="dev"), replace(HOST, pve_container=(4, 4, 7)))
    with pytest.raises(Refused, match="mount hook"):
        run(real("06"), Wanted(gpus=None, form="dev"))
    with pytest.raises(Refused, match="in use"):
        run(b"".join(b"dev%d: /dev/x%d\n" % (n, n) for n in range(256)), Wanted(gpus=None, form="dev"))


def test_plain_lxc_is_healed_in_its_own_words() -> None:
    data = (b"lxc.include = /usr/share/lxc/config/common.conf\nlxc.uts.name = llm\n"
            b"lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.cgroup2.devices.allow = c 509:* rwm\n"
            b"lxc.cgroup2.devices.allow = c 226:* rwm\nlxc.cgroup2.devices.allow = c 234:* rwm\n") + b"".join(
        b"lxc.mount.entry = /dev/%s dev/%s none bind,optional,create=file\n" % (n, n)
        for n in (b"nvidia0", b"nvidiactl", b"nvidia-uvm"))
    result = run(data, dialect=doc.LXC)
    assert result.data == data.replace(b"lxc.cgroup2.devices.allow = c 509:* rwm\n", b"").replace(
        b"c 234:* rwm\n", b"c 511:* rwm\n")
    with pytest.raises(Refused, match=r"200\.conf:1"):
        run(b"lxc.autodev\n" + data, dialect=doc.LXC)


# ---- what holds for every config

WANTS = {
    "keep": KEEP, "all": ALL, "one": Wanted(gpus=(0,)), "required": Wanted(gpus=None, required=True), "caps": Wanted(caps=True),
    "dev": Wanted(gpus=None, form="dev"), "path": Wanted(gpus=(1,), form="path"), "number": Wanted(gpus=None, form="number"),
}
HOSTS = {"whole": HOST, "numbers-only": device_table(PROC_DEVICES),
         "no-driver": device_table("Character devices:\n  1 mem\n", {})}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("want", WANTS)
def test_every_config_is_edited_once_and_only_where_it_says(want: str, host: str) -> None:
    edited = 0
    for name, data in inputs().items():
        for dialect in (doc.PVE, doc.LXC):
            try:
                first = run(data, WANTS[want], HOSTS[host], dialect)
            except Refused:
                continue
            again = run(first.data, WANTS[want], HOSTS[host], dialect)
            assert again.data == first.data and again.changes == (), name
            old, new = doc.parse(data, dialect), doc.parse(first.data, dialect)
            assert [line.raw for line in old.lines if line.part] == [line.raw for line in new.lines if line.part], name
            assert [line.text for line in old.main if line.kind in (doc.NOTE, doc.DROPPED, doc.BLANK)] == [
                line.text for line in new.main if line.kind in (doc.NOTE, doc.DROPPED, doc.BLANK)], name
            assert without_managed(old) == without_managed(new), name
            if not first.changes:
                assert first.data == data, name
            edited += bool(first.changes)
    # without a driver there are no nodes to add or to convert; everywhere else many configs need an edit
    assert edited > (5 if host == "no-driver" else 20)


def without_managed(document: doc.Document) -> tuple[object, ...]:
    """What Proxmox VE keeps of main, without device rules, NVIDIA mounts and NVIDIA devN."""
    main = pve.kept(document)[""]
    keys = {key: value for key, value in main.keys.items() if not (key.startswith("dev") and "/dev/nvidia" in value)}
    raw = [pair for pair in main.raw if pair[0] != "lxc.cgroup2.devices.allow" and "/dev/nvidia" not in pair[1]]
    return main.notes, keys, raw


# ---- what an edit may take out

KEPT = (
    b"lxc.mount.entry: /dev/nvidia-nvswitchctl dev/nvidia-nvswitchctl none bind,optional,create=file\n",
    b"lxc.mount.entry: /dev/nvidia-caps-imex-channels dev/nvidia-caps-imex-channels none bind,optional,create=dir\n",
    b"lxc.mount.entry: /dev/nvidia1 dev/nvidia7 none bind,optional,create=file\n",
    b"lxc.cgroup2.devices.allow: c 238:* rwm\n", b"lxc.cgroup2.devices.allow: c 239:* rwm\n",
)


@pytest.mark.parametrize("form", ["dev", "path", "number"])
def test_a_conversion_leaves_what_the_new_form_does_not_say_again(form: str) -> None:
    """NVSwitch, IMEX, a GPU at another one's place: no form here makes lines for them, so theirs stay, and their rules."""
    text = PROC_DEVICES.replace("238 watchdog\n", "238 nvidia-nvswitch\n239 nvidia-caps-imex-channels\n")
    host = device_table(text, {**NODES, "/dev/nvidia-nvswitchctl": Node("char", 238, 255),
                               "/dev/nvidia-caps-imex-channels": Node("dir"),
                               "/dev/nvidia-caps-imex-channels/channel0": Node("char", 239, 0)}, (6, 1, 10))
    result = run(real("05") + b"".join(KEPT), Wanted(form=form), host)
    assert result.changes and all(line in result.data for line in KEPT), result.changes


def test_a_node_that_is_not_there_now_stays_in_the_form_that_does_without_it() -> None:
    """A devN entry for it would keep the container from starting, and the bind is what brings it back when it comes."""
    host = device_table(PROC_DEVICES, {path: node for path, node in NODES.items() if path != "/dev/nvidia-uvm"}, (6, 1, 10))
    result = run(real("05"), Wanted(form="dev"), host)
    assert b"lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none" in result.data and b"c 511:* rwm" in result.data
    assert b"dev0: /dev/nvidia0,mode=0666\n" in result.data and b"/dev/nvidia0 dev/nvidia0" not in result.data


@pytest.mark.parametrize(("more", "stays"), [(b"", True), (b"lxc.cgroup2.devices.allow: c 1:3 rwm\n", False)])
def test_path_rules_are_never_all_that_is_left_of_a_list(more: bytes, stays: bool) -> None:
    """While its node is missing a path rule is skipped; a list that was emptied above, and holds nothing else, is then open."""
    data = b"lxc.cgroup2.devices.deny: a\n" + more + real("05")[real("05").index(b"lxc."):]
    result = run(data, Wanted(form="path"))
    assert (b"c 511:* rwm" in result.data) is stays and run(result.data, Wanted(form="path")).changes == ()


def test_of_exact_rules_only_those_of_what_stays_stay() -> None:
    """The host has no nvidia-modeset now, so its bind stays as it is, with its own rule, and the GPU's rules go."""
    text = b"".join(b"lxc.cgroup2.devices.allow: c 195:%d rw\n" % minor for minor in (0, 254, 255)) + b"".join(
        b"lxc.mount.entry: /dev/%s dev/%s none bind,optional,create=file\n" % (n, n) for n in (b"nvidia0", b"nvidia-modeset"))
    host = device_table(PROC_DEVICES, {path: node for path, node in NODES.items() if "modeset" not in path}, (6, 1, 10))
    gone = [line for line in changed(run(text, Wanted(form="dev"), host)) if line.startswith("-")]
    assert gone == allow("-", "c 195:0 rw", "c 195:255 rw") + ["- " + bind("nvidia0")[2:]]


def test_a_major_that_the_container_needs_cannot_be_dropped() -> None:
    with pytest.raises(Refused, match="511 is nvidia-uvm now, and this container needs it"):
        run(real("05"), Wanted(drop=(511,)))


@pytest.mark.parametrize(("data", "gone"), [
    (b"dev0: /dev/nvidia0, gid=44\n", "- dev0: /dev/nvidia0, gid=44"),
    (b"dev0: /dev/nvidia0\ndev3: /dev/nvidia0,gid=44\n", "- dev3: /dev/nvidia0,gid=44"),
    (b"dev3: /dev/nvidia0\nlxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,create=file\n",
     "- lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,create=file"),
])
def test_what_keeps_a_container_from_starting_is_healed_in_any_form(data: bytes, gone: str) -> None:
    result = run(data)
    assert [f.status for f in result.findings if f.id == "HT426"] == ["fail"]
    assert [line for line in changed(result) if line.startswith("-")] == [gone]
    assert not found(run(result.data), "HT426")
    assert sum(b"/dev/nvidia0" in line for line in result.data.split(b"\n")) == 1


# ---- lines that do something else than their writer meant

TRAPS = {
    "pending raw": (b"lxc.cap.drop:\n\n[pve:pending]\nmemory: 5\nlxc.cgroup2.devices.allow: c 511:* rwm\n", "HT428",
                    "line 5 stands below [pve:pending]: at the next start the raw lines there replace all 1 of the container, "
                    "and 1 of them are lost"),
    "appended": (b"arch: amd64\n\n[before]\narch: amd64\ndev0: /dev/nvidia0\n", "HT425",
                 "snapshot [before] has NVIDIA's nodes and the container has none: if they were appended to the file, they "
                 "landed in its last snapshot"),
    "fuse twice": (b"features: nesting=1,fuse=1\ndev7: /dev/fuse\n", "HT426",
                   "dev7 and `features: fuse=1` both make /dev/fuse: the container does not start"),
    "no such file": (b"lxc.cgroup2.device.allow: c 235:* rwm\n", "HT426",
                     "line 1 keeps the container from starting: cgroup v2 has no file device.allow"),
}  # fmt: skip
INNOCENT = (b"features: nesting=1\ndev7: /dev/fuse\n", b"lxc.cgroup2.memory.high: 1G\n",
            b"lxc.cap.drop:\n\n[pve:pending]\nmemory: 5\n", b"dev0: /dev/nvidiactl\n\n[before]\ndev0: /dev/nvidia0\n",
            b"lxc.cap.drop:\n\n[pve:pending]\nlxc.cap.drop:\n")  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_a_line_that_does_something_else_than_it_seems_is_told(name: str) -> None:
    data, id, summary = TRAPS[name]
    assert summary in found(run(data), id)


@pytest.mark.parametrize("data", INNOCENT)
def test_what_is_meant_is_not_told(data: bytes) -> None:
    assert not [f for f in run(data).findings if f.id in ("HT428", "HT425") or f.id == "HT426"]


@pytest.mark.parametrize("wrong", [b"none bind,optional", b"none bind", b"none bind,optional,create=dir"])
def test_an_entry_that_has_nothing_to_be_mounted_on_is_replaced(wrong: bytes) -> None:
    start = real("05")[: real("05").index(b"lxc.mount")]
    binds = b"".join(b"lxc.mount.entry: /dev/%s dev/%s none bind,optional,create=file\n" % (name, name)
                     for name in (b"nvidiactl", b"nvidia-uvm"))  # fmt: skip
    result = run(start + b"lxc.mount.entry: /dev/nvidia0 dev/nvidia0 %s\n" % wrong + binds)
    assert changed(result) == ["- lxc.mount.entry: /dev/nvidia0 dev/nvidia0 " + wrong.decode(), bind("nvidia0")]


def test_lines_that_proxmox_drops_for_one_reason_are_one_finding() -> None:
    (one,) = [f for f in run(b"    arch: amd64\n    # GPU\n    lxc.cap.drop:\n").findings if f.id == "HT422"]
    assert "will drop lines 1, 2, 3 on its next write" in one.summary and len(one.evidence) == 3
