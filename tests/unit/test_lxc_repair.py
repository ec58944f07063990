# SPDX-License-Identifier: Apache-2.0
"""Lines that Proxmox VE would drop: pointed out always, mended on request and where their meaning is plain."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hosttune.core.lxc import document as doc
from hosttune.core.lxc import pve, sync
from hosttune.core.lxc.needs import Wanted
from hosttune.core.lxc.repair import plan, repaired
from hosttune.core.model import Refused
from tests.unit.lxc_cases import a_host, inputs
from tests.unit.test_lxc_store import a_node

HOST = a_host()
RULE = "lxc.cgroup2.devices.allow: c 195:* rwm\n"


@pytest.mark.parametrize(("line", "becomes"), [
    ("\t" + RULE, RULE), ("  cores: 4\n", "cores: 4\n"), ("\ufeffarch: amd64\n", "arch: amd64\n"),
    ("lxc.cap.drop : sys_time\n", "lxc.cap.drop: sys_time\n"),
    ("gpu-note: x\n", ""), ("Hostname: a\n", ""), ("lxc.hook.start-host: /x\n", ""), (" memory: 99\n", ""), ("hostname:\n", ""),
    ("[x]\n", ""), ("no colon\n", ""), ("# a note\n", ""),
])  # fmt: skip
def test_what_is_mended_and_what_is_not(line: str, becomes: str) -> None:
    text = line + "memory: 512\n\n[old]\n\tcores: 2\n"
    new, told = repaired(doc.parse(text.encode()))
    assert doc.render(new).decode() == (becomes or line) + "memory: 512\n\n[old]\n\tcores: 2\n"
    assert len(told) == bool(becomes)


def test_it_is_done_on_request_only_and_once() -> None:
    host = a_node(("arch: amd64\n\t" + RULE).encode())
    told = [f.id for f in sync.show(host, "200", Wanted()).findings]
    assert "HT422" in told and not sync.sync(host, "200", Wanted()).changed
    done = sync.sync(host, "200", Wanted(repair=True))
    assert done.changed and "\n" + RULE in host.read("/etc/pve/lxc/200.conf")
    assert "HT422" not in [f.id for f in done.findings]
    assert not sync.sync(host, "200", Wanted(repair=True)).changed


def test_a_locked_file_is_not_mended() -> None:
    with pytest.raises(Refused, match="locked"):
        plan(doc.parse(("lock: backup\n\t" + RULE).encode()), Wanted(repair=True), HOST, "ct:200")


def test_of_every_config_only_lines_that_would_have_been_lost_change() -> None:
    mended = 0
    for name, data in inputs().items():
        old = doc.parse(data)
        new, told = repaired(old)
        before, after = pve.kept(old)[""], pve.kept(new)[""]
        assert before.notes == after.notes and Counter(before.raw) <= Counter(after.raw), name
        assert {key: after.keys[key] for key in before.keys} == before.keys, name
        assert len(after.raw) + len(after.keys) == len(before.raw) + len(before.keys) + len(told), name
        assert [line.raw for line in old.lines if line.part] == [line.raw for line in new.lines if line.part], name
        assert repaired(new)[1] == (), name
        again = plan(old, replace(Wanted(), repair=True), HOST, "ct:200", raising=False)
        assert again.refusal or (again.data != data) is bool(again.changes), name
        mended += bool(told)
    assert mended > 20
