# SPDX-License-Identifier: Apache-2.0
"""lxc.include as the real LXC takes it, beside what hosttune reads of it: what starts, what opens, what is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import sync
from hosttune.core.lxc.entries import entries
from hosttune.core.lxc.needs import Wanted
from hosttune.core.lxc.store import find
from tests.kernel.conftest import MakeContainer
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.nodes import GpuNodes, bind_entries

FOLDER = Path("/run/hosttune-includes")
A, B = ("lxc.cgroup2.devices.allow = c %d:* rwm\n" % major for major in (509, 508))
INCLUDE = "lxc.include = %s\n"
HERE = str(FOLDER)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Asked for before the container, so that it outlives it: LXC's tools read a config again to stop what runs from it."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    yield FOLDER
    shutil.rmtree(FOLDER)


CASES: dict[str, tuple[str, dict[str, str | None]]] = {
    "a file": (INCLUDE % (HERE + "/a.conf"), {"a.conf": A}),
    "in quotes": (INCLUDE % ('"%s/a.conf"' % HERE), {"a.conf": A}),
    "a folder gives its .conf alone": (INCLUDE % HERE, {"a.conf": A, "b.txt": B, ".conf": B}),
    "not those of its folders": (INCLUDE % HERE, {"a.conf": A, "d.conf": None, "d.conf/b.conf": B}),
    "a file of a file": (INCLUDE % (HERE + "/a.conf"), {"a.conf": INCLUDE % (HERE + "/b.conf"), "b.conf": A}),
    "what comes after it takes back": (INCLUDE % (HERE + "/a.conf") + A.replace("allow", "deny") + B, {"a.conf": A}),
    "an empty value includes nothing": (INCLUDE % (HERE + "/a.conf") + INCLUDE % "", {"a.conf": A}),
    "a folder that is not there": (INCLUDE % (HERE + "/none/"), {}),
    "a file that is not there": (INCLUDE % (HERE + "/none.conf"), {}),
    "a file of a file that is not there": (INCLUDE % (HERE + "/a.conf"), {"a.conf": A + INCLUDE % (HERE + "/none.conf")}),
    "Proxmox VE's colon": (INCLUDE % (HERE + "/a.conf"), {"a.conf": A.replace(" =", ":")}),
    "itself": (INCLUDE % (HERE + "/a.conf"), {"a.conf": A + INCLUDE % (HERE + "/a.conf")}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_starts_and_opens_is_what_is_read(name: str, folder: Path, make_container: MakeContainer) -> None:
    config, files = CASES[name]
    for path, text in files.items():
        (folder / path).mkdir() if text is None else (folder / path).write_text(text)
    container = make_container(config)
    document = find(LiveHost(), container.name).document
    have = entries(document, document.judged)
    broken = [included.broken for included in document.included.values() if included.broken]
    try:
        container.start()
    except RuntimeError:
        assert broken, "it does not start, and nothing is told of that"
        return
    assert broken == []
    for major in (509, 508):
        assert container.attach("mknod", "/root/%d" % major, "c", str(major), "0").returncode == 0
        assert (container.open_errno("/root/%d" % major) == "ENXIO") == have.opens("", major, 0), major


def test_what_an_included_file_gives_is_not_given_again(
    folder: Path, make_container: MakeContainer, nodes: GpuNodes, fake: FakeTrees
) -> None:
    fake.gpu_host(gpus=1, uvm=511)
    rules = "".join("lxc.cgroup2.devices.allow = c %d:* rwm\n" % major for major in (195, 511))
    (folder / "gpu.conf").write_text(rules + bind_entries(nodes.make_all(gpus=1, uvm=511)))
    container = make_container(INCLUDE % (folder / "gpu.conf")).start()
    before = container.config.read_bytes()
    done = sync.sync(LiveHost(), container.name, Wanted(gpus=(0,)))
    assert not done.changed and container.config.read_bytes() == before
    assert [f.subject for f in done.findings if f.id == "HT421"] == []
    assert container.open_errno("/dev/nvidia-uvm") == "ENXIO", "open, and only the driver is missing here"
