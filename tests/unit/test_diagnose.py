# SPDX-License-Identifier: Apache-2.0
"""The order of probes, symptoms that name their cause, and a probe that breaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hosttune.core.catalogue import finding
from hosttune.core.doctor.diagnose import diagnose, in_order
from hosttune.core.model import FAIL, OK, Finding, Probe


def probe(name: str, *findings: Finding, needs: tuple[str, ...] = ()) -> Probe:
    return Probe(name, needs, lambda machines: list(findings))


def failed(id: str, machine: str = "host") -> Finding:
    return finding(id, FAIL, "subject", "broken", machine=machine)


def test_a_failure_above_a_failed_layer_is_a_skip_that_names_its_cause() -> None:
    upper = probe("upper", failed("HT302"), needs=("lower",))
    found = diagnose({}, [upper, probe("lower", failed("HT301"))])
    assert [(f.id, f.status, f.because) for f in found] == [("HT301", "fail", ()), ("HT302", "skip", ("HT301",))]


def test_a_symptom_of_a_symptom_names_the_root() -> None:
    middle = probe("middle", failed("HT302"), needs=("lower",))
    top = probe("top", failed("HT360"), needs=("middle",))
    found = diagnose({}, [probe("lower", failed("HT301")), middle, top])
    assert [f.because for f in found] == [(), ("HT301",), ("HT301",)]


def test_the_host_lies_below_its_containers_and_containers_beside_each_other() -> None:
    lower = probe("lower", failed("HT401", "ct:1"))
    upper = probe("upper", failed("HT360", "ct:1"), failed("HT360", "ct:2"), failed("HT360"), needs=("lower",))
    assert [(f.machine, f.status) for f in diagnose({}, [lower, upper])[1:]] == [
        ("ct:1", "skip"), ("ct:2", "fail"), ("host", "fail"),
    ]  # fmt: skip
    below = probe("lower", failed("HT302"))
    assert {f.status for f in diagnose({}, [below, upper])[1:]} == {"skip"}


def test_what_is_well_above_a_failed_layer_stays_well() -> None:
    upper = probe("upper", finding("HT360", OK, "cuInit", "fine"), needs=("lower",))
    assert [f.status for f in diagnose({}, [probe("lower", failed("HT301")), upper])] == ["fail", "ok"]


def test_a_probe_that_breaks_is_an_error_and_the_others_still_speak() -> None:
    def breaks(machines: Mapping[str, Any]) -> list[Finding]:
        raise KeyError("uvm")

    found = diagnose({}, [Probe("nodes", (), breaks), probe("cuda", failed("HT360"))])
    assert [(f.id, f.status) for f in found] == [("HT903", "error"), ("HT360", "fail")]
    assert "nodes" in found[0].summary and "KeyError" in found[0].summary


def test_impossible_needs_are_refused() -> None:
    with pytest.raises(ValueError, match="circle"):
        in_order([probe("a", needs=("b",)), probe("b", needs=("a",))])
    with pytest.raises(ValueError, match="needs c"):
        in_order([probe("a", needs=("c",))])
