# SPDX-License-Identifier: Apache-2.0
"""Any config through the whole chain on /etc/pve: synced, written by Proxmox VE, synced again, taken back byte for byte."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core import engine, journal
from hosttune.core.door.live import LiveHost
from hosttune.core.knobs import BY_ID
from hosttune.core.lxc import document as doc
from hosttune.core.lxc import pve, sync
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Refused
from tests.kernel.nodes import GpuNodes
from tests.kernel.proxmox import Proxmox
from tests.unit.lxc_grammar import config

ID = 380
WANTED = [Wanted(gpus=None, form=form) for form in ("keep", "path", "number", "dev")]


@pytest.fixture
def conf(proxmox: Proxmox, nodes: GpuNodes) -> Iterator[Path]:
    nodes.make_all(2)
    path = proxmox.conf(ID)
    yield path
    path.unlink(missing_ok=True)


def synced(wanted: Wanted) -> bool | None:
    """Whether it changed the file; None: refused."""
    try:
        report = sync.sync(LiveHost(), str(ID), wanted)
    except Refused:
        return None
    assert not [f for f in report.findings if "was not written" in f.summary], report.findings
    return report.changed


def test_any_config_is_synced_once_and_taken_back_byte_for_byte(conf: Path) -> None:
    source = random.Random(380)
    changed = refused = 0
    for turn in range(40):
        wanted, old = WANTED[turn % len(WANTED)], config(source)
        conf.write_bytes(old)
        before = len(journal.entries(LiveHost()))
        done = synced(wanted)
        refused += done is None
        if not done:
            assert conf.read_bytes() == old
            continue
        changed += 1
        new = conf.read_bytes()
        assert new != old and synced(wanted) is False and conf.read_bytes() == new
        rewritten = pve.written(doc.parse(new))
        conf.write_bytes(rewritten)
        assert synced(wanted) is False and conf.read_bytes() == rewritten, "nothing is to do after a write of Proxmox VE's"
        conf.write_bytes(new)
        steps, failed = engine.revert(LiveHost(), BY_ID, to=before)
        assert failed == [] and len(steps) == 1 and conf.read_bytes() == old
    assert changed > 20 and refused > 1, (changed, refused)
