# SPDX-License-Identifier: Apache-2.0
"""The last link of the chain: a Debian 11 with Python 3.9 behind ssh, and the same one through a container's stdin."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import corezip
from tests.kernel.sshd import SshTarget

ROOT = Path(__file__).resolve().parents[2]
NODES = ["/dev/null", "/dev/no-such"]


def ask(target: SshTarget, way: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the core over there."""
    if way == "ssh":
        done = target.run(shlex.join(corezip.argv()), input=corezip.stdin(request))
        out, err, code = done.stdout.decode(), done.stderr.decode(), done.returncode
    else:
        inside = target.container.attach(*corezip.argv(), input=corezip.stdin(request))
        out, err, code = inside.stdout, inside.stderr, inside.returncode
    assert code == 0 and not err, out + err
    answer: dict[str, Any] = json.loads(out)
    return answer


def files(target: SshTarget) -> set[str]:
    """Every regular file of the target outside /proc and /sys, but for logs of sshd and systemd."""
    told = target.container.attach("find", "/", "-xdev", "-type", "f", "-not", "-path", "/var/log/*")
    return set(told.stdout.splitlines())


@pytest.mark.parametrize("way", ["ssh", "stdin of the container"])
def test_core_answers_on_an_old_python_and_leaves_no_file(old_target: SshTarget, way: str) -> None:
    before = files(old_target)
    assert before
    told = ask(old_target, way, {"op": "ping"})["result"]
    assert told["python"].startswith("3.9.") and told["executable"] == "/usr/bin/python3"
    nodes = ask(old_target, way, {"op": "child", "nodes": NODES})["result"]["nodes"]
    assert nodes["/dev/null"]["rdev"] == "1:3" and nodes["/dev/no-such"] == {"errno": "ENOENT"}
    assert files(old_target) == before


def test_ansible_module_runs_on_an_old_python(old_target: SshTarget, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.ini"
    common = "-F %s" % old_target.config
    inventory.write_text(
        "target ansible_python_interpreter=/usr/bin/python3 ansible_ssh_common_args='%s' ansible_host=target\n" % common
    )
    argv = [str(Path(sys.executable).with_name("ansible")), "-i", str(inventory), "target", "-m", "hosttune.hosttune.tune", "-o"]
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    wanted = json.dumps({"knobs": {"profile": "pcie-inference"}})
    done = subprocess.run([*argv, "-a", wanted], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.partition("=>")[2])
    assert [f["status"] for f in told["findings"]] == ["skip", "skip"] and not told["effects"]
