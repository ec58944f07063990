# SPDX-License-Identifier: Apache-2.0
"""Restarts by policy: said and not done under never, predicted and done under always, with all that they destroy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ansible.conftest import FoundingHost


@pytest.fixture
def stale(founding: FoundingHost) -> FoundingHost:
    """Rules are right, but the host has made its node anew: what the container holds no longer opens."""
    founding.host.hold_old_node()
    founding.ansible.module("lxc_devices", profile=founding.profile("apply"))
    founding.host.container.attach("sh", "-c", "head -c 3000000 /dev/zero > /dev/shm/model")
    return founding


def pending(told: dict[str, Any]) -> dict[str, Any]:
    """The finding that a restart is pending."""
    (found,) = (f for f in told["findings"] if f["id"] == "HT402")
    assert isinstance(found, dict)
    return found


def test_restart_that_nobody_allowed_is_said_with_what_it_would_destroy(stale: FoundingHost) -> None:
    init = stale.host.container.pid
    for flags in (["--check"], []):
        told = stale.ansible.module("lxc_devices", *flags, profile=stale.profile("apply", restart="never"))
        assert (told["changed"], told["ok"], told["actions"], told["effects"]) == (False, False, [], [])
        assert "/dev/shm" in pending(told)["hint"]["costs"]
    assert told["rc"] == 2 and "a restart is pending" in " ".join(told["lines"])
    assert "HT406" in told["msg"] and "fix: lxc-stop" in told["msg"]
    assert stale.host.container.pid == init


def test_idle_restarts_nothing_that_would_lose_something(stale: FoundingHost) -> None:
    init = stale.host.container.pid
    told = stale.ansible.module("lxc_devices", profile=stale.profile("apply", restart="idle"))
    assert not told["changed"] and pending(told) and stale.host.container.pid == init


def test_always_restarts_and_check_mode_says_so_before(stale: FoundingHost) -> None:
    init = stale.host.container.pid
    always = stale.profile("apply", restart="always")
    predicted = stale.ansible.module("lxc_devices", "--check", profile=always)
    assert predicted["changed"] and {a["name"] for a in predicted["actions"]} == {"restart"}
    assert "/dev/shm" in " ".join(predicted["actions"][0]["destroys"]) and stale.host.container.pid == init
    done = stale.ansible.module("lxc_devices", profile=always)
    assert done["rc"] == 0 and done["changed"] and done["actions"] == predicted["actions"], done
    assert stale.host.container.pid != init
    assert stale.ansible.module("lxc_devices", profile=always)["changed"] is False
