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
MODULES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("tune", {"knobs": {"profile": "pcie-inference"}}, {"HT101": "set on the host, not inside a container"}),
    ("doctor", {}, {"HT351": "cannot open shared object file"}),  # said by the child process, which was to load libcuda
    ("lxc_devices", {"containers": {"200": {}}}, {"HT428": "there is no container 200"}),
    ("model", {"models": {"m": {"source": "/no/such"}}}, {"HT506": "/no/such"}),
    ("revert", {}, {}),
    # 3.9 is too old for the command that these three run there, and it is not there: told, not a traceback.
    ("engine", {"engines": {"e": {"engine": "vllm", "venv": "/v", "model": "/m", "port": 1}}}, {"HT907": "is not there"}),
    ("preflight", {}, {"HT907": "is not there"}),
    ("bench", {}, {"HT907": "is not there"}),
]
"""Each module, options, and words of the findings that it must come back with."""


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


@pytest.mark.parametrize(("module", "options", "found"), MODULES)
def test_every_ansible_module_runs_on_an_old_python(
    old_target: SshTarget, tmp_path: Path, module: str, options: dict[str, Any], found: dict[str, str]
) -> None:
    inventory = tmp_path / "hosts.ini"
    inventory.write_text(
        "target ansible_host=target ansible_python_interpreter=/usr/bin/python3 "
        "ansible_ssh_common_args='-F %s -o ControlPath=none'\n" % old_target.config
    )
    argv = [str(Path(sys.executable).with_name("ansible")), "-i", str(inventory), "target", "-o"]
    argv += ["-m", "hosttune.hosttune." + module, *(["-a", json.dumps(options)] if options else [])]
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout[done.stdout.index("{") :])
    said = {f["id"]: json.dumps(f) for f in told["findings"]}
    assert all(words in said[id] for id, words in found.items()), said
    assert told["changed"] is False and told["effects"] == []


def test_no_module_is_left_out_above() -> None:
    assert {module for module, _, _ in MODULES} == {p.stem for p in (ROOT / "hosttune/ansible/modules").glob("*.py")}
