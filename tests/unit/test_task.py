# SPDX-License-Identifier: Apache-2.0
"""What an Ansible task returns: text that Ansible takes, whatever bytes stand in a file."""

from __future__ import annotations

import json

from hosttune.core import task
from hosttune.core.catalogue import finding
from hosttune.core.model import Hint, Refused, Step
from hosttune.core.recording.replay import ReplayHost

ODD = "caf\udce9 \x1b[2J"


def test_bytes_that_are_no_utf8_fail_no_task() -> None:
    """ansible-core refuses a lone surrogate in a module's answer, after the change is made."""
    found = task.mark_ignored([finding("HT422", "fail", ODD, ODD, hint=Hint(ODD), evidence=(ODD,))], [], 0)
    steps = [Step("HT421", "ct:200", "replace", "/x", ODD, ODD + "new")]
    told = task.result(ReplayHost({}), found, steps, mode="apply", check_mode=False)
    for value in (told, task.fixes(found), task.message(Refused(ODD, ODD, ODD))):
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    assert told["diff"][0]["before"] == "caf\\udce9 \x1b[2J" and steps[0].before == ODD


def test_a_failed_task_says_what_where_and_the_way_out() -> None:
    found = [finding("HT428", "fail", "ct:200", "the container is locked (backup)", evidence=("/etc/pve/lxc/200.conf:3",),
                     hint=Hint("pct unlock 200"))]  # fmt: skip
    found.insert(0, finding("HT409", "fail", "/dev/nvidia3", "EIO", hint=Hint("dmesg | tail", "host", "", "look")))
    msg = task.result(ReplayHost({}), found[1:], mode="apply", check_mode=False)["msg"]
    assert all(words in msg for words in ("ct:200", "locked (backup)", "/etc/pve/lxc/200.conf:3", "fix: pct unlock 200"))
    assert task.result(ReplayHost({}), found, mode="apply", check_mode=False)["msg"].endswith("fix: pct unlock 200")
    assert task.fixes(found)[1] == "  look on host: dmesg | tail"
