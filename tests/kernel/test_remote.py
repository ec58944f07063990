# SPDX-License-Identifier: Apache-2.0
"""`hosttune doctor --host`: over a real ssh, to Python 3.9, with nothing installed there; and each way it cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.sshd import SshTarget


@pytest.fixture
def home(old_target: SshTarget, tmp_path: Path) -> Path:
    """A home whose ssh knows the target under the name "target", and its host key."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    (ssh / "config").write_text(
        f"Host target\n  HostName {old_target.address}\n  Port {old_target.port}\n  User root\n  IdentityFile {old_target.key}\n"
    )
    (ssh / "known_hosts").write_text(old_target.known_hosts.read_text())
    return ssh.parent


def doctor(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SSH_")}
    argv = [sys.executable, "-m", "hosttune", "doctor", "-o", "json", *words]
    return subprocess.run(argv, env={**env, "HOME": str(home)}, capture_output=True, text=True, timeout=120)


def test_the_verdict_comes_back_and_nothing_is_left_there(old_target: SshTarget, home: Path) -> None:
    before = old_target.run(
        "find / -xdev -newer /etc/ssh/target -type f 2>/dev/null | grep -v -e ^/proc -e ^/sys -e wtmp | sort"
    ).stdout
    done = doctor(home, "--host", "target")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["first_cause"] == "HT301", done.stdout + done.stderr
    after = old_target.run(
        "find / -xdev -newer /etc/ssh/target -type f 2>/dev/null | grep -v -e ^/proc -e ^/sys -e wtmp | sort"
    ).stdout
    assert after == before


def test_an_unknown_host_key_is_never_accepted(home: Path) -> None:
    (home / ".ssh/known_hosts").write_text("")
    done = doctor(home, "--host", "target")
    assert done.returncode == 2 and "host key is not known" in json.loads(done.stdout)["error"]["what"], done.stdout
    assert (home / ".ssh/known_hosts").read_text() == ""


def test_a_changed_host_key_is_refused(home: Path, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    name = (home / ".ssh/known_hosts").read_text().split()[0]
    (home / ".ssh/known_hosts").write_text(f"{name} {(tmp_path / 'other.pub').read_text()}")
    done = doctor(home, "--host", "target")
    assert done.returncode == 2 and "has changed" in json.loads(done.stdout)["error"]["what"], done.stdout


@pytest.mark.parametrize(
    ("target", "words"),
    [("127.0.0.1:1", "cannot be reached"), ("a:b", "no [user@]host"), ("x" * 70, "")],
    ids=["nobody-listens", "no-port", "long-label"],
)
def test_a_host_that_cannot_be_asked_is_one_message(home: Path, target: str, words: str) -> None:
    done = doctor(home, "--host", target)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    error = json.loads(done.stdout)["error"]
    assert words in error["what"] and (error["way_out"] == "ssh ssh://127.0.0.1:1 true" or target != "127.0.0.1:1"), error


def test_a_container_that_is_not_there_is_refused_by_the_other_side(home: Path) -> None:
    done = doctor(home, "--host", "target", "--ct", "999")
    assert done.returncode == 2 and "there is no container 999" in json.loads(done.stdout)["error"]["what"], done.stdout
