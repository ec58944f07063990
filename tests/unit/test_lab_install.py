# SPDX-License-Identifier: Apache-2.0
"""lab/proxmox/install into an empty folder: needs no root, brings what the units and scripts refer to, can be run again."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from pathlib import Path

import pytest

PROXMOX = Path(__file__).resolve().parents[2] / "lab" / "proxmox"


def install(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROXMOX / "install", *argv], capture_output=True, text=True)


def content(root: Path) -> dict[str, bytes]:
    """name: data of the regular files in the database."""
    database = sqlite3.connect(root / "var/lib/pve-cluster/config.db")
    try:
        return dict(database.execute("SELECT name, data FROM tree WHERE type = 8").fetchall())
    finally:
        database.close()


def test_units_hooks_and_scripts_find_what_they_name(tmp_path: Path) -> None:
    done = install(str(tmp_path), "pve1")
    assert done.returncode == 0, done.stderr
    named = set()
    for path in [*tmp_path.glob("usr/lib/systemd/system/*.service"), *tmp_path.glob("usr/share/lxc/config/*.d/*.conf")]:
        named |= set(re.findall(r"^(?:Exec\w+=|lxc\.hook\.[\w-]+ = )(/\S+)", path.read_text(), re.MULTILINE))
    assert len(named) == 6 and [name for name in named if not (tmp_path / name[1:]).stat().st_mode & 0o111] == []
    for script in [*(tmp_path / "usr/bin").iterdir(), *(tmp_path / "usr/share/lxc/hooks").iterdir()]:
        module = re.search(r"^from pvelab\.(\w+) import", script.read_text(), re.MULTILINE)
        assert module and (tmp_path / f"usr/lib/hosttune-lab/pvelab/{module[1]}.py").is_file(), script
    for link in (tmp_path / "etc/systemd/system/multi-user.target.wants").iterdir():
        assert (tmp_path / str(link.readlink())[1:]).is_file()


def test_a_second_run_keeps_what_etc_pve_holds(tmp_path: Path) -> None:
    assert install(str(tmp_path)).returncode == 0
    before = content(tmp_path)
    assert before["200.conf"] == (PROXMOX / "configs/200.conf").read_bytes()
    database = sqlite3.connect(tmp_path / "var/lib/pve-cluster/config.db")
    with database:
        database.execute("UPDATE tree SET data = ? WHERE name = '200.conf'", (b"arch: amd64\n",))
    database.close()
    assert install(str(tmp_path)).returncode == 0
    assert content(tmp_path) == {**before, "200.conf": b"arch: amd64\n"}
    assert (tmp_path / "etc/subuid").read_text().count("root:100000:65536") == 1


@pytest.mark.parametrize("argv", [[], ["/nonexistent/folder"], [".", "Bad_Name"]])
def test_bad_arguments_are_one_line_and_status_2(argv: list[str]) -> None:
    done = install(*argv)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
