# SPDX-License-Identifier: Apache-2.0
"""Settings of kernel, memory and CPU on this kernel: applied, kept over a boot by systemd's own tools, reverted byte for byte.

The files of /proc/sys and /sys are bound over, so that the machine's own are not written; the folders of /etc are private.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core import corezip, engine
from hosttune.core.door.live import LiveHost
from hosttune.core.knobs import BY_ID, CPU, KNOBS, MEMORY
from hosttune.core.machine import sysfs
from tests.kernel.conftest import MakeContainer
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.view import mount, scratch, unmount

CPUS = "/sys/devices/system/cpu"
THP = "/sys/kernel/mm/transparent_hugepage"
SYSTEMD_SYSCTL = "/lib/systemd/systemd-sysctl"
PRIVATE = ("/etc/systemd/system.conf.d", "/etc/systemd/logind.conf.d", "/etc/tmpfiles.d", "/etc/sysctl.d")

WRITES = {
    "numa-balancing": ("0", {"/proc/sys/kernel/numa_balancing": ("1", "0")}),
    "swappiness": ("10", {"/proc/sys/vm/swappiness": ("60", "10")}),
    "max-map-count": ("1048576", {"/proc/sys/vm/max_map_count": ("65530", "1048576")}),
    "overcommit-memory": ("1", {"/proc/sys/vm/overcommit_memory": ("2", "1")}),
    "transparent-hugepages": ("always", {f"{THP}/enabled": ("never", "always")}),
    "shmem-hugepages": ("advise", {f"{THP}/shmem_enabled": ("deny", "advise")}),
    "cpu-governor": ("performance", {f"{CPUS}/cpufreq/policy*/scaling_governor": ("powersave", "performance")}),
    "cpu-energy-preference": (
        "performance",
        {f"{CPUS}/cpufreq/policy*/energy_performance_preference": ("power", "performance")},
    ),
    "cpu-boost": ("on", {f"{CPUS}/cpufreq/boost": ("0", "1")}),
    "cpu-idle-latency": (
        "99",
        {f"{CPUS}/cpu*/cpuidle/state2/disable": ("0", "1"), f"{CPUS}/cpu*/cpuidle/state3/disable": ("0", "1")},
    ),
}
"""{knob: (want, {file or pattern: (value before, value after)})}"""
FILES_ONLY = {"memlock": "infinity", "remove-ipc": "no"}


def cpu_tree(cpus: int) -> dict[str, str]:
    tree = {"online": f"0-{cpus - 1}\n", "possible": f"0-{cpus - 1}\n", "present": f"0-{cpus - 1}\n", "cpufreq/boost": "0\n",
            "smt/control": "on\n"}  # fmt: skip
    for n in range(cpus):
        policy = f"cpufreq/policy{n}/"
        tree |= {
            f"{policy}scaling_governor": "powersave\n",
            f"{policy}scaling_available_governors": "performance powersave\n",
        }
        tree[f"{policy}energy_performance_preference"] = "power\n"
        tree[f"{policy}energy_performance_available_preferences"] = "default performance balance_performance power\n"
        for state, (name, latency) in enumerate((("POLL", 0), ("C1", 2), ("C6", 133), ("C10", 890))):
            folder = f"cpu{n}/cpuidle/state{state}/"
            tree |= {f"{folder}name": name + "\n", f"{folder}latency": f"{latency}\n", f"{folder}disable": "0\n"}
    return tree


@pytest.fixture
def host(fake: FakeTrees) -> Iterator[LiveHost]:
    """A host of eight CPUs on which nothing is as wanted."""
    booted = scratch("run-systemd")
    (booted / "system").mkdir()  # as where systemd is init
    new = [Path(name) for name in (*PRIVATE, "/run/systemd") if not Path(name).is_dir()]
    for folder in new:
        folder.mkdir(parents=True)
    mounted = [*PRIVATE[:2], "/run/systemd", *private_state()]
    for name in PRIVATE[:2]:
        mount("--bind", str(scratch("conf.d")), name)
    mount("--bind", str(booted), "/run/systemd")
    for path, (before, _) in (
        (p, v) for _, files in WRITES.values() for p, v in files.items() if p.startswith(("/proc", THP))
    ):
        fake.file(path, f"{before}\n")
    fake.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    fake.folder(CPUS, cpu_tree(8))
    yield LiveHost()
    fake.undo()
    for name in mounted:
        unmount(name)
    for folder in new:
        folder.rmdir()


def tree() -> dict[str, str]:
    """{file: digest} of the private folders of /etc."""
    found = [path for folder in PRIVATE for path in sorted(Path(folder).rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def values(host: LiveHost, files: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {path: sysfs.value(host, path) for path in files}


@pytest.mark.parametrize("name", WRITES)
def test_applied_kept_over_a_boot_and_reverted(host: LiveHost, name: str) -> None:
    want, files = WRITES[name]
    before, empty = {path: old for path, (old, _) in files.items()}, tree()
    assert values(host, files) == before and empty == {}
    done = engine.tune(host, {name: want}, KNOBS, BY_ID, dry_run=False)
    after = {path: new for path, (_, new) in files.items()}
    assert values(host, files) == after
    assert {f.status for f in done.findings} == {"ok"}

    for path, old in before.items():  # a boot: the kernel's own value, then what systemd makes of the files
        for each in sysfs.files(host, path):
            if os.path.exists(each):
                Path(each).write_text(" " * 16)  # as long as any value: a boot truncates nothing
        assert old
    subprocess.run([SYSTEMD_SYSCTL], capture_output=True)
    subprocess.run(["systemd-tmpfiles", "--create", "--boot", "--prefix=/sys"], capture_output=True)
    assert values(host, files) == after
    engine.tune(host, {name: want}, KNOBS, BY_ID, dry_run=False)

    written = len(host.effects)
    again = engine.tune(host, {name: want}, KNOBS, BY_ID, dry_run=False)
    assert not again.changed and len(host.effects) == written, "nothing is written a second time"

    for path, new in after.items():
        for each in sysfs.values(host, path):
            Path(each).write_text(new + "\n")
    steps, refused = engine.revert(host, BY_ID)
    assert len(steps) == len(done.steps) and refused == []
    assert values(host, files) == before and tree() == empty


def test_what_the_kernel_starts_with_needs_no_file_for_the_next_boot(host: LiveHost, fake: FakeTrees) -> None:
    behind = fake.file("/proc/sys/vm/zone_reclaim_mode", "1\n")
    done = engine.tune(host, {"zone-reclaim-mode": "0"}, KNOBS, BY_ID, dry_run=False)
    assert behind.read_text() == "0\n" and tree() == {}
    assert [(f.subject, f.status) for f in done.findings] == [("now", "ok"), ("boot", "ok")]
    engine.revert(host, BY_ID)
    assert behind.read_text() == "1\n"


@pytest.mark.parametrize("name", FILES_ONLY)
def test_a_line_of_systemds_own_settings_is_one_that_systemd_reads(host: LiveHost, name: str) -> None:
    file = {"memlock": "system.conf", "remove-ipc": "logind.conf"}[name]
    engine.tune(host, {name: FILES_ONLY[name]}, KNOBS, BY_ID, dry_run=False)
    merged = subprocess.run(["systemd-analyze", "cat-config", "systemd/" + file], capture_output=True, text=True).stdout
    assert f"\n{KNOBS[name].title}={FILES_ONLY[name]}\n" in merged
    engine.revert(host, BY_ID)
    assert tree() == {}


def test_all_at_once_by_the_command_and_back(host: LiveHost) -> None:
    profile = scratch("profile") / "profile.json"
    profile.write_text(json.dumps({"knobs": {name: want for name, (want, _) in WRITES.items()}}))
    state = {name: values(host, files) for name, (_, files) in WRITES.items()}

    def hosttune(*argv: str) -> tuple[int, dict[str, object]]:
        done = subprocess.run([sys.executable, "-m", "hosttune", *argv, "-o", "json"], capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout)

    code, report = hosttune("apply", "--profile", str(profile))
    assert code == 0 and report["changed"], report
    assert {name: values(host, files) for name, (_, files) in WRITES.items()} == {
        name: {path: new for path, (_, new) in files.items()} for name, (_, files) in WRITES.items()
    }
    code, report = hosttune("apply", "--profile", str(profile))
    assert code == 0 and not report["changed"]
    code, _ = hosttune("revert")
    assert code == 0 and tree() == {}
    assert {name: values(host, files) for name, (_, files) in WRITES.items()} == state


def test_the_check_of_all_starts_no_program_and_writes_nothing(host: LiveHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_program(*argv: object, **more: object) -> None:
        raise AssertionError(f"a program was started: {argv}")

    for name in ("Popen", "run", "check_output"):
        monkeypatch.setattr(subprocess, name, no_program)
    for name in ("fork", "posix_spawn", "posix_spawnp", "system"):
        monkeypatch.setattr(os, name, no_program)
    found = [f for knob in (*MEMORY, *CPU) for f in engine.check(knob, host)]
    assert len(found) > 30 and {f.status for f in found} >= {"fail", "warn", "skip", "ok"}
    assert "error" not in {f.status for f in found} and host.effects == []


def test_a_user_sees_what_root_sees(host: LiveHost) -> None:
    """Only what root alone may read, a crontab of root, may differ; no setting is an error for a user."""
    code = """
