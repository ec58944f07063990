# SPDX-License-Identifier: Apache-2.0
"""Values in /proc and /sys, and one change of many like files."""

from __future__ import annotations

from typing import Any

import pytest

from hosttune.core import engine, journal
from hosttune.core.machine import sysfs
from hosttune.core.model import Knob, Reading, Refused, Step
from hosttune.core.recording.replay import ReplayHost

GOVERNORS = "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"


def machine(*values: str, writes: dict[str, str] | None = None) -> ReplayHost:
    files: dict[str, Any] = {GOVERNORS.replace("*", str(n)): value + "\n" for n, value in enumerate(values)}
    files["/var/lib/hosttune/journal.jsonl"] = {"errno": "ENOENT"}
    names = [f"policy{n}" for n in range(len(values))]
    return ReplayHost({"files": files, "dirs": {"/sys/devices/system/cpu/cpufreq": [*names, "boost"]},
                       "writes": writes or {}, "uid": 0})  # fmt: skip


def governor(recommend: str = "on", want: str = "performance") -> dict[str, Knob]:
    def read(host: Any) -> dict[str, Reading]:
        return {"now": Reading(sysfs.value(host, GOVERNORS))}

    def step(host: Any, subject: str, have: str, want: str) -> Step:
        return Step("HT101", subject, "poke", GOVERNORS, have, want)

    knob = Knob("HT101", "a", "governor", "why", want, read, step, lambda want: "", recommend=recommend,
                if_ignored="the firmware keeps it")  # fmt: skip
    return {"a": knob, "HT101": knob}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("always [madvise] never\n", "madvise"),
        ("[always]\n", "always"),
        ("0\n", "0"),
        ("a b\n", "a b"),
        ("core[1]x\n", "core[1]x"),
    ],
)
def test_the_value_is_the_word_in_brackets_or_the_text(text: str, value: str) -> None:
    assert sysfs.in_use(text) == value


def test_a_pattern_is_one_value_or_says_how_they_differ() -> None:
    assert sysfs.value(machine("powersave", "powersave"), GOVERNORS) == "powersave"
    assert (
        sysfs.value(machine("performance", "powersave", "performance"), GOVERNORS)
        == "mixed: 2 performance, 1 powersave"
    )
    with pytest.raises(FileNotFoundError):
        sysfs.value(machine(), GOVERNORS)


def test_all_files_of_a_pattern_are_one_change_and_one_entry_and_go_back_together() -> None:
    host, knobs = machine("powersave", "powersave"), governor()
    done = engine.tune(host, {"a": ""}, knobs, knobs, dry_run=False)
    assert done.changed and sysfs.value(host, GOVERNORS) == "performance"
    (entry,) = journal.entries(host)
    assert journal.restore_line(entry) == "echo powersave | tee " + GOVERNORS
    engine.revert(host, knobs)
    assert sysfs.value(host, GOVERNORS) == "powersave"


@pytest.mark.parametrize(
    ("behaviour", "words"), [("ignored", "1 of 2 still have powersave; the others were put back"), ("EBUSY", "EBUSY")]
)
def test_one_file_that_keeps_its_value_is_told_with_the_likely_reason_and_none_is_changed(
    behaviour: str, words: str
) -> None:
    host, knobs = machine("powersave", "powersave", writes={GOVERNORS.replace("*", "1"): behaviour}), governor()
    done = engine.tune(host, {"a": ""}, knobs, knobs, dry_run=False)
    assert words in done.findings[0].summary
    assert done.findings[0].summary.endswith("; likely: the firmware keeps it")
    assert sysfs.value(host, GOVERNORS) == "powersave" and not done.changed


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


class KilledAtTheSecond(ReplayHost):
    """A machine on which the process ends before its second write to /sys."""

    pokes = 0

    def poke(self, path: str, value: str) -> None:
        self.pokes += 1
        if self.pokes == 2:
            raise Killed
        super().poke(path, value)


