# SPDX-License-Identifier: Apache-2.0
"""Apply, journal, recovery after a kill, revert: on a knob that is a plain file in a temporary folder."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import engine, journal
from hosttune.core.door.host import Host, Ran, read_or_none
from hosttune.core.door.live import LiveHost
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


def test_a_change_of_which_nothing_is_left_below_a_later_one_is_taken_back_without_a_word(box: Path) -> None:
    """A person set 2, hosttune 0 over it; a reboot made it 1, hosttune 0 once more. What goes back is what the reboot made."""
    value = box / "value"

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        return Step("HT101", subject, "poke", str(value), have, want)

    made = Knob("HT101", "files", "", "", "0", lambda host: {"now": Reading(value.read_text().strip())}, step, lambda want: "")
    for before in "121":
        value.write_text(before + "\n")
        assert tune(LiveHost(), {"files": made}, "0").changed
    steps, findings = engine.revert(LiveHost(), {"HT101": made})
    assert (len(steps), findings, value.read_text()) == (1, [], "1\n")
    assert {e.state for e in journal.entries(LiveHost()) if not e.reverts} == {"reverted"}
    assert engine.revert(LiveHost(), {"HT101": made}) == ([], [])


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


def test_a_torn_line_is_left_out_for_good(box: Path) -> None:
    """Not only while it is the last one: two runs later it stands in the middle."""
    knobs = knob(box, "a")
    for number in range(3):
        tune(LiveHost(), knobs, "value %d" % number)
        with open(box / "state/journal.jsonl", "a") as f:
            f.write('{"event": "int')
    assert [e.state for e in journal.entries(LiveHost())] == ["done"] * 3
    steps, findings = engine.revert(LiveHost(), {"HT101": knobs["files"]})
    assert len(steps) == 3 and findings == [] and not (box / "a").exists()


def test_a_long_journal_is_read_whole(box: Path) -> None:
    """One container config of 1 MiB makes an entry of 2 MiB."""
    knobs = knob(box, "a")
    for letter in "abcd":
        assert tune(LiveHost(), knobs, letter * (1 << 20)).changed
    assert (box / "state/journal.jsonl").stat().st_size > 6 << 20
    assert [(e.number, e.state) for e in journal.entries(LiveHost())] == [(n, "done") for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("row", [
    '{"event": "paused", "entry": 1, "at": 1}', '{"event": "done", "at": 1}', "[1]", "7",
    '{"event": "done", "entry": [], "at": 1}',
    '{"event": "intent", "entry": 9, "at": 1, "step": {"knob": "HT999", "colour": "red"}}', "[" * 100000,
    '{"event": "intent", "entry": 9, "at": "x", "step": {}}',
    '{"event": "intent", "entry": 9, "at": 1, "step": {"knob": "HT101", "subject": "a", "effect": "teleport", "target": "a",'
    ' "before": "", "after": ""}}',
])  # fmt: skip
def test_a_line_of_a_newer_version_is_refused_before_anything_changes(box: Path, row: str) -> None:
    knobs = knob(box, "a")
    tune(LiveHost(), knobs)
    with open(box / "state/journal.jsonl", "a") as f:
        f.write(row + "\n" + '{"at": 1, "entry": 1, "event": "done"}\n')
    host = LiveHost()
    for attempt in (lambda: tune(host, knobs, "newer"), lambda: engine.revert(host, {"HT101": knobs["files"]})):
        with pytest.raises(Refused, match=r"journal.jsonl:3"):
            attempt()
    assert (box / "a").read_text() == "new\n" and all(e["effect"] == "lock" for e in host.effects)


@pytest.mark.parametrize("what", ["state is another's", "state is open", "state is a link", "journal is open",
                                  "journal is a link", "journal is another's", "backup is a link", "lock is a link"])  # fmt: skip
def test_a_journal_that_others_can_write_is_not_believed(box: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds commands that revert would run as root, and links in its folder would lead root's writes elsewhere."""
    monkeypatch.setattr(journal, "LOCK", str(box / "state/lock"))
    (box / "a").write_text("old\n")
    knobs = knob(box, "a")
    tune(LiveHost(), knobs)
    paths = {"state": "state", "journal": "state/journal.jsonl", "backup": "state/backup", "lock": "state/lock"}
    path = box / paths[what.split()[0]]
    if what.endswith("open"):
        path.chmod(0o777)
    elif what.endswith("link"):
        path.rename(box / "elsewhere")
        path.symlink_to(box / "elsewhere")
    elif os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    else:
        os.chown(path, 1000, 1000)
    host = LiveHost()
    for attempt in (lambda: tune(host, knobs, "newer"), lambda: engine.revert(host, {"HT101": knobs["files"]}),
                    lambda: journal.entries(host)):  # fmt: skip
        with pytest.raises(Refused, match="cannot be trusted") as refused:
            attempt()
        assert refused.value.where == str(path)
    assert host.effects == [] and (box / "a").read_text() == "new\n"


