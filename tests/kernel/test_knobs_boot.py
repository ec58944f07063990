# SPDX-License-Identifier: Apache-2.0
"""What a boot makes of a setting: hosttune's reading of sysctl.d, tmpfiles.d and systemd's own files beside what
systemd-sysctl, sysctl --system, systemd-tmpfiles and systemd-analyze do with the very same files, in private folders."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune.core.configured import ini, sysctl, tmpfiles
from hosttune.core.door.live import LiveHost
from hosttune.core.knobs import memlock
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.view import mount, scratch, unmount

SYSTEMD_SYSCTL = "/lib/systemd/systemd-sysctl"
NAMES = ("10-a.conf", "50-b.conf", "90-hosttune-swappiness.conf", "95-c.conf", "z.conf")


@pytest.fixture
def folders() -> Iterator[dict[str, Path]]:
    """The folders of sysctl.d, tmpfiles.d and logind.conf.d, private and empty."""
    made: dict[str, Path] = {}
    new: list[Path] = []
    for name in ("sysctl.d", "tmpfiles.d", "systemd/logind.conf.d"):
        for root in ("/etc", "/run", "/usr/lib"):
            folder = Path(root, name)
            if not folder.is_dir():
                folder.mkdir(parents=True)
                new.append(folder)
            made[str(folder)] = scratch(folder.name)
            mount("--bind", str(made[str(folder)]), str(folder))
    yield made
    for target in made:
        unmount(target)
    for folder in new:
        folder.rmdir()


def run(*argv: str, code: int = 0) -> str:
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("tool", ["systemd", "procps"])
def test_the_line_of_sysctl_d_that_decides(folders: dict[str, Path], fake: FakeTrees, tool: str, seed: int) -> None:
    chance = random.Random(seed)
    behind = fake.file("/proc/sys/vm/swappiness", "60\n")
    for root in ("/etc/sysctl.d", "/run/sysctl.d", "/usr/lib/sysctl.d"):
        for name in chance.sample(NAMES, 2):
            key = chance.choice(["vm.swappiness", "vm/swappiness", "-vm.swappiness", "# vm.swappiness", "vm.swappines"])
            text = f"; of somebody\n{key} = {chance.randrange(200)}\n"
            (folders[root] / name).write_text(chance.choice([text, text + text.replace("=", "=1"), ""]))
    found = sysctl.assignments(LiveHost(), "vm.swappiness")
    if tool == "systemd":
        run(SYSTEMD_SYSCTL, "--prefix=/vm/swappiness")
    else:
        run("sysctl", "--system", "--pattern", r"^vm.swappiness$")
    assert behind.read_text().strip() == (found[-1].value if found else "60")


INTERVAL = "/proc/sys/net/ipv4/conf/{}/igmpv2_unsolicited_report_interval"
"""Files of the real kernel that each network namespace has of its own, so that nothing outside the test is written."""


@pytest.mark.parametrize("seed", range(24))
def test_the_line_of_tmpfiles_d_that_decides(folders: dict[str, Path], seed: int) -> None:
    chance = random.Random(seed)
    spellings = [INTERVAL.format("*"), INTERVAL.format("[l]o"), INTERVAL.format("lo"), INTERVAL.format("all")]
    for root in ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"):
        for name in chance.sample(NAMES, 2):
            kinds, value = ["w", "w!", "w-", "w+", "w+!", "#w"], chance.randrange(1000, 9999)
            line = f"{chance.choice(kinds)} {chance.choice(spellings)} - - - - {value}\n"
            (folders[root] / name).write_text(chance.choice(["# x\n" + line, line, "d /run - - - -\n", ""]))
    found = tmpfiles.writes(LiveHost(), [INTERVAL.format("lo")])
    boot = f"systemd-tmpfiles --create --boot --prefix=/proc/sys/net 2>/dev/null; cat {INTERVAL.format('lo')}"
    assert run("unshare", "--net", "sh", "-c", boot).strip() == (found[-1].value if found else "10000")


@pytest.mark.parametrize("seed", range(6))
def test_the_line_of_logind_conf_that_decides(folders: dict[str, Path], seed: int) -> None:
    chance = random.Random(seed)
    for root in ("/etc/systemd/logind.conf.d", "/run/systemd/logind.conf.d"):
        for name in chance.sample(NAMES, 2):
            section = chance.choice(["[Login]", "[Manager]"])
            (folders[root] / name).write_text(f"{section}\n#RemoveIPC=x\nRemoveIPC={chance.choice(['yes', 'no'])}\n")
    merged, section = "", ""
    for line in run("systemd-analyze", "cat-config", "systemd/logind.conf").splitlines():
        section = line if line.startswith("[") else section
        if section == "[Login]" and line.startswith("RemoveIPC="):
            merged = line.partition("=")[2]
    found = ini.assignments(LiveHost(), "logind.conf", "Login", "RemoveIPC")
    assert (found[-1].value if found else "") == merged


@pytest.mark.parametrize(
    "want",
    "infinity 0 8M 08M 8G:infinity 8M:8M 8M:4M 8M:x 8m 8MB unlimited -1 16777215T 16777216T 18446744073709551614 "
    "18446744073709551615 99999999999999999999T".split(),
)
def test_a_limit_that_may_be_wanted_is_one_that_systemd_takes(want: str) -> None:
    """Any other it would ignore with a warning in its journal, and the old limit would stay."""
    unit = scratch("unit") / "limits.service"
    unit.write_text(f"[Service]\nExecStart=/bin/true\nLimitMEMLOCK={want}\n")
    told = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True).stderr
    assert (told == "") == memlock.possible(want), told
