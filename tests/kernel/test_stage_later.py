# SPDX-License-Identifier: Apache-2.0
"""Models that are copied without hashes, told as such, and made good by verify: with the hub's hash, or with their source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.model import Finding, Report
from hosttune.core.stage import copy, declared, drop, later, manifest, nodes, verify
from hosttune.core.wanted.profile import validate
from tests.kernel.container import REPOSITORY
from tests.kernel.staged import FILES, MOUNT, bring, command, filled, ids, is_whole, kill, scratched, seen
from tests.kernel.staged import model as model  # fixtures
from tests.kernel.staged import shm as shm
from tests.kernel.view import scratch
from tests.unit.stage_models import cached, plain, tensors

SHARD = "model-00002-of-00003.safetensors"


def staged() -> manifest.Manifest:
    have = manifest.load(LiveHost(), "tiny")
    assert have
    return have


def verified(**more: object) -> tuple[Report, Finding]:
    """The report and its one finding."""
    report = verify.verify(LiveHost(), ["tiny"], **more)  # type: ignore[arg-type]
    (found,) = report.findings
    return report, found


def test_model_that_was_not_hashed_says_so_until_verify_has_compared_it_with_its_source(model: Path) -> None:
    bring("tiny", model)
    hashed = {file.path: file.chunks for file in staged().files}
    drop.drop(LiveHost(), "tiny")
    done = bring("tiny", model, when="later")
    assert ids(done, "fail", "error") == set() and {"HT501"} <= ids(done, "ok") and ids(done, "warn") == {"HT512"}
    assert not any(file.chunks for file in staged().files)
    assert {f.path for f in staged().unhashed} == {path for path, data in FILES.items() if data}
    for told in (seen({"tiny": str(model)}), bring("tiny", model), bring("tiny", model, when="later"), seen({})):
        (doubt,) = [f for f in told.findings if f.id == "HT512"]
        assert "whole by names and sizes, and not verified yet" in doubt.summary and not told.changed

    counts: list[tuple[int, int]] = []
    report, found = verified(told=lambda now, total: counts.append((now, total)))
    assert (found.status, report.changed) == ("ok", True) and "are what was copied" in found.summary
    assert counts[-1] == (2 * staged().size, 2 * staged().size), "both sides were read"
    assert {file.path: file.chunks for file in staged().files} == hashed and not staged().unhashed
    model.rename(str(model) + ".away")
    report, found = verified()
    assert (found.status, report.changed) == ("ok", False), "and nobody needs the source again"
    is_whole("tiny", FILES)
    scratched(MOUNT / "tiny" / SHARD, 1 << 20)
    assert verified()[1].status == "fail"


def test_hash_that_the_hub_knows_is_compared_and_the_source_is_left_alone() -> None:
    snapshot = cached(scratch("hub"), files=FILES)
    bring("tiny", snapshot, when="later")
    for path in snapshot.parents[1].glob("blobs/*"):
        if len(path.name) == 64:
            path.unlink()
    report, found = verified()
    assert (found.status, report.changed) == ("ok", True) and not staged().unhashed


def test_copy_that_is_not_what_its_source_holds_is_mended_from_there(model: Path) -> None:
    bring("tiny", model, when="later")
    scratched(MOUNT / "tiny" / SHARD, 1 << 20)
    report, found = verified()
    assert (found.id, found.status) == ("HT502", "fail") and "are not what its source holds" in found.have
    assert [f.path for f in staged().unhashed] == [SHARD], "what is right is noted all the same"
    report, found = verified(repair=True)
    assert found.status == "ok" and not staged().unhashed
    is_whole("tiny", FILES)


def test_damage_of_the_source_that_a_copy_without_hashes_took_over_is_found_by_the_hubs_hash() -> None:
    snapshot = cached(scratch("hub"), files=FILES)
    scratched((snapshot / SHARD).resolve(), 1 << 20)
    assert ids(bring("tiny", snapshot, when="later"), "fail", "error") == set()
    assert verified()[1].status == "fail"
    _, found = verified(repair=True)
    assert found.status == "fail" and "its source is damaged too" in found.summary
    assert [f.path for f in staged().unhashed] == [SHARD]


@pytest.mark.parametrize("what", ["gone", "changed"])
def test_without_the_source_that_was_copied_nothing_can_be_told_and_the_way_out_leads_out(what: str, model: Path) -> None:
    bring("tiny", model, when="later")
    file = model / SHARD
    if what == "gone":
        file.rename(file.with_suffix(".away"))
    else:
        os.utime(file)
    report, found = verified()
    assert (found.id, found.status) == ("HT512", "error") and "of 1 of 8 files nobody knows a hash" in found.summary
    assert what in found.summary and str(file) in found.evidence[0]
    assert [f.path for f in staged().unhashed] == [SHARD]
    if what == "gone":
        assert "hosttune stage drop tiny" in found.hint.command
        file.with_suffix(".away").rename(file)
    else:
        assert found.hint.command == "hosttune stage add tiny --source %s" % model
        copied: list[str] = []
        bring("tiny", model, told=lambda now: copied.append(now.file) if now.event == "file" else None)
        assert copied == [SHARD]
    assert verified()[1].status == "ok" and not staged().unhashed


def test_source_that_changes_while_it_is_compared_proves_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring("tiny", model, when="later")
    real = copy.compare

    def compared(*args: object, **more: object) -> object:
        out = real(*args, **more)  # type: ignore[arg-type]
        os.utime(model / SHARD)
        return out

    monkeypatch.setattr(copy, "compare", compared)
    assert verified()[1].status == "error" and [f.path for f in staged().unhashed] == [SHARD]


def test_model_that_is_staged_anew_while_it_is_read_is_not_called_verified(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bring("tiny", model, when="later")
    settle = later.settle

    def settled(*args: object) -> object:
        drop.drop(LiveHost(), "tiny")
        (model / "config.json").write_bytes(b'{"architectures": ["Other"]}')
        bring("tiny", model, when="later")
        return settle(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(later, "settle", settled)
    assert verified()[1].status == "error"
    assert len(staged().unhashed) == len(FILES) - 1, "the manifest is that of the new copy, as it was"


def test_run_that_was_killed_and_goes_on_hashed_knows_what_it_had_not_hashed(model: Path) -> None:
    kill(model, ("add", "_record", 4, "after"), when="later")
    kept = {path for path, file in manifest.done(LiveHost(), "tiny").items() if file.size}
    assert kept
    assert ids(bring("tiny", model), "warn") == {"HT512"}
    assert {f.path for f in staged().unhashed} == kept
    assert verified()[1].status == "ok" and not staged().unhashed
    is_whole("tiny", FILES)


def test_verify_that_is_killed_before_its_note_is_simply_run_again(model: Path) -> None:
    bring("tiny", model, when="later")
    kill("verify", ("manifest", "dump", 1, "after"))
    assert staged().unhashed
    assert verified()[1].status == "ok" and not staged().unhashed


def test_second_copy_of_an_unverified_one_is_compared_with_the_source_and_not_with_that(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = str(nodes.with_memory(LiveHost())[0])
    both = (nodes.Copy("tiny", node), nodes.Copy("tiny@node1", node))  # this machine may have one node only
    monkeypatch.setattr(nodes, "copies", lambda host, name, placement: both)
    profile = validate({"models": {"tiny": {"source": str(model), "placement": "per-node", "hash": "later"}}})
    declared.bring(LiveHost(), profile, "tiny")
    second = manifest.load(LiveHost(), "tiny@node1")
    assert second and second.folder == str(model) and second.unhashed
    for copied in ("tiny", "tiny@node1"):
        scratched(MOUNT / copied / SHARD, 1 << 20)
    report = verify.verify(LiveHost(), ["tiny"])
    assert [(f.subject, f.status) for f in report.findings] == [("tiny", "fail"), ("tiny@node1", "fail")]
    mended = verify.verify(LiveHost(), ["tiny"], repair=True)
    assert ids(mended, "fail", "error") == set() and (MOUNT / "tiny@node1" / SHARD).read_bytes() == FILES[SHARD]


def test_note_that_finds_no_room_is_told_and_is_made_the_next_time(model: Path) -> None:
    bring("tiny", model, when="later")
    filled(MOUNT / "filler")
    report, found = verified()
    assert (found.id, found.status, report.changed) == ("HT512", "warn", False) and "No space left" in found.summary
    (MOUNT / "filler").unlink()
    assert verified()[1].status == "ok"
    is_whole("tiny", FILES)


def test_who_is_not_root_compares_and_is_told_that_nothing_was_noted(model: Path) -> None:
    bring("tiny", model, when="later")
    for path in [model, *model.parents][:-1]:
        path.chmod(0o755)
    code = "import sys; sys.argv[0] = 'hosttune'; from hosttune.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", code, "stage", "verify"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "root alone can note that" in done.stdout and "sudo hosttune stage verify tiny" in done.stdout
    for closed in (model / SHARD, model):
        closed.chmod(0)
        done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True)
        assert done.returncode == 1 and "EACCES" in done.stdout and "sudo hosttune stage verify tiny" in done.stdout
    assert staged().unhashed


def test_shard_of_zeros_is_refused_although_its_hash_is_known_for_nobody_would_compare_it() -> None:
    made = tensors({"big": ("uint8", (1 << 19,))})
    files = {"model.safetensors": made[: -(1 << 19)] + bytes(1 << 19), "config.json": b'{"architectures": ["X"]}'}
    snapshot = cached(scratch("hub"), files=files)
    done = command("add", "tiny", "--source", str(snapshot), "--hash", "later")
    assert done.returncode == 2 and "filled with zeros" in done.stderr and not MOUNT.exists()


def test_command_says_what_was_not_done_and_what_does_it(model: Path) -> None:
    done = command("add", "tiny", "--source", str(model), "--hash", "later", "--limit", "none", "--nice", "3")
    assert done.returncode == 0, done.stderr
    assert "not hashed yet" in done.stderr and "hosttune stage verify tiny" in done.stdout
    done = command("verify", "tiny")
    assert done.returncode == 0 and "HT512" not in command("status").stdout


def test_profile_says_when_a_model_is_hashed_and_an_option_says_otherwise(model: Path) -> None:
    profile = validate({"models": {"tiny": {"source": str(model), "hash": "later"}}})
    assert ids(declared.bring(LiveHost(), profile, "tiny", when="now"), "warn") == set()
    drop.drop(LiveHost(), "tiny")
    assert ids(declared.bring(LiveHost(), profile, "tiny"), "warn") == {"HT512"}


def test_small_files_and_odd_names_are_compared_too() -> None:
    files = {**FILES, "z\nz.txt": b"x", "empty.txt": b""}
    bring("tiny", plain(scratch("model"), files), when="later")
    scratched(MOUNT / "tiny/z\nz.txt", 0)
    _, found = verified()
    assert found.status == "fail" and found.have == "'z\\nz.txt': bytes 0 to 1 are not what its source holds"
