# SPDX-License-Identifier: Apache-2.0
"""Models into a real tmpfs: mounted, copied, killed at every step, resumed, refused, and read by a container."""

from __future__ import annotations

import json
import mmap
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hosttune.core import engine
from hosttune.core.door.live import LiveHost
from hosttune.core.knobs import boot_units
from hosttune.core.lxc import models as in_container
from hosttune.core.model import Refused
from hosttune.core.stage import declared, drop, manifest, pages, progress, space, tmpfs, verify
from hosttune.core.wanted.profile import Profile, validate
from tests.kernel.conftest import MakeContainer
from tests.kernel.container import REPOSITORY, Container
from tests.kernel.staged import FILES, MOUNT, bring, command, filled, ids, is_whole, kill, scratched, seen
from tests.kernel.staged import model as model  # fixtures
from tests.kernel.staged import shm as shm
from tests.kernel.view import mount, scratch
from tests.unit.stage_models import COMMIT, GGUF, cached, plain, read_back


def test_model_is_staged_whole_and_a_second_run_touches_and_reads_nothing(model: Path) -> None:
    planned = bring("tiny", model, dry_run=True)
    assert not MOUNT.exists() and [a.name for a in planned.actions] == ["mount", "copy"] and not planned.changed
    events: list[str] = []
    done = bring("tiny", model, told=lambda now: events.append(now.event))
    assert done.changed and ids(done, "fail", "error") == set(), done.findings
    assert events[0] == "start" and events[-1] == "end" and events.count("file") == len(FILES)
    is_whole("tiny", FILES)
    assert {p.stat().st_mode & 0o777 for p in MOUNT.rglob("*") if p.is_file() and p.suffix != ".json"} == {0o644}
    assert {(p.stat().st_uid, p.stat().st_mode & 0o777) for p in [MOUNT, *MOUNT.rglob("*")] if p.is_dir()} == {(0, 0o755)}

    weights = list(MOUNT.rglob("*.safetensors"))
    for path in weights:
        os.utime(path, ns=(0, path.stat().st_mtime_ns))  # a read would move the access time (relatime)
    before = {p: p.stat() for p in MOUNT.rglob("*")}
    door = LiveHost()
    again = declared.bring(door, Profile(), "tiny", str(model))
    assert not again.changed and door.effects == [] and again.actions == ()
    assert {p: (s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for p, s in before.items()} == {
        p: (p.stat().st_ino, p.stat().st_mtime_ns, p.stat().st_ctime_ns) for p in MOUNT.rglob("*")}
    assert [p.stat().st_atime_ns for p in weights] == [0, 0, 0]
    weights[0].read_bytes()
    assert weights[0].stat().st_atime_ns > 0, "and this clock does move"


def test_mount_has_what_this_kernel_takes(model: Path) -> None:
    bring("tiny", model)
    mounted = tmpfs.see(LiveHost()).mounted
    assert mounted and mounted.source == "hosttune-models" and mounted.size < space.memory(LiveHost()).room
    options = set(mounted.options)
    assert {"nosuid", "nodev", "noexec"} <= options
    if Path(tmpfs.THP).exists():
        assert mounted.option("huge") == "within_size"
    if tmpfs.see(LiveHost()).release >= (6, 4):
        assert mounted.option("noswap")


def test_large_file_lies_in_huge_pages() -> None:
    if not Path(tmpfs.THP).exists():
        pytest.skip("this kernel has no huge pages for shared memory")
    files = {"m.gguf": GGUF + os.urandom(1 << 20) * 40}
    bring("huge", plain(scratch("model"), files))
    with (MOUNT / "huge/m.gguf").open("rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:: 1 << 20]
        entry = Path("/proc/self/smaps").read_text().partition("m.gguf\n")[2]
        mapped = next(int(line.split()[1]) for line in entry.splitlines() if line.startswith("ShmemPmdMapped:"))
    assert mapped >= 32 << 10, "kB in 2 MiB pages"


def test_older_kernel_that_refuses_an_option_gets_the_mount_without_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmpfs._options
    monkeypatch.setattr(tmpfs, "_options", lambda size, newer: real(size, [o.replace("noswap", "nosuchoption") for o in newer]))
    done = bring("tiny", model)
    assert ids(done, "fail", "error") == set()
    mounted = tmpfs.see(LiveHost()).mounted
    assert mounted and not mounted.option("noswap")


def test_second_model_enlarges_the_mount_and_keeps_its_flags(model: Path) -> None:
    bring("tiny", model)
    before = tmpfs.see(LiveHost()).mounted
    files = {"m.gguf": GGUF + os.urandom(1 << 20) * 200}
    done = bring("second", plain(scratch("second"), files))
    after = tmpfs.see(LiveHost()).mounted
    assert before and after and after.size > before.size and ids(done, "fail", "error") == set()
    assert set(before.options) - {o for o in before.options if o.startswith("size=")} <= set(after.options)
    assert read_back(MOUNT / "tiny") == FILES


def test_snapshot_of_a_hub_cache_is_staged_as_files_and_checked_by_its_own_hashes() -> None:
    cache = scratch("hub")
    snapshot = cached(cache, files=FILES)
    done = declared.bring(LiveHost(), Profile(), "tiny", "hf:org/tiny@main", [str(cache)])
    assert ids(done, "fail", "error") == set()
    is_whole("tiny", FILES)
    assert not any(p.is_symlink() for p in MOUNT.rglob("*"))
    rows = {row["path"]: row for row in json.loads(Path(manifest.manifest_path("tiny")).read_text())["files"]}
    shard = "model-00001-of-00003.safetensors"
    assert rows[shard]["sha256"] == (snapshot / shard).resolve().name

    drop.drop(LiveHost(), "tiny")
    blob = (snapshot / shard).resolve()
    with blob.open("r+b") as f:
        f.seek(1 << 20)
        f.write(b"!")
    failed = declared.bring(LiveHost(), Profile(), "tiny", str(snapshot))
    (finding,) = [f for f in failed.findings if f.status == "fail"]
    assert finding.id == "HT506" and "its name in the cache says" in finding.summary
    assert not (MOUNT / "tiny").exists() and not Path(manifest.manifest_path("tiny")).exists()


KILLS = {
    "before the mount": ("tmpfs", "prepare", 1, "before"),
    "after the mount": ("tmpfs", "prepare", 1, "after"),
    "while pages are reserved": ("copy", "reserve", 3, "after"),
    "before the first write": ("copy", "write", 1, "before"),
    "in the middle of a file": ("copy", "write", 2, "after"),
    "after a file, before its note": ("add", "_record", 2, "before"),
    "after a file and its note": ("add", "_record", 2, "after"),
    "after some files": ("add", "_record", 4, "after"),
    "before the rename": ("copy", "move", 1, "before"),
    "between rename and manifest": ("copy", "move", 1, "after"),
    "before the manifest": ("manifest", "dump", 1, "after"),
}
@pytest.mark.parametrize("where", KILLS)
def test_killed_anywhere_it_is_not_staged_and_the_next_run_ends_whole(where: str, model: Path) -> None:
    kill(model, KILLS[where])
    assert manifest.load(LiveHost(), "tiny") is None, "no manifest before the end"
    kept = set(manifest.done(LiveHost(), "tiny"))
    copied: list[str] = []
    done = bring("tiny", model, told=lambda now: copied.append(now.file) if now.event == "file" else None)
    assert ids(done, "fail", "error") == set(), done.findings
    assert len(copied) == len(FILES) - len(kept), "what was whole is not copied again"
    is_whole("tiny", FILES)


REPLACED = {
    "before the manifest goes": ("add", "_record", 1, "after"),
    "before the name goes": ("copy", "move", 1, "before"),
    "after the name went": ("copy", "move", 1, "after"),
    "in the middle of a file": ("copy", "write", 1, "after"),
    "between rename and manifest": ("copy", "move", 2, "after"),
}


@pytest.mark.parametrize("where", REPLACED)
def test_killed_while_it_replaces_a_model_the_next_run_ends_with_the_new_one(where: str, model: Path) -> None:
    bring("tiny", model)
    changed = dict(FILES, **{"config.json": b'{"architectures": ["Other"]}'})
    (model / "config.json").write_bytes(changed["config.json"])
    kill(model, REPLACED[where])
    have = manifest.load(LiveHost(), "tiny")
    if have:
        assert manifest.damage(LiveHost(), str(MOUNT / "tiny"), have.files) == [], "a manifest never lies"
    assert ids(bring("tiny", model), "fail", "error") == set()
    is_whole("tiny", changed)


def test_damage_by_name_size_or_time_is_told_and_only_that_is_copied_again(model: Path) -> None:
    bring("tiny", model)
    shard, config = MOUNT / "tiny/model-00002-of-00003.safetensors", MOUNT / "tiny/config.json"
    shard.write_bytes(b"short")
    config.unlink()
    assert "HT502" in ids(seen({"tiny": str(model)}), "fail")
    copied: list[str] = []
    bring("tiny", model, told=lambda now: copied.append(now.file) if now.event == "file" else None)
    assert sorted(copied) == ["config.json", shard.name]
    is_whole("tiny", FILES)


def test_model_that_cannot_fit_is_refused_with_the_sum_before_anything_is_made() -> None:
    folder = scratch("hub") / "models--org--giant/snapshots" / COMMIT
    folder.mkdir(parents=True)
    blob = folder.parent.parent / "blobs" / ("f" * 64)  # where the hub's hash is known, only the copy itself reads it
    blob.parent.mkdir()
    blob.write_bytes(GGUF)
    os.truncate(blob, 1 << 44)
    (folder / "m.gguf").symlink_to(blob)
    door = LiveHost()
    done = declared.bring(door, Profile(), "giant", str(folder))
    (found,) = done.findings
    assert found.id == "HT503" and "17.6 TB are wanted" in found.summary and "less a reserve of" in found.summary
    assert door.effects == [] and not MOUNT.exists()


def test_mount_that_others_fill_is_full_before_the_copy_and_frees_what_it_took(model: Path) -> None:
    filler = MOUNT / "filler"

    def fill(now: progress.Progress) -> None:
        if now.event == "start":
            free = os.statvfs(MOUNT)
            with filler.open("wb") as f:
                os.posix_fallocate(f.fileno(), 0, free.f_bavail * free.f_bsize - (4 << 20))

    done = bring("tiny", model, told=fill)
    (found,) = [f for f in done.findings if f.status == "fail"]
    assert found.id == "HT503" and "full before the copy began" in found.summary
    assert read_back(MOUNT / ".hosttune/tiny.partial") == {}
    filler.unlink()
    assert ids(bring("tiny", model), "fail") == set()
    is_whole("tiny", FILES)


@pytest.mark.parametrize("when", ["now", "later"])
def test_mount_that_others_fill_during_the_copy_is_told_and_what_is_whole_is_kept(when: str, model: Path) -> None:
    filler, files = MOUNT / "filler", {**FILES, **{"%02d.txt" % n: b"x" for n in range(30)}}  # its manifest needs some pages
    plain(model, files)

    def fill(now: progress.Progress) -> None:
        if now.event == "file" and not filler.exists():
            filled(filler)

    done = bring("tiny", model, told=fill, threads=1, when=when)
    (found,) = [f for f in done.findings if f.status == "fail"]
    assert found.id == "HT503" and "was filled by somebody else during the copy" in found.summary
    assert manifest.load(LiveHost(), "tiny") is None
    (told,) = [f for f in seen({}).findings if f.id == "HT502"]
    assert told.hint.command == "hosttune stage drop tiny", "it takes memory, and can be seen and dropped"
    filler.unlink()
    assert ids(bring("tiny", model), "fail") == set()
    assert ids(verify.verify(LiveHost(), ["tiny"]), "fail", "error") == set()
    is_whole("tiny", files)


@pytest.mark.parametrize("change", ["vanishes", "shrinks", "changes"])
def test_source_that_changes_during_the_copy_is_told_and_what_is_whole_is_kept(change: str, model: Path) -> None:
    victim = model / "tokenizer.json"
    data = victim.read_bytes()

    def harm(now: progress.Progress) -> None:
        if now.event == "start":
            victim.unlink() if change == "vanishes" else victim.write_bytes(b"" if change == "shrinks" else b"[]!")

    done = bring("tiny", model, told=harm, threads=1)
    (found,) = [f for f in done.findings if f.status == "fail"]
    assert found.id == "HT506" and str(victim) in found.evidence[0]
    assert manifest.load(LiveHost(), "tiny") is None and not (MOUNT / "tiny").exists()
    kept = manifest.done(LiveHost(), "tiny")
    assert "model-00001-of-00003.safetensors" in kept and "tokenizer.json" not in kept
    victim.write_bytes(data)
    assert ids(bring("tiny", model), "fail") == set()
    is_whole("tiny", FILES)


def test_staged_model_stays_well_when_its_source_is_unplugged(model: Path) -> None:
    bring("tiny", model)
    model.rename(str(model) + ".away")
    again = bring("tiny", model)
    assert not again.changed and ids(again, "ok") == {"HT501"}


def test_two_at_once_the_second_waits_and_finds_it_done(model: Path) -> None:
    code = "import sys; sys.argv[0] = 'hosttune'; from hosttune.cli import main; sys.exit(main(sys.argv[1:]))"
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-c", code, "stage", "add", "tiny", "--source", str(model), "-o", "json"]
    runs = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    said = [json.loads(out) for out, _ in told]
    assert sorted((row["changed"], [a["name"] for a in row["hosts"][0]["actions"]]) for row in said) == [
        (False, []), (True, ["mount", "copy"])], "each tells what it did itself"
    is_whole("tiny", FILES)


def test_who_waits_for_another_run_says_so_and_waits_as_long_as_that_may_take(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    other = LiveHost().lock(manifest.LOCK)
    other.__enter__()

    def told(now: progress.Progress) -> None:
        events.append(now.event)
        if now.event == "wait" and manifest.TURN_SECONDS:
            other.__exit__(None, None, None)

    with monkeypatch.context() as patch, pytest.raises(Refused, match="another process holds the lock"):
        patch.setattr(manifest, "TURN_SECONDS", 0)
        bring("tiny", model, told=told)
    assert ids(bring("tiny", model, told=told), "fail", "error") == set()
    assert events[:3] == ["wait", "wait", "start"]
    assert "TimeoutStartSec=%d\n" % manifest.TURN_SECONDS in boot_units.unit(boot_units.STAGE_UNIT, "hosttune")


def test_half_copied_model_is_told_from_one_that_a_run_is_at(model: Path) -> None:
    kill(model, ("add", "_record", 4, "after"))
    with LiveHost().lock(manifest.LOCK):
        told = [seen({}), seen({"tiny": str(model)})]
    words = ["%s %s" % (f.summary, f.evidence) for report in told for f in report.findings if f.id == "HT502"]
    assert len(words) == 2 and all("pid %d (" % os.getpid() in each and "stages models now" in each for each in words), words
    (alone,) = [f for f in seen({}).findings if f.id == "HT502"]
    assert "no run goes on with it" in alone.summary and alone.hint.command == "hosttune stage drop tiny"


def test_what_is_to_be_pasted_names_the_source_of_a_model_that_nobody_declares() -> None:
    model = plain(scratch("a model"), FILES)
    profile = validate({"models": {"tiny": {"source": str(model)}}})
    for name, words in (("tiny", "hosttune stage add tiny"), ("other", f"hosttune stage add other --source '{model}'")):
        planned = declared.bring(LiveHost(), profile, name, str(model), dry_run=True)
        assert [f.hint.command for f in planned.findings] == [words]
        assert shlex.join(planned.actions[-1].argv) == words


def test_two_models_to_bring_are_one_mount_and_its_fix_names_one_of_them() -> None:
    profile = validate({"models": {name: {"source": str(plain(scratch(name), FILES))} for name in ("tiny", "other")}})
    seen = declared.overview(LiveHost(), profile)
    assert [(a.name, a.subject) for a in seen.actions] == [("mount", str(MOUNT)), ("copy", "tiny"), ("copy", "other")]
    assert [f.hint.command for f in seen.findings if f.id == "HT507"] == ["hosttune stage add tiny"]


def test_what_is_mapped_is_neither_dropped_nor_replaced(model: Path) -> None:
    bring("tiny", model)
    shard = MOUNT / "tiny/model-00001-of-00003.safetensors"
    with shard.open("rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ):
        with pytest.raises(Refused, match="in use by pid %d" % os.getpid()):
            drop.drop(LiveHost(), "tiny")
        (model / "config.json").write_bytes(b'{"architectures": ["Other"]}')
        with pytest.raises(Refused, match="in use by"):
            bring("tiny", model)
        assert shard.exists() and Path(manifest.manifest_path("tiny")).exists()
    assert drop.drop(LiveHost(), "tiny").changed
    assert list(MOUNT.iterdir()) == [MOUNT / ".hosttune"] and list((MOUNT / ".hosttune").iterdir()) == []


@pytest.mark.parametrize("whose", ["mount", "files", "folder"])
def test_what_somebody_else_put_there_is_left_alone(whose: str, model: Path) -> None:
    if whose == "folder":
        bring("other", model)
        (MOUNT / "tiny").mkdir()
    else:
        MOUNT.mkdir()
    if whose == "mount":
        mount("-t", "tmpfs", "theirs", str(MOUNT))
    theirs = (MOUNT / "tiny" if whose == "folder" else MOUNT) / "x"
    theirs.write_text("theirs")
    with pytest.raises(Refused) as e:
        bring("tiny", model)
    assert e.value.way_out and theirs.read_text() == "theirs"


def test_model_that_only_memory_has_is_no_source(model: Path) -> None:
    bring("tiny", model)
    with pytest.raises(Refused, match="which the next boot empties"):
        bring("other", MOUNT / "tiny")
    assert not (MOUNT / "other").exists()


@pytest.mark.parametrize("what", ["a link", "a link to nothing", "a folder of a user", "a file"])
def test_nothing_is_mounted_on_what_any_user_can_make_in_dev_shm(what: str, model: Path) -> None:
    elsewhere = scratch("elsewhere")
    if what.startswith("a link"):
        MOUNT.symlink_to(elsewhere / "gone" if what.endswith("nothing") else elsewhere)
    elif what == "a file":
        MOUNT.write_text("")
    else:
        MOUNT.mkdir()
        os.chown(MOUNT, 65534, 65534)
    with pytest.raises(Refused) as e:
        bring("tiny", model)
    assert e.value.way_out and not os.path.ismount(elsewhere) and not os.path.ismount(MOUNT) and not list(elsewhere.iterdir())


def profile_for(container: str, model: Path, restart: str = "never", inside: str = "/srv/models") -> Profile:
    return validate({"mode": "apply", "models": {"tiny": {"source": str(model), "inside": inside}},
                     "containers": {container: {"restart": restart}},
                     "engines": {"e": {"in": "ct:" + container, "engine": "llama.cpp", "model": "tiny", "port": 1}}})  # fmt: skip


@pytest.mark.parametrize("unprivileged", [False, True], ids=["privileged", "unprivileged"])
def test_container_reads_the_model_at_srv_models_after_its_restart(
    unprivileged: bool, model: Path, make_container: MakeContainer
) -> None:
    container = make_container(unprivileged=unprivileged).start(booted=True)
    was, pid = container.config.read_bytes(), container.pid
    container.attach("dd", "if=/dev/zero", "of=/dev/shm/work", "bs=1M", "count=3")
    profile = profile_for(container.name, model)
    done = declared.bring(LiveHost(), profile, "tiny")
    (pending,) = [f for f in done.findings if f.status == "fail"]
    assert pending.id == "HT505" and "3.0 MiB in its own tmpfs /dev/shm" in pending.hint.costs and container.pid == pid
    line = b"lxc.mount.entry = /dev/shm/models srv/models none bind,ro,optional,create=dir\n"
    assert container.config.read_bytes() == was + line

    idle = declared.bring(LiveHost(), profile, "tiny", restart="idle")
    assert container.pid == pid and "HT505" in ids(idle, "fail"), "something would be lost"
    done = declared.bring(LiveHost(), profile, "tiny", restart="always")
    assert container.pid != pid and ids(done, "fail", "error") == set(), done.findings
    container.wait_booted()
    for name in ("config.json", "model-00002-of-00003.safetensors", "a b\nc/\u00e4.json"):
        told = container.attach("sha256sum", "-z", "/srv/models/tiny/" + name).stdout.split()[0]
        assert told == subprocess.run(["sha256sum", "-z", model / name], capture_output=True, text=True).stdout.split()[0]
    refused = container.attach("touch", "/srv/models/tiny/x")
    assert refused.returncode != 0 and "Read-only file system" in refused.stderr

    door = LiveHost()
    again = declared.bring(door, profile, "tiny")
    assert not again.changed and door.effects == []
    assert ids(declared.overview(LiveHost(), profile), "fail", "error") == set()
    container.restart(booted=True)
    assert container.attach("cat", "/srv/models/tiny/config.json").stdout.encode() == FILES["config.json"]
    engine.revert(LiveHost(), {})
    assert container.config.read_bytes() == was


@pytest.mark.parametrize("unprivileged", [False, True], ids=["privileged", "unprivileged"])
def test_engine_with_the_path_built_in_sees_the_model_below_the_containers_own_dev_shm(
    unprivileged: bool, model: Path, make_container: MakeContainer
) -> None:
    container = make_container(unprivileged=unprivileged).start(booted=True)
    was = container.config.read_bytes()
    profile = profile_for(container.name, model, inside="/dev/shm/models")
    done = declared.bring(LiveHost(), profile, "tiny", restart="always")
    assert ids(done, "fail", "error") == set(), done.findings
    container.wait_booted()
    assert container.attach("cat", "/dev/shm/models/tiny/config.json").stdout.encode() == FILES["config.json"]
    assert "Read-only" in container.attach("touch", "/dev/shm/models/tiny/x").stderr
    assert container.attach("sh", "-c", "echo x > /dev/shm/own && stat -c %a /dev/shm").stdout == "1777\n", "and it has its own"
    lines = container.config.read_bytes()[len(was) :].decode().splitlines()
    assert [line.split()[3] for line in lines] == ["dev/shm", "dev/shm/models"]
    again = declared.bring(LiveHost(), profile, "tiny", restart="always")
    assert not again.changed and again.actions == ()
    engine.revert(LiveHost(), {})
    assert container.config.read_bytes() == was


def test_container_that_is_started_before_the_mount_is_told_from_one_that_sees_it(
    model: Path, make_container: MakeContainer
) -> None:
    container = make_container("lxc.mount.entry = /dev/shm/models srv/models none bind,ro,optional,create=dir\n").start()
    done = declared.bring(LiveHost(), profile_for(container.name, model), "tiny")
    assert "HT505" in ids(done, "fail") and done.steps == (), "the entry is there, the mount came later"
    container.restart()
    assert ids(declared.overview(LiveHost(), profile_for(container.name, model)), "fail") == set()


def test_other_entry_at_srv_models_is_refused_and_the_model_is_staged_all_the_same(
    model: Path, make_container: MakeContainer
) -> None:
    container = make_container("lxc.mount.entry = /etc srv/models none bind,ro,create=dir\n")
    was = container.config.read_bytes()
    done = declared.bring(LiveHost(), profile_for(container.name, model), "tiny")
    (found,) = [f for f in done.findings if f.status == "fail"]
    assert found.id == "HT428" and "another entry fills /srv/models" in found.summary
    assert container.config.read_bytes() == was
    is_whole("tiny", FILES)


def test_systemd_mounts_it_by_a_unit_and_does_so_at_the_next_boot_before_anything_else(make_container: MakeContainer) -> None:
    model = plain(scratch("model"), FILES)
    container = make_container(
        f"lxc.mount.entry = {REPOSITORY}/hosttune opt/code/hosttune none bind,ro,create=dir\n"
        f"lxc.mount.entry = {model} opt/model none bind,ro,create=dir\n"
    ).start(booted=True)
    code = (
        "import sys; sys.path.insert(0, '/opt/code')\n"
        "from hosttune.core.door.live import LiveHost; from hosttune.core.wanted.profile import Profile\n"
        "from hosttune.core.stage import declared\n"
        "door = LiveHost(); done = declared.bring(door, Profile(), 'tiny', '/opt/model')\n"
        "print([f.summary for f in done.findings if f.status in ('fail', 'error')], [e['target'] for e in door.effects])"
    )
    told = container.attach("python3", "-c", code)
    assert told.returncode == 0 and told.stdout.startswith("[] "), told.stdout + told.stderr
    assert "systemctl start dev-shm-models.mount" in told.stdout
    unit = container.attach("systemctl", "show", "dev-shm-models.mount", "-p", "ActiveState,UnitFileState,FragmentPath").stdout
    assert "ActiveState=active" in unit and "UnitFileState=enabled" in unit
    escaped = container.attach("systemd-escape", "--path", "--suffix=mount", manifest.MOUNT).stdout.strip()
    assert tmpfs.unit_name(manifest.MOUNT) == escaped
    _end_of_users(container)
    assert container.attach("ls", "/dev/shm").stdout == "models\n", "what users left is gone"
    again = container.attach("python3", "-c", code)
    assert again.stdout == "[] []\n", "and the model is whole: " + again.stdout + again.stderr
    container.restart(booted=True)
    after = container.attach("findmnt", "-n", "-o", "SOURCE,OPTIONS", manifest.MOUNT).stdout
    assert after.startswith("hosttune-models"), "a boot brings the mount back, without models"
    assert container.attach("ls", "-A", manifest.MOUNT).stdout == ""
    assert container.attach("python3", "-c", code).stdout.startswith("[] "), "and staging fills it again"


def _end_of_users(container: Container) -> None:
    """RemoveIPC= and DynamicUser= take away what a user left in /dev/shm, as logind does at a last logout: by the same code."""
    container.attach("sh", "-c", "useradd -u 1234 llm && mkdir /dev/shm/his && touch /dev/shm/his/x && chown -R llm /dev/shm/his")
    for properties in (("User=llm", "RemoveIPC=yes"), ("DynamicUser=yes",)):
        words = [word for one in properties for word in ("-p", one)]
        ran = container.attach("systemd-run", "--wait", "-q", *words, "sh", "-c", "touch /dev/shm/hers")
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("path", ["/dev/shm/models", "/srv/a-b/c.d", "/.x/\u00e4 y", "/a//b/"])
def test_unit_names_are_those_of_systemd_escape(path: str) -> None:
    told = subprocess.run(["systemd-escape", "--path", "--suffix=mount", path], capture_output=True, text=True)
    if told.returncode:
        pytest.fail("systemd-escape: " + told.stderr)
    assert tmpfs.unit_name(path.replace("//", "/")) == told.stdout.strip()


def test_entry_is_the_documented_one() -> None:
    assert in_container.VALUE in (REPOSITORY / "docs/findings/HT505.md").read_text()


def test_no_descriptor_is_left_on_what_was_removed(model: Path) -> None:
    bring("tiny", model)
    (model / "config.json").write_bytes(b'{"architectures": ["Other"]}')
    bring("tiny", model)
    scratched(MOUNT / "tiny/model-00002-of-00003.safetensors", 2 << 20)
    verify.verify(LiveHost(), [], repair=True)
    pages.look("tiny")
    drop.drop(LiveHost(), "tiny")
    held = [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if os.path.islink("/proc/self/fd/" + fd)]
    mapped = Path("/proc/self/maps").read_text()
    assert not [path for path in held if "models" in path] and str(MOUNT) not in mapped
    assert os.statvfs(MOUNT).f_bfree == os.statvfs(MOUNT).f_blocks - blocks_of_folders(), "all of its memory is back"


def blocks_of_folders() -> int:
    """tmpfs counts none for a folder; hosttune's own folder is all that is left."""
    assert [p.name for p in MOUNT.iterdir()] == [".hosttune"]
    return sum(p.stat().st_blocks for p in MOUNT.rglob("*")) * 512 // os.statvfs(MOUNT).f_bsize


def test_nobody_without_root_stages_drops_or_repairs(model: Path) -> None:
    bring("tiny", model)
    for words in (("add", "other", "--source", str(model)), ("drop", "tiny"), ("verify", "--repair")):
        code = "import sys; from hosttune.cli import main; sys.exit(main(sys.argv[1:]))"
        argv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", code, "stage", *words]
        run = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
        assert run.returncode == 2 and "root is needed" in run.stderr and "Traceback" not in run.stderr, run.stderr
    is_whole("tiny", FILES)


def test_progress_without_a_terminal_is_a_line_an_event(model: Path) -> None:
    done = command("add", "tiny", "--source", str(model))
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and "to copy" in lines[0] and len([x for x in lines if ", file " in x]) == len(FILES)
    assert "hashed" in lines[-1] and "\r" not in done.stderr and "\033" not in done.stderr


def test_progress_of_one_large_file_without_a_terminal_is_a_line_a_tenth_with_rate_and_time_left() -> None:
    model = plain(scratch("model"), {"m.gguf": GGUF + os.urandom(1 << 20) * 200})
    done = command("add", "one", "--source", str(model), "--limit", "200MB/s")
    lines = re.findall(r"^one: .* \(\d+%\), 0 of 1 files, .*/s(?:, \d+ s left)?$", done.stderr, re.MULTILINE)
    assert done.returncode == 0 and 1 < len(lines) <= 10, done.stderr
    verified = command("verify", "one", "--limit", "200MB/s")
    assert verified.returncode == 0 and 1 < verified.stderr.count("verify: ") <= 10 and "\r" not in verified.stderr
