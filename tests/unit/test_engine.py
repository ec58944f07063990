# SPDX-License-Identifier: Apache-2.0
"""Apply, journal, recovery after a kill, revert: on a knob that is a plain file in a temporary folder."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import engine, journal
from hosttune.core.host import Host, LiveHost, read_or_none
from hosttune.core.model import Knob, Reading, Refused, Step


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the settings, the journal, the backups and the lock."""
    for name, value in (("JOURNAL", "state/journal.jsonl"), ("BACKUP", "state/backup"), ("LOCK", "lock")):
        monkeypatch.setattr(journal, name, str(tmp_path / value))
    return tmp_path


def knob(box: Path, *names: str) -> dict[str, Knob]:
    """A knob HT101 whose subjects are the named files, each kept at its want and a line feed."""

    def read(host: Host) -> dict[str, Reading]:
        return {name: Reading((read_or_none(host, str(box / name)) or "").strip()) for name in names}

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        path = str(box / subject)
        return Step("HT101", subject, "replace", path, read_or_none(host, path), want + "\n")

    made = Knob("HT101", "files", "the file", "", "want", read, step, lambda want: "")
    return {"files": made}


def tune(host: Host, knobs: dict[str, Knob], want: str = "new", dry_run: bool = False) -> engine.Tuned:
    return engine.tune(host, {"files": want}, knobs, {"HT101": knobs["files"]}, dry_run)


def rows(box: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (box / "state/journal.jsonl").read_text().splitlines()]


def test_apply_then_revert_is_byte_for_byte(box: Path) -> None:
    (box / "a").write_bytes(b"old \xff without line feed")
    knobs, host = knob(box, "a", "b"), LiveHost()
    assert tune(host, knobs).changed
    assert (box / "a").read_bytes() == (box / "b").read_bytes() == b"new\n"
    assert [r["event"] for r in rows(box)] == ["intent", "done", "intent", "done"]
    steps, findings = engine.revert(LiveHost(), {"HT101": knobs["files"]})
    assert findings == [] and len(steps) == 2
    assert (box / "a").read_bytes() == b"old \xff without line feed"
    assert not (box / "b").exists()
    assert engine.revert(LiveHost(), {"HT101": knobs["files"]}) == ([], []), "a second revert has nothing to do"


def test_a_second_apply_writes_nothing(box: Path) -> None:
    knobs = knob(box, "a")
    tune(LiveHost(), knobs)
    host = LiveHost()
    done = tune(host, knobs)
    assert not done.changed and host.effects == [] and [f.status for f in done.findings] == ["ok"]


def test_dry_run_writes_nothing_and_says_what_it_would(box: Path) -> None:
    host = LiveHost()
    done = tune(host, knob(box, "a"), dry_run=True)
    assert host.effects == [] and not (box / "a").exists() and not (box / "state").exists()
    assert done.changed and done.steps[0].as_diff()["after"] == "new\n"


def test_the_backup_is_verbatim_and_its_line_restores(box: Path) -> None:
    (box / "a").write_bytes(b"old\xff\r\n")
    tune(LiveHost(), knob(box, "a"))
    (entry,) = journal.entries(LiveHost())
    assert Path(entry.backup).read_bytes() == b"old\xff\r\n"
    assert os.system(journal.restore_line(entry)) == 0
    assert (box / "a").read_bytes() == b"old\xff\r\n"


def test_revert_leaves_alone_what_somebody_else_changed(box: Path) -> None:
    knobs = knob(box, "a")
    tune(LiveHost(), knobs)
    (box / "a").write_text("mine now\n")
    steps, findings = engine.revert(LiveHost(), {"HT101": knobs["files"]})
    assert steps == [] and "no longer what hosttune wrote" in findings[0].summary
    assert (box / "a").read_text() == "mine now\n"
    assert findings[0].hint.command.startswith("rm ")


def test_revert_to_an_entry_keeps_what_came_before(box: Path) -> None:
    knobs = knob(box, "a")
    tune(LiveHost(), knobs, "one")
    first = journal.entries(LiveHost())[-1].number
    tune(LiveHost(), knobs, "two")
    engine.revert(LiveHost(), {"HT101": knobs["files"]}, to=first)
    assert (box / "a").read_text() == "one\n"


class Killed(BaseException):
    """The process is gone: nothing after it runs."""


