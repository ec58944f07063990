# SPDX-License-Identifier: Apache-2.0
"""The doctor through Ansible, on the founding host: the host is well, its container is refused /dev/nvidia-uvm."""

from __future__ import annotations

from tests.ansible.conftest import FoundingHost


def test_doctor_names_and_proves_the_cause_in_the_container(founding: FoundingHost) -> None:
    told = founding.ansible.module("doctor", profile=founding.profile("plan"))
    cause = told["first_cause"]
    assert (told["rc"], told["changed"], told["ok"], told["effects"]) == (0, False, False, [])
    assert (cause["id"], cause["machine"], cause["subject"]) == ("HT401", "ct:" + founding.ct, "/dev/nvidia-uvm")
    assert cause["proof"] == "proved" and "EPERM" in " ".join(cause["evidence"])
    assert told["lines"][0].startswith("HT401 ct:%s /dev/nvidia-uvm" % founding.ct)
    assert told["lines"][1].startswith("  fix on host: ")


def test_doctor_follows_a_live_heal_and_counts_what_is_declared(founding: FoundingHost) -> None:
    founding.host.container.live("devices.allow", "c 511:* rwm")
    told = founding.ansible.module("doctor", containers=[founding.ct], profile=founding.profile("plan"))
    assert not [f for f in told["findings"] if f["id"] in ("HT401", "HT360", "HT362") and f["status"] != "ok"], told["lines"]


def test_unknown_container_is_refused_with_those_that_there_are(founding: FoundingHost) -> None:
    told = founding.ansible.module("doctor", containers=["no-such"])
    assert told["rc"] == 2 and "there is no container no-such" in told["msg"] and founding.ct in told["msg"]
