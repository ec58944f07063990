# SPDX-License-Identifier: Apache-2.0
"""A broken container, healed by nothing but the commands that doctor and `lxc sync` print, as they print them: no command leads
back to where the reader comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel import mission
from tests.kernel.mission import Mission
from tests.kernel.standin import StandIn

Shell = Callable[[Mission, str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A root shell of the host on which hosttune is installed."""
    program = tmp_path / "hosttune"
    program.write_text('#!/bin/sh\nexec %s -m hosttune "$@"\n' % sys.executable)
    program.chmod(0o755)

    def run(host: Mission, command: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **host.env, "PATH": "%s:%s" % (tmp_path, os.environ["PATH"])}
        return subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, timeout=120)

    return run


def nothing_passed_in(host: Mission) -> None:
    text = host.container.config.read_text().splitlines(keepends=True)
    kept = [line for line in text if "/dev/nvidia" not in line and "devices.allow" not in line]
    host.container.config.write_text("".join(kept))
    host.container.restart(booted=True)


def uvm_not_passed_in(host: Mission) -> None:
    text = host.container.config.read_text().splitlines(keepends=True)
    host.container.config.write_text("".join(line for line in text if "nvidia-uvm " not in line))
    host.container.restart(booted=True)


DOCTOR, SYNC = "hosttune doctor --ct %s", "hosttune lxc sync %s --dry-run"
STATES: dict[str, tuple[str, Callable[[Mission], None]]] = {
    "the founding case": (SYNC, lambda host: None),
    "the host's node made anew": (DOCTOR, Mission.hold_old_node),
    "nothing passed in": (DOCTOR, nothing_passed_in),
    "nvidia-uvm not passed in": (SYNC, uvm_not_passed_in),
}


@pytest.fixture
def host(lxc: None, standin: StandIn) -> Iterator[Mission]:
    made = mission.broken(standin, gpus=2)
    yield made
    made.undo()


@pytest.mark.parametrize("state", STATES)
def test_what_is_printed_heals(host: Mission, shell: Shell, state: str) -> None:
    first, breaks = STATES[state]
    breaks(host)
    asked = first % host.ct
    seen: list[str] = []
    for _ in range(3):
        told = json.loads(shell(host, asked + " -o json").stdout)["hosts"][0]["findings"]
        cause = next((f for f in told if f["status"] in ("fail", "warn") and not f["because"]), None)
        if cause is None:
            break
        command = cause["hint"]["command"]
        assert command and command not in seen, "in a circle: %s" % [*seen, command]
        seen.append(command)
        if cause["hint"]["action"] == "look":
            asked = command
        else:
            shell(host, command)
    assert seen and json.loads(shell(host, DOCTOR % host.ct + " -o json").stdout)["first_cause"] is None, seen