@pytest.mark.parametrize("moment", range(1, 8))
def test_killed_at_any_moment_the_next_run_finishes(box: Path, moment: int) -> None:
    """Every write to the disk is a moment; the kill comes before it takes effect."""
    (box / "a").write_text("old\n")
    knobs = knob(box, "a")
    calls = 0

    class Dying(LiveHost):
        def replace(self, path: str, data: bytes, expect: str | None, mode: int = 0o644) -> None:
            self.tick()
            super().replace(path, data, expect, mode)
            self.tick()

        def append(self, path: str, data: bytes) -> None:
            self.tick()
            super().append(path, data)

        def tick(self) -> None:
            nonlocal calls
            calls += 1
            if calls == moment:
                raise Killed

    try:
        tune(Dying(), knobs)
    except Killed:
        assert (box / "a").read_text() in ("old\n", "new\n"), "never half-written"
    else:
        assert calls < moment, "no such moment is left: the run was whole"
    done = tune(LiveHost(), knobs)
    assert [f.status for f in done.findings] == ["ok"]
    assert (box / "a").read_text() == "new\n"
    steps, findings = engine.revert(LiveHost(), {"HT101": knobs["files"]})
    assert findings == [] and (box / "a").read_text() == "old\n"
    assert {e.state for e in journal.entries(LiveHost())} <= {"done", "dropped", "reverted"}


def test_a_full_disk_changes_nothing(box: Path) -> None:
    (box / "a").write_text("old\n")

    class Full(LiveHost):
        def append(self, path: str, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    done = tune(Full(), knob(box, "a"))
    assert [f.status for f in done.findings] == ["fail"] and "ENOSPC" in done.findings[0].summary
    assert not done.changed and (box / "a").read_text() == "old\n"


def test_a_torn_last_line_of_the_journal_is_survived(box: Path) -> None:
    knobs = knob(box, "a")
    tune(LiveHost(), knobs)
    with open(box / "state/journal.jsonl", "a") as f:
        f.write('{"event": "int')
    tune(LiveHost(), knobs, "newer")
    assert (box / "a").read_text() == "newer\n"


def test_a_spoilt_journal_is_named_with_its_line(box: Path) -> None:
    knobs = knob(box, "a")
    tune(LiveHost(), knobs)
    text = (box / "state/journal.jsonl").read_text()
    (box / "state/journal.jsonl").write_text("nonsense\n" + text)
    with pytest.raises(Refused, match=r"journal.jsonl:1"):
        journal.entries(LiveHost())


def test_an_exception_in_a_knob_is_could_not_tell() -> None:
    def read(host: Host) -> dict[str, Reading]:
        raise PermissionError(errno.EACCES, "Permission denied", "/proc/x")

    base = knob(Path("/"), "a")["files"]
    (found,) = engine.check(replace(base, read=read), LiveHost())
    assert found.status == "error" and "EACCES" in found.summary


@pytest.mark.parametrize(
    ("names", "declared", "words"),
    [(["nope"], {}, "no such knob: nope"), ([], {"nope": "1"}, "no such knob: nope")],
)
def test_unknown_knobs_are_refused(names: list[str], declared: dict[str, str], words: str) -> None:
    with pytest.raises(Refused, match=words):
        engine.wants_of(names, declared, knob(Path("/"), "a"))


@pytest.mark.parametrize(
    ("names", "declared", "wanted"),
    [
        ([], None, {"files": ""}),
        ([], {}, {}),
        ([], {"files": "x"}, {"files": "x"}),
        (["files"], {}, {"files": ""}),
        (["files"], {"files": "x"}, {"files": "x"}),
    ],
)
def test_a_profile_that_wants_nothing_is_not_one_that_says_nothing(
    names: list[str], declared: dict[str, str] | None, wanted: dict[str, str]
) -> None:
    assert engine.wants_of(names, declared, knob(Path("/"), "a")) == wanted


def test_without_its_journal_hosttune_changes_nothing(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (box / "a").write_text("old\n")
    (box / "state").write_text("a file stands where the folder should be")
    monkeypatch.setattr(journal, "LOCK", str(box / "state" / "lock"))
    with pytest.raises(Refused, match="nothing was changed"):
        tune(LiveHost(), knob(box, "a"))
    assert (box / "a").read_text() == "old\n"
