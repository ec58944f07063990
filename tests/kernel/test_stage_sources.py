# SPDX-License-Identifier: Apache-2.0
"""Models of the hub and of another machine into a real tmpfs, and of a machine that does not give them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.model import Refused
from hosttune.core.nextboot import promises
from hosttune.core.stage import drop, manifest, over_ssh, progress
from hosttune.core.unattended import stages
from hosttune.core.wanted.profile import validate
from tests.kernel.sshd import SshTarget
from tests.kernel.staged import FILES, MOUNT, bring, command, ids, is_whole, kill
from tests.kernel.staged import model as model  # fixtures
from tests.kernel.staged import shm as shm
from tests.kernel.view import mount, scratch, unmount
from tests.unit.hub_server import Hub, serving
from tests.unit.stage_models import cached, contents, plain, read_back


def test_model_of_the_hub_is_fetched_once_and_staged_from_the_disk_ever_after() -> None:
    cache = scratch("hub")
    with serving(Hub("org/tiny", contents(), token="hf_x")) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HOME": str(scratch("home")), "HF_TOKEN": "hf_x"}
        add = ("add", "tiny", "--source", "hf:org/tiny@main")
        planned = command(*add, "--dry-run", env=env)
        assert "hf download org/tiny --revision main" in planned.stdout and hub.asked == [] and not list(cache.iterdir())
        done = command(*add, env=env)
        assert done.returncode == 0 and "download: 6.3 MB" in done.stderr, done.stdout + done.stderr
        assert read_back(MOUNT / "tiny") == contents()
        hub.asked.clear()
        drop.drop(LiveHost(), "tiny")
        again = command(*add, env=env)
        assert again.returncode == 0 and hub.asked == [], "the disk has it"
        assert read_back(MOUNT / "tiny") == contents()
        for spec, pinned in (("hf:org/tiny@main", False), ("hf:org/tiny@" + hub.commit, True)):
            told = command("add", "tiny", "--source", spec, "-o", "json", env=env)
            odd = [row for row in json.loads(told.stdout)["hosts"][0]["findings"] if row["id"] == "HT508"]
            assert (odd == []) is pinned and (pinned or hub.commit in odd[0]["summary"])


def test_cache_of_another_user_is_named_in_the_profile_and_the_next_boot_finds_it() -> None:
    cache, roots = scratch("home"), ["/root/.cache/huggingface/hub"]
    cached(cache, files=FILES)
    model = {"source": "hf:org/tiny@main"}
    alone, named = (validate({"mode": "apply", "models": {"tiny": row}}) for row in (model, {**model, "cache": str(cache)}))
    (report,) = stages.STAGES["models"](LiveHost(), alone, lambda line: None)
    assert ids(report, "fail") == {"HT506"} and [f.have for f in promises.models(LiveHost(), alone, roots)] == ["not whole"]
    (report,) = stages.STAGES["models"](LiveHost(), named, lambda line: None)
    assert ids(report, "fail", "error") == set()
    is_whole("tiny", FILES)
    (told,) = promises.models(LiveHost(), named, roots)
    assert told.status == "warn" and told.summary == "its source is whole, but nothing stages it at boot"
    with pytest.raises(Refused, match="an absolute path"):
        validate({"models": {"tiny": {**model, "cache": "~/hub"}}})


def test_model_of_another_machine_comes_over_ssh_and_is_not_asked_for_again(old_target: SshTarget) -> None:
    with ssh_config(old_target):
        far = old_target.container.rootfs / "srv/a model"
        plain(far, FILES)
        (far / "up.json").symlink_to("config.json")
        want = {**FILES, "up.json": FILES["config.json"]}
        events: list[progress.Progress] = []
        done = bring("tiny", "ssh:target:/srv/a model", told=events.append)
        assert ids(done, "fail", "error") == set(), done.findings
        is_whole("tiny", want)
        assert [e.event for e in events].count("file") == len(want) and events[-1].bytes == sum(map(len, want.values()))
        near = {str(p.relative_to(MOUNT / "tiny")): p.stat().st_mtime_ns for p in (MOUNT / "tiny").rglob("*") if p.is_file()}
        assert near == {name: (far / name).stat().st_mtime_ns for name in want}
        old_target.container.stop()
        again = bring("tiny", "ssh:target:/srv/a model")
        assert not again.changed and ids(again, "ok") == {"HT501"}


@pytest.mark.parametrize("what", ["missing", "torn", "unknown machine", "unknown key", "changes", "dies"])
def test_model_of_another_machine_that_does_not_come_is_told_and_whole_files_are_kept(
    what: str, old_target: SshTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = plain(old_target.container.rootfs / "srv/m", FILES)
    shard = far / "model-00003-of-00003.safetensors"
    shard.unlink() if what == "missing" else os.truncate(shard, 5000) if what == "torn" else None
    machine = {"unknown machine": "nowhere.invalid"}.get(what, "target")
    with ssh_config(old_target, known=what != "unknown key"):
        if what in ("changes", "dies"):
            small = far / "tokenizer.json"  # the largest come first

            def harm(now: progress.Progress) -> None:
                if now.event == "start":
                    small.write_bytes(b"[]") if what == "changes" else None
                if now.event == "file" and what == "dies":
                    old_target.container.stop()

            monkeypatch.setattr(over_ssh, "CONNECTIONS", 1)
            done = bring("tiny", "ssh:target:/srv/m", told=harm)
            (found,) = [f for f in done.findings if f.status == "fail"]
            assert found.id == "HT506" and "target" in found.evidence[0]
            kept = manifest.done(LiveHost(), "tiny")
            assert kept and "tokenizer.json" not in kept and manifest.load(LiveHost(), "tiny") is None
            return
        with pytest.raises(Refused) as e:
            bring("tiny", "ssh:%s:/srv/m" % machine)
    words = {"missing": "1 of 3 shards are missing", "torn": "5000 bytes long", "unknown machine": "cannot be resolved",
             "unknown key": "its host key is not known"}  # fmt: skip
    assert words[what] in e.value.what and e.value.way_out and not MOUNT.exists()


def test_killed_while_it_comes_over_ssh_the_next_run_brings_what_is_missing(old_target: SshTarget) -> None:
    plain(old_target.container.rootfs / "srv/m", FILES)
    with ssh_config(old_target):
        kill("ssh:target:/srv/m", ("add", "_record", 4, "after"))
        kept = set(manifest.done(LiveHost(), "tiny"))
        copied: list[str] = []
        done = bring("tiny", "ssh:target:/srv/m", told=lambda now: copied.append(now.file) if now.event == "file" else None)
        assert ids(done, "fail", "error") == set() and len(copied) == len(FILES) - len(kept) and kept
        is_whole("tiny", FILES)


@contextmanager
def ssh_config(target: SshTarget, known: bool = True) -> Iterator[None]:
    """root's own ssh configuration is the target's, in this mount namespace."""
    folder, home = scratch("ssh"), Path.home() / ".ssh"
    text = target.config.read_text()
    (folder / "config").write_text(text if known else text.replace(str(target.known_hosts), "/dev/null"))
    home.mkdir(mode=0o700, exist_ok=True)
    mount("--bind", str(folder), str(home))
    try:
        yield
    finally:
        unmount(home)
