# SPDX-License-Identifier: Apache-2.0
"""`engine-memory` of engines that run: they have it already, and it is not kept for them a second time."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hosttune.core.door.live import LiveHost
from hosttune.core.model import Report
from hosttune.core.stage import declared, engines
from hosttune.core.wanted.profile import Profile, validate
from tests.kernel.conftest import MakeContainer
from tests.kernel.staged import FILES, MOUNT
from tests.kernel.staged import model as model  # fixtures
from tests.kernel.staged import shm as shm
from tests.kernel.view import scratch
from tests.unit.stage_models import plain

UNIT = "system.slice/hosttune-e.service"


def profile(model: Path, place: str = "host") -> Profile:
    """Two models; the engine of `large` wants more than any machine has."""
    models = {"large": {"source": str(model), "engine-memory": "900T"}, "small": {"source": str(model)}}
    engine = {"in": place, "engine": "llama.cpp", "model": "large/m.gguf", "port": 1}
    return validate({"models": models, "engines": {"e": engine}, "containers": {}})


@contextlib.contextmanager
def in_cgroup(path: str) -> Iterator[None]:
    """A process in a cgroup of systemd's hierarchy (v2, or that of v1), where its unit would have one."""
    top = next(p for p in map(Path, ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")) if (p / "cgroup.procs").exists())
    folder = top / path
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as run:
        (folder / "cgroup.procs").write_text(str(run.pid))
        try:
            yield
        finally:
            run.kill()
            run.wait()
            for one in made:
                one.rmdir()


def does_not_fit(report: Report) -> bool:
    return any(f.id == "HT503" for f in report.findings)


def test_engine_that_runs_has_its_memory_already_and_the_sum_says_so(model: Path) -> None:
    assert does_not_fit(declared.bring(LiveHost(), profile(model), "small"))
    with in_cgroup(UNIT):
        assert ("host", "e") in engines.running(LiveHost())
        assert not does_not_fit(declared.bring(LiveHost(), profile(model), "small"))
        assert "(990 TB more have engines that run)" in declared.overview(LiveHost(), profile(model)).facts["memory"]
        # The same name, in a container, is another engine.
        assert does_not_fit(declared.bring(LiveHost(), profile(model, "ct:200"), "large"))
    assert does_not_fit(declared.bring(LiveHost(), profile(model), "large")), "it has ended"


def test_what_only_looks_like_the_engine_is_none(model: Path) -> None:
    for path in ("system.slice/hosttune-stage.service", "system.slice/xhosttune-e.service", "lxc/200/ns/" + UNIT):
        with in_cgroup(path):
            assert ("host", "e") not in engines.running(LiveHost())
            assert does_not_fit(declared.bring(LiveHost(), profile(model), "small"))


def test_engine_in_a_container_of_proxmox_is_seen_by_its_cgroup(model: Path) -> None:
    with in_cgroup("lxc/200/ns/" + UNIT):
        assert ("ct:200", "e") in engines.running(LiveHost())


def test_engine_in_a_container_is_seen_from_the_host(make_container: MakeContainer) -> None:
    model = plain(scratch("model"), FILES)
    container = make_container().start(booted=True)
    wanted = profile(model, "ct:" + container.name)
    assert does_not_fit(declared.bring(LiveHost(), wanted, "small"))
    ran = container.attach("systemd-run", "--unit=hosttune-e", "sleep", "600")
    assert ran.returncode == 0, ran.stderr
    assert not does_not_fit(declared.bring(LiveHost(), wanted, "small")) and (MOUNT / "small").exists()
    container.attach("systemctl", "stop", "hosttune-e")
    assert does_not_fit(declared.bring(LiveHost(), wanted, "large"))
