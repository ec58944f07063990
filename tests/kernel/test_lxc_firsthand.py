# SPDX-License-Identifier: Apache-2.0
"""What LXC's and dpkg's own tools say, read without them: the same, and a converged model in a container needs no process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import firsthand, store
from hosttune.core.stage import declared
from tests.kernel.conftest import MakeContainer
from tests.kernel.container import REPOSITORY
from tests.kernel.staged import FILES, ids
from tests.kernel.staged import shm as shm  # a fixture
from tests.kernel.test_stage import profile_for
from tests.kernel.view import scratch
from tests.unit.stage_models import plain


@pytest.mark.parametrize("unprivileged", [False, True], ids=["privileged", "unprivileged"])
def test_init_of_a_container_is_the_one_that_lxc_info_names(unprivileged: bool, make_container: MakeContainer) -> None:
    container, other = make_container(unprivileged=unprivileged), make_container().start()
    assert firsthand.init_pid(LiveHost(), store.LXC_FOLDER, container.name) is None, "it does not run"
    container.start()
    for one in (container, other):
        assert firsthand.init_pid(LiveHost(), store.LXC_FOLDER, one.name) == one.pid
        assert firsthand.init_pid(LiveHost(), "/elsewhere", one.name) is None, "one of that name, and not this one"
    container.restart()
    assert firsthand.init_pid(LiveHost(), store.LXC_FOLDER, container.name) == container.pid
    container.stop()
    assert firsthand.init_pid(LiveHost(), store.LXC_FOLDER, container.name) is None


def test_monitor_in_the_foreground_as_proxmox_keeps_it(make_container: MakeContainer) -> None:
    container = make_container()
    with subprocess.Popen(["lxc-start", "-F", "-n", container.name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL):
        try:
            subprocess.run(["lxc-wait", "-n", container.name, "-s", "RUNNING", "-t", "30"], check=True)
            assert firsthand.init_pid(LiveHost(), store.LXC_FOLDER, container.name) == container.pid
        finally:
            container.stop()


def test_folder_and_versions_are_those_of_the_tools() -> None:
    said = subprocess.run(["lxc-config", "lxc.lxcpath"], capture_output=True, text=True).stdout.strip()
    assert firsthand.lxc_folder(LiveHost(), store.LXC_FOLDER) == said
    rows = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", "lxc", "libc6", "bash", "coreutils"],
                          capture_output=True, text=True).stdout.split()  # fmt: skip
    there = dict(zip(rows[::2], rows[1::2], strict=True))
    assert len(there) == 4 and {name: firsthand.version(LiveHost(), name) for name in there} == there
    assert firsthand.version(LiveHost(), "pve-containe") == ""


@pytest.mark.parametrize(("what", "text"), [("LXC_CONF", "lxc.lxcpath = /srv/lxc\n"), ("LXC_CONFIGS", None)])
def test_what_these_files_do_not_tell_the_tool_is_asked(what: str, text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = scratch("etc") / "file"
    path.write_text(text) if text else None
    monkeypatch.setattr(firsthand, what, str(path))
    assert firsthand.lxc_folder(LiveHost(), store.LXC_FOLDER) is None
    monkeypatch.setattr(firsthand, "DPKG", str(path))
    assert firsthand.version(LiveHost(), "lxc") is None


CONVERGED = """
import json, sys
from hosttune.core.door.live import LiveHost
from hosttune.core.stage import declared
from hosttune.core.wanted.profile import validate
door = LiveHost()
report = declared.bring(door, validate(json.loads(sys.argv[1])), "tiny")
print(json.dumps([report.changed, door.effects, sorted(f.id for f in report.findings if f.status == "ok")]))
"""


def test_converged_model_of_an_engine_in_a_container_starts_no_process_and_opens_no_weights(
    make_container: MakeContainer, tmp_path: Path
) -> None:
    model = plain(scratch("model"), FILES)
    container = make_container().start(booted=True)
    profile = profile_for(container.name, model)
    assert ids(declared.bring(LiveHost(), profile, "tiny", restart="always"), "fail", "error") == set()
    log, asked = tmp_path / "log", json.dumps(profile.plain)
    calls = "trace=execve,execveat,fork,vfork,clone,clone3,openat"
    argv = ["strace", "-f", "-y", "-o", str(log), "-e", calls, sys.executable, "-c", CONVERGED, asked]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 0 and json.loads(done.stdout) == [False, [], ["HT501", "HT505"]], done.stdout + done.stderr
    rows = log.read_text(errors="replace").splitlines()
    assert len([row for row in rows if re.search(r" execve(at)?\(", row)]) == 1, "the interpreter itself"
    assert not [row for row in rows if re.search(r" (v?fork|clone3?)\(", row)]
    assert not [row for row in rows if ".safetensors" in row and "index.json" not in row]
    assert [row for row in rows if "/mountinfo" in row], "and the log is of this"