def test_a_disk_that_is_full_when_the_change_is_made_does_not_call_it_undone(box: Path) -> None:
    (box / "a").write_text("old\n")
    knobs = knob(box, "a")

    class Full(LiveHost):
        def append(self, path: str, data: bytes) -> None:
            if b"intent" not in data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            super().append(path, data)

    done = tune(Full(), knobs)
    (told,) = [f for f in done.findings if f.status == "error"]
    assert (
        told.id == "HT906"
        and "was changed" in told.summary
        and "ENOSPC" in told.summary
        and "journal" in told.hint.command
    )
    assert done.changed and (box / "a").read_text() == "new\n"
    steps, findings = engine.revert(LiveHost(), {"HT101": knobs["files"]})
    assert findings == [] and (box / "a").read_text() == "old\n", "the next run has settled it"


def test_what_another_run_has_done_meanwhile_is_not_done_again(box: Path) -> None:
    (box / "a").write_text("old\n")
    knobs = knob(box, "a")
    _, steps = engine.plan(knobs["files"], LiveHost(), "new")
    tune(LiveHost(), knobs)
    late = LiveHost()
    assert engine.apply(late, steps, {"HT101": knobs["files"]}) == []
    assert [e["effect"] for e in late.effects] == ["lock"] and len(journal.entries(LiveHost())) == 1


def test_a_half_written_file_of_a_killed_run_is_taken_away(box: Path) -> None:
    (box / "a").write_text("old\n")
    knobs = knob(box, "a")

    class Dying(LiveHost):
        def replace(self, path: str, data: bytes, expect: str | None, mode: int = 0o644) -> None:
            if path == str(box / "a"):
                Path(path + ".hosttune.tmp").write_bytes(data[:2])
                raise Killed
            super().replace(path, data, expect, mode)

    with pytest.raises(Killed):
        tune(Dying(), knobs)
    engine.revert(LiveHost(), {"HT101": knobs["files"]})
    assert list(box.glob("*.tmp")) == []
    assert (box / "a").read_text() == "old\n"


def test_a_register_whose_old_value_cannot_be_written_again_is_named_by_revert(box: Path) -> None:
    def read(host: Host) -> dict[str, Reading]:
        return {"gpu": Reading((read_or_none(host, str(box / "reg")) or "a reserved code").strip())}

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        return Step("HT101", subject, "run", "gpu MaxReadReq", have, want, ("tee", str(box / "reg")), ())

    class Tee(LiveHost):
        def execute(self, argv: Sequence[str], timeout: float = 60) -> Ran:
            assert argv, "an empty command"
            return self.run(argv, timeout, b"4096")

    made = replace(knob(box, "a")["files"], read=read, step=step)
    assert engine.tune(Tee(), {"files": "4096"}, {"files": made}, {"HT101": made}, False).changed
    steps, (found,) = engine.revert(Tee(), {"HT101": made})
    assert steps == [] and "cannot be written again" in found.summary


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
        (["files"], {}, {"files": "want"}),
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


def test_an_entry_that_is_not_there_is_refused(box: Path) -> None:
    knobs = knob(box, "a")
    tune(LiveHost(), knobs)
    with pytest.raises(Refused, match="there is no entry 7"):
        engine.revert(LiveHost(), {"HT101": knobs["files"]}, to=7)
    assert (box / "a").read_text() == "new\n"