def test_what_a_killed_run_left_half_done_is_put_back_by_the_next_and_reverts_whole() -> None:
    host, knobs = KilledAtTheSecond(machine("powersave", "powersave", "powersave").view), governor()
    with pytest.raises(Killed):
        engine.tune(host, {"a": ""}, knobs, knobs, dry_run=False)
    assert sysfs.value(host, GOVERNORS) == "mixed: 1 performance, 2 powersave"
    assert engine.recover(host, knobs) == []
    assert [entry.state for entry in journal.entries(host)] == ["dropped"]
    engine.tune(host, {"a": ""}, knobs, knobs, dry_run=False)
    assert sysfs.value(host, GOVERNORS) == "performance"
    engine.revert(host, knobs)
    assert sysfs.value(host, GOVERNORS) == "powersave"


def test_what_was_neither_before_nor_after_is_somebody_elses_and_only_told() -> None:
    host, knobs = KilledAtTheSecond(machine("powersave", "powersave", "powersave").view), governor()
    with pytest.raises(Killed):
        engine.tune(host, {"a": ""}, knobs, knobs, dry_run=False)
    host.poke(GOVERNORS.replace("*", "2"), "schedutil")
    (told,) = engine.recover(host, knobs)
    assert told.id == "HT906" and told.hint.command == "echo powersave | tee " + GOVERNORS
    assert sysfs.value(host, GOVERNORS) == "mixed: 1 performance, 1 powersave, 1 schedutil"


@pytest.mark.parametrize(
    ("recommend", "want", "status", "steps"),
    [
        ("on", "", "fail", 1), ("opt-in", "", "skip", 0), ("report", "", "warn", 0),
        ("on", "performance", "fail", 1), ("opt-in", "performance", "fail", 1), ("report", "performance", "fail", 1),
    ],
)  # fmt: skip
def test_only_what_is_on_or_asked_for_is_changed(recommend: str, want: str, status: str, steps: int) -> None:
    found, planned = engine.plan(governor(recommend)["a"], machine("powersave"), want)
    assert ([f.status for f in found], len(planned)) == ([status], steps)
    assert found[0].have == "powersave" and found[0].want == "performance"


def test_a_knob_without_a_recommended_value_is_shown_and_never_wrong() -> None:
    found, planned = engine.plan(governor("report", want="")["a"], machine("powersave"))
    assert [(f.status, f.summary) for f in found] == [("ok", "governor is powersave")] and planned == []


def test_to_name_a_knob_is_to_ask_for_it() -> None:
    knobs = {"a": governor("opt-in")["a"]}
    assert engine.wants_of(("a",), None, knobs) == {"a": "performance"}
    assert engine.wants_of((), None, knobs) == {"a": ""}
    assert engine.wants_of(("a",), {"a": "schedutil"}, knobs) == {"a": "schedutil"}


def test_a_report_says_the_edit_by_hand() -> None:
    def step(host: Any, subject: str, have: str, want: str) -> Step:
        raise Refused("it is firmware's", "BIOS setup", "set it there")

    knob = Knob("HT101", "a", "it", "why", "x", lambda host: {"now": Reading("y", where="/f:3")}, step, lambda want: "",
                recommend="report")  # fmt: skip
    (found,) = engine.check(knob, machine())
    assert (found.status, found.hint.command, found.evidence) == ("warn", "set it there", ("/f:3", "BIOS setup"))


def test_a_knob_says_which_of_three_it_is() -> None:
    with pytest.raises(ValueError, match="sometimes"):
        governor("sometimes")


def test_what_stands_in_the_way_and_cannot_be_looked_at_is_an_error_and_nothing_is_planned() -> None:
    def step(host: Any, subject: str, have: str, want: str) -> Step:
        raise PermissionError(13, "no", "/etc/site.conf")

    knob = Knob("HT101", "a", "it", "why", "x", lambda host: {"now": Reading("y")}, step, lambda want: "")
    ((found,), planned) = engine.plan(knob, machine())
    assert (found.status, found.subject, planned) == ("error", "now", []) and "/etc/site.conf: EACCES" in found.summary