import json
from hosttune.core import engine
from hosttune.core.knobs import CPU, MEMORY
from hosttune.core.door.live import LiveHost
print(json.dumps([[f.id, f.subject, f.status, f.have] for k in (*MEMORY, *CPU) for f in engine.check(k, LiveHost())]))
"""
    as_user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", code]
    told = subprocess.run(
        as_user, capture_output=True, text=True, cwd="/", env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert told.returncode == 0, told.stderr
    root = [[f.id, f.subject, f.status, f.have] for knob in (*MEMORY, *CPU) for f in engine.check(knob, host)]
    assert json.loads(told.stdout) == root


@pytest.mark.parametrize("name", ["cpu-governor", "cpu-energy-preference", "transparent-hugepages", "swappiness"])
def test_a_file_that_cannot_be_written_is_a_failure_and_no_other_cpu_is_changed(host: LiveHost, name: str) -> None:
    want, files = WRITES[name]
    ((pattern, (before, _)),) = files.items()
    target = sysfs.files(host, pattern)[-1]
    mount("--bind", target, target)
    mount("-o", "remount,bind,ro", target)
    try:
        done = engine.tune(host, {name: want}, KNOBS, BY_ID, dry_run=False)
        (failed,) = [f for f in done.findings if f.status == "fail"]
        assert "was not written" in failed.summary and failed.hint.command
        assert sysfs.value(host, pattern) == before
    finally:
        unmount(target)


def test_the_real_machine_is_told_without_an_error(fake: FakeTrees) -> None:
    """Nothing is faked here: what this very kernel has."""
    found = [f for knob in (*MEMORY, *CPU) for f in engine.check(knob, LiveHost())]
    assert [f for f in found if f.status == "error"] == []
    assert {f.have for f in found if f.name == "overcommit-memory" and f.subject == "now"} == {
        Path("/proc/sys/vm/overcommit_memory").read_text().strip()
    }


def test_in_a_real_container_each_belongs_to_the_host(make_container: MakeContainer) -> None:
    container = make_container()
    container.start()
    (container.rootfs / "root" / "core.zip").write_bytes(corezip.archive())
    code = """
import json, sys
sys.path.insert(0, "/root/core.zip")
from hosttune.core import engine
from hosttune.core.knobs import KNOBS
from hosttune.core.door.live import LiveHost
print(json.dumps([[f.name, f.status, f.summary] for k in KNOBS.values() for f in engine.check(k, LiveHost(), k.want)]))
"""
    told = container.attach("python3", "-c", code)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert [name for name, _, _ in found] == list(KNOBS)
    assert {status for _, status, _ in found} == {"skip"}
    assert all("on the host, not inside a container" in summary for _, _, summary in found)
