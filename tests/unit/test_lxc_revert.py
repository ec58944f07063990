# SPDX-License-Identifier: Apache-2.0
"""Revert takes out of a container's config exactly what hosttune put in, whoever has written the file since."""

from __future__ import annotations

import pytest

from hosttune.core import engine
from hosttune.core.lxc import document as doc
from hosttune.core.lxc import pve, sync, undo
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Refused
from tests.unit.lxc_cases import inputs, real
from tests.unit.test_lxc_store import a_node

PATH = "/etc/pve/lxc/200.conf"


def rewritten(text: str) -> str:
    """As Proxmox VE's next write leaves it."""
    return pve.written(doc.parse(text.encode("utf-8", "surrogateescape"))).decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("form", ["keep", "dev", "path"])
@pytest.mark.parametrize("name", ["01", "02", "06", "08"])
def test_after_a_backup_by_proxmox_the_edit_still_comes_out(name: str, form: str) -> None:
    host = a_node(real(name))
    if not sync.sync(host, "200", Wanted(gpus=None, form=form if name != "06" else "keep")).changed:
        return
    host.view["files"][PATH] = rewritten(host.read(PATH)) + "lxc.environment: SINCE=1\n"
    (shown,), _ = engine.revert(host, {}, dry_run=True)
    steps, failed = engine.revert(host, {})
    assert failed == [] and len(steps) == 1 and shown == steps[0], "what is shown is what is done"
    before, after = (pve.kept(doc.parse(data)) for data in (real(name), host.read_bytes(PATH)))
    after[""].raw.remove(("lxc.environment", "SINCE=1"))
    assert sorted(before[""].raw) == sorted(after[""].raw) and before[""].keys == after[""].keys
    assert engine.revert(host, {}) == ([], []), "once"


def test_a_line_that_is_gone_already_is_not_missed_and_a_key_that_was_given_away_is_not_taken() -> None:
    before = "arch: amd64\ndev0: /dev/nvidia0\n"
    after = "arch: amd64\nlxc.cgroup2.devices.allow: c 195:0 rwm\nlxc.cgroup2.devices.allow: c 511:0 rwm\n"
    now = "arch: amd64\ndev0: /dev/ttyUSB0\nlxc.cgroup2.devices.allow: c 511:0 rwm\n"
    assert undo.taken_out(now, before, after, PATH) == "arch: amd64\ndev0: /dev/ttyUSB0\n"


def test_a_file_that_is_locked_is_left_alone() -> None:
    with pytest.raises(Refused, match="locked"):
        undo.taken_out("lock: backup\nlxc.cap.drop: x\n", "", "lxc.cap.drop: x\n", PATH)


def test_of_every_config_the_edit_comes_out_whole_after_a_rewrite() -> None:
    taken = 0
    for name, data in inputs().items():
        host = a_node(data)
        try:
            done = sync.sync(host, "200", Wanted(gpus=None))
        except Refused:
            continue
        if not done.changed:
            continue
        now = rewritten(host.read(PATH))
        (step,) = done.steps
        back = undo.taken_out(now, step.before or "", step.after or "", PATH)
        old, new = (pve.kept(doc.parse(text.encode("utf-8", "surrogateescape")))[""] for text in (step.before or "", back))
        assert sorted(old.raw) == sorted(new.raw) and old.notes.rstrip("\n") == new.notes.rstrip("\n"), name
        taken += 1
    assert taken > 50
