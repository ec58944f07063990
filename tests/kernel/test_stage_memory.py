# SPDX-License-Identifier: Apache-2.0
"""Where staged models lie, what goes for a new one, what is mended, and how a wipe is told."""

from __future__ import annotations

import json
import mmap
import os
import re
import subprocess
from pathlib import Path

import pytest

from hosttune import preflight
from hosttune.core.door.live import LiveHost
from hosttune.core.model import Refused, Report
from hosttune.core.stage import declared, drop, manifest, nodes, pages, space, tmpfs, verify
from hosttune.core.wanted.profile import Profile, validate
from tests.kernel.staged import FILES, MOUNT, bring, ids, is_whole, kill, scratched, seen
from tests.kernel.staged import model as model  # fixtures
from tests.kernel.staged import shm as shm
from tests.kernel.view import scratch, unmount
from tests.unit.stage_models import GGUF, cached, contents, plain, read_back, tensors


def placed(name: str, model: Path, placement: str, **more: object) -> Report:
    profile = validate({"models": {name: {"source": str(model), "placement": placement}}})
    return declared.bring(LiveHost(), profile, name, **more)  # type: ignore[arg-type]


def policy(path: Path) -> str:
    """The memory policy of a file's pages, as the kernel shows it of a mapping."""
    with path.open("rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[0] is not None
        return next(line.split()[1] for line in Path("/proc/self/numa_maps").read_text().splitlines() if str(path) in line)


def test_model_is_bound_to_a_node_and_placed_anew_when_the_profile_says_otherwise(model: Path) -> None:
    node = nodes.with_memory(LiveHost())[0]
    shard = MOUNT / "tiny/model-00001-of-00003.safetensors"
    bring("tiny", model)
    assert not policy(shard).startswith("bind")
    told = placed("tiny", model, "node:%d" % node, dry_run=True)
    assert "lies over all nodes in memory, and shall lie on NUMA node %d" % node in told.findings[0].summary
    assert ids(placed("tiny", model, "node:%d" % node), "fail", "error") == set()
    assert policy(shard) == "bind:%d" % node
    is_whole("tiny", FILES)
    assert not placed("tiny", model, "node:%d" % node).changed
    profile = validate({"models": {"tiny": {"source": str(model), "placement": "node:%d" % node}}})
    assert {f.status for f in preflight.models(LiveHost(), profile, ())} <= {"ok", "skip"}
    kill_folder = plain(scratch("model"), FILES)
    drop.drop(LiveHost(), "tiny")
    kill(kill_folder, ("add", "_record", 4, "after"))
    copied: list[str] = []
    placed("tiny", kill_folder, "node:%d" % node, told=lambda now: copied.append(now.file) if now.event == "file" else None)
    assert len(copied) == len(FILES), "what a run for another placement left is not where it shall be"


def test_one_copy_a_node_comes_from_the_first_and_all_of_it_goes_with_the_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes.with_memory(LiveHost())[0]
    # This machine may have one node only: two copies, both bound to it, are what a second node changes.
    monkeypatch.setattr(nodes, "copies", lambda host, name, placement: (
        nodes.Copy(name, str(node)), nodes.Copy(name + "@node1", str(node))))  # fmt: skip
    done = placed("tiny", model, "per-node")
    assert [f.subject for f in done.findings if f.id == "HT501"] == ["tiny", "tiny@node1"]
    second = manifest.load(LiveHost(), "tiny@node1")
    assert second and second.folder == str(MOUNT / "tiny") and read_back(MOUNT / "tiny@node1") == FILES
    assert not placed("tiny", model, "per-node").changed
    scratched(MOUNT / "tiny/model-00001-of-00003.safetensors", 2 << 20)
    assert "HT502" in ids(verify.verify(LiveHost(), ["tiny"]), "fail")
    drop.drop(LiveHost(), "tiny")
    assert list(MOUNT.iterdir()) == [MOUNT / ".hosttune"] and list((MOUNT / ".hosttune").iterdir()) == []


def test_all_copies_fit_or_none_is_made(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = str(nodes.with_memory(LiveHost())[0])
    both = (nodes.Copy("tiny", node), nodes.Copy("tiny@node1", node))
    monkeypatch.setattr(nodes, "copies", lambda host, name, placement: both)
    size = sum(len(data) for data in FILES.values())
    narrow(monkeypatch, size + size // 2)
    (found, *_) = placed("tiny", model, "per-node").findings
    assert found.id == "HT503" and not MOUNT.exists()
    assert space.size_text(2 * size) + " are wanted" in found.summary


def test_status_tells_pages_and_nodes_as_the_kernel_shows_them() -> None:
    if not Path(tmpfs.THP).exists():
        pytest.skip("this kernel has no huge pages for shared memory")
    bring("tiny", plain(scratch("model"), {"m.gguf": GGUF + os.urandom(1 << 20) * 32}))
    (found,) = [f for f in declared.overview(LiveHost(), Profile(), look=pages.look).findings if f.id == "HT510"]
    seen = pages.look("tiny")
    assert found.status == "ok" and seen and seen.huge * 2 >= seen.size and sum(seen.nodes.values()) == pytest.approx(1)
    subprocess.run(["mount", "-o", "remount,huge=never", str(MOUNT)], check=True)
    drop.drop(LiveHost(), "tiny")
    bring("tiny", plain(scratch("model"), {"m.gguf": GGUF + os.urandom(1 << 20) * 32}))
    (found,) = [f for f in declared.overview(LiveHost(), Profile(), look=pages.look).findings if f.id == "HT510"]
    assert found.status == "warn" and "0% in huge pages" in found.have
    small = pages.look("tiny")
    assert [f.status for huge in (True, False) for f in pages.judge(nodes.Copy("tiny"), small, "add", huge)] == ["warn", "ok"]
    (wrong,) = pages.judge(nodes.Copy("tiny", "7"), seen, "add")
    assert wrong.status == "fail" and "other nodes than node 7" in wrong.summary


def narrow(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """As if memory had this much room for what is not staged yet."""
    real = space.memory
    before = manifest.bytes_below(LiveHost(), str(MOUNT)) if MOUNT.exists() else 0

    def less(host: LiveHost) -> space.Memory:
        now = real(host)
        staged = manifest.bytes_below(host, str(MOUNT)) if MOUNT.exists() else 0
        return space.Memory(now.total, room + now.reserve + before - staged)

    monkeypatch.setattr(space, "memory", less)


def test_what_would_make_room_is_said_first_and_goes_only_by_the_owners_word(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = validate({"models": {"kept": {"source": str(model)}, "new": {"source": str(model)}}})
    for name in ("kept", "older", "younger"):
        declared.bring(LiveHost(), profile, name, str(model))
    size = sum(len(data) for data in FILES.values())
    narrow(monkeypatch, size // 2)
    refused = declared.bring(LiveHost(), profile, "new")
    (found,) = refused.findings
    assert found.id == "HT503" and found.hint.command == "hosttune stage add new --evict" and "older, " in found.hint.costs
    assert "younger" not in found.hint.costs and {p.name for p in MOUNT.iterdir()} == {".hosttune", "kept", "older", "younger"}
    planned = declared.bring(LiveHost(), profile, "new", evict=True, dry_run=True)
    assert [(a.name, a.subject) for a in planned.actions] == [("drop", "older"), ("copy", "new")] and (MOUNT / "older").exists()
    done = declared.bring(LiveHost(), profile, "new", evict=True)
    assert ids(done, "fail", "error") == set() and {p.name for p in MOUNT.iterdir()} == {".hosttune", "kept", "younger", "new"}


def test_nothing_goes_when_all_of_it_would_not_be_enough(model: Path) -> None:
    bring("other", model)
    profile = validate({"models": {"new": {"source": str(model), "engine-memory": "900G"}}})
    done = declared.bring(LiveHost(), profile, "new", evict=True)
    (found,) = done.findings
    assert found.id == "HT503" and "--evict" not in found.hint.command and "9" in found.summary.split(";")[-1]
    assert not done.changed and (MOUNT / "other").exists(), "what engines need is missing already: no model makes up for it"


def test_model_that_is_in_use_is_never_evicted_and_declared_ones_go_last(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = validate({"models": {"kept": {"source": str(model)}, "new": {"source": str(model)}}})
    for name in ("kept", "used"):
        declared.bring(LiveHost(), profile, name, str(model))
    size = sum(len(data) for data in FILES.values())
    with (MOUNT / "used/model-00001-of-00003.safetensors").open("rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ):
        narrow(monkeypatch, size // 2)
        done = declared.bring(LiveHost(), profile, "new", evict=True)
        assert ids(done, "fail") == set() and {p.name for p in MOUNT.iterdir()} == {".hosttune", "used", "new"}
        large = plain(scratch("large"), contents(shards=9))
        (found,) = declared.bring(LiveHost(), validate({}), "more", str(large), evict=True).findings
        assert found.id == "HT503" and "--evict" not in found.hint.command and (MOUNT / "new").exists(), "all of it would not do"


def test_wipe_is_told_from_a_reboot_and_from_what_was_never_staged(model: Path) -> None:
    def said() -> set[str]:
        return ids(seen({"tiny": str(model)}), "fail") - {"HT507"}

    assert said() == {"HT501"}
    bring("tiny", model)
    unmount(MOUNT)
    assert said() == {"HT509"}
    record = Path(manifest.record_path("tiny"))
    record.write_text(json.dumps({**json.loads(record.read_text()), "boot": "another"}))
    (found,) = [f for f in seen({"tiny": str(model)}).findings if f.id == "HT501"]
    assert "since the machine was started anew" in found.summary
    (undeclared,) = seen({}).findings
    assert (undeclared.id, undeclared.status) == ("HT501", "warn"), "a boot brings back what is declared"
    assert undeclared.hint.command == "hosttune stage add tiny --source %s" % model
    drop.drop(LiveHost(), "tiny")
    assert seen({}).findings == () and said() == {"HT501"}
    bring("tiny", model)
    drop.drop(LiveHost(), "tiny")
    assert said() == {"HT501"} and not record.exists(), "what its owner dropped was not wiped"


def test_command_for_what_a_reboot_took_can_be_pasted_and_the_name_alone_is_enough() -> None:
    model = plain(scratch("a model"), FILES)
    bring("tiny", model)
    unmount(MOUNT)
    told = [seen({}), verify.verify(LiveHost(), ["tiny"])]
    assert {f.hint.command for report in told for f in report.findings} == {"hosttune stage add tiny --source '%s'" % model}
    (known,) = verify.verify(LiveHost(), ["tiny"], declared=["tiny"]).findings
    assert known.hint.command == "hosttune stage add tiny", "the profile says where a declared one comes from"
    assert ids(declared.bring(LiveHost(), Profile(), "tiny"), "fail", "error") == set()
    is_whole("tiny", FILES)


def test_note_of_an_older_version_names_no_source_and_says_as_much(model: Path) -> None:
    bring("tiny", model)
    unmount(MOUNT)
    record = Path(manifest.record_path("tiny"))
    record.write_text(json.dumps({key: value for key, value in json.loads(record.read_text()).items() if key != "source"}))
    (found,) = seen({}).findings
    assert found.id == "HT509" and found.hint.command == "hosttune stage add tiny --source DIR"
    with pytest.raises(Refused, match="declares no model tiny"):
        declared.bring(LiveHost(), Profile(), "tiny")


def test_tmpfs_that_takes_no_more_files_is_refused_before_the_copy_and_counts_what_is_there(model: Path) -> None:
    bring("tiny", model)
    subprocess.run(["mount", "-o", "remount,nr_inodes=80", str(MOUNT)], check=True)
    many = plain(scratch("many"), {**FILES, **{"%02d.txt" % n: b"x" for n in range(60)}})
    done = bring("many", many)
    (found,) = [f for f in done.findings if f.status == "fail"]
    assert found.id == "HT503" and re.search(r"68 files are wanted and the tmpfs takes \d+ more", found.summary)
    assert not done.changed and bring("tiny", model).actions == ()
    subprocess.run(["mount", "-o", "remount,nr_inodes=200", str(MOUNT)], check=True)
    assert ids(bring("many", many), "fail", "error") == set()


def test_engines_need_of_memory_counts_in_the_sum(model: Path) -> None:
    profile = validate({"models": {"tiny": {"source": str(model), "engine-memory": "900G"}}})
    (found,) = declared.bring(LiveHost(), profile, "tiny").findings
    assert found.id == "HT503" and "966 GB for engines" in found.summary and not MOUNT.exists()


def test_verify_finds_one_wrong_byte_and_repair_copies_its_chunk_alone() -> None:
    files = {"m.gguf": GGUF + bytes(range(1, 256)) * (80 << 12)}
    model = plain(scratch("model"), files)
    bring("tiny", model)
    file = MOUNT / "tiny/m.gguf"
    scratched(file, 40 << 20)
    assert ids(seen({}), "fail") == set()
    (found,) = verify.verify(LiveHost(), []).findings
    assert (found.id, found.status) == ("HT502", "fail") and file.name in found.have
    assert found.hint.command == "hosttune stage verify --repair tiny"
    inode = file.stat().st_ino
    door = LiveHost()
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as engine:
        mended = verify.verify(door, ["tiny"], repair=True)
        assert engine[40 << 20] == files["m.gguf"][40 << 20], "who has it mapped sees it come right"
    assert ids(mended, "fail", "error") == set() and mended.changed
    assert door.effects[-1]["bytes"] == 32 << 20 and file.stat().st_ino == inode
    is_whole("tiny", files)


def test_repair_that_is_killed_is_told_and_the_next_add_copies_that_file_alone() -> None:
    files = {"m.gguf": GGUF + bytes(range(1, 256)) * (40 << 12), "other.gguf": GGUF + b"x" * 99}
    model = plain(scratch("model"), files)
    bring("tiny", model)
    scratched(MOUNT / "tiny/m.gguf", 5 << 20)
    kill("repair", ("chunks", "write", 2, "after"))
    assert "HT502" in ids(seen({"tiny": str(model)}), "fail")
    copied: list[str] = []
    bring("tiny", model, told=lambda now: copied.append(now.file) if now.event == "file" else None)
    assert copied == ["m.gguf"]
    is_whole("tiny", files)


def test_repair_of_a_file_with_the_hubs_hash_finds_the_chunk_by_hashing_both_sides() -> None:
    files = {"model.safetensors": tensors({"a": ("uint8", (70 << 20,))}), "config.json": b'{"architectures": ["X"]}'}
    snapshot = cached(scratch("hub"), files=files)
    bring("tiny", snapshot)
    scratched(MOUNT / "tiny/model.safetensors", 65 << 20)
    door = LiveHost()
    assert ids(verify.verify(door, [], repair=True), "fail", "error") == set()
    assert door.effects[-1]["bytes"] == len(files["model.safetensors"]) - (64 << 20)
    is_whole("tiny", files)


@pytest.mark.parametrize("what", ["changed", "damaged", "gone"])
def test_repair_from_a_source_that_is_not_what_it_was_is_refused_and_told(what: str) -> None:
    files = {"model.safetensors": tensors({"a": ("uint8", (1 << 20,))}), "config.json": b'{"architectures": ["X"]}'}
    model = cached(scratch("hub"), files=files) if what == "damaged" else plain(scratch("model"), files)
    bring("tiny", model)
    scratched(MOUNT / "tiny/model.safetensors", 1 << 19)
    source = (model / "model.safetensors").resolve()
    source.unlink() if what == "gone" else scratched(source, 77777)
    was = (MOUNT / "tiny/model.safetensors").read_bytes()
    (found,) = verify.verify(LiveHost(), [], repair=True).findings
    assert (found.id, found.status) == ("HT502", "fail") and "was not mended" in found.summary
    assert "hosttune stage drop tiny" in found.hint.command and (MOUNT / "tiny/model.safetensors").read_bytes() == was
