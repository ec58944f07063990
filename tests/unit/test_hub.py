# SPDX-License-Identifier: Apache-2.0
"""Models from the hub, by the real huggingface_hub, against a small hub on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune import hub
from hosttune.core.door.live import LiveHost
from hosttune.core.model import Refused
from hosttune.core.stage import source, whole
from hosttune.core.wanted.profile import validate
from tests.unit.hub_server import COMMIT, Hub, serving
from tests.unit.stage_models import GGUF, contents, read_back

SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub with one model, and an environment that leads to it."""
    with serving(Hub("org/tiny", contents())) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield made


def fetch(cache: Path, revision: str = "main", token_file: str = "", told: hub.Ticked = lambda done, total: None) -> None:
    hub.fetch(LiveHost(), "org/tiny", revision, str(cache), token_file, [sys.executable], told)


def found(cache: Path, revision: str = "main") -> source.Source:
    given = source.read(LiveHost(), "hf:org/tiny@" + revision, [str(cache)])
    assert whole.refuse_unless_whole(LiveHost(), given) == ()
    return given


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_revision_is_brought_whole_and_its_commit_is_known(revision: str, server: Hub, tmp_path: Path) -> None:
    ticks: list[tuple[int, int]] = []
    fetch(tmp_path / "hub", revision, told=lambda *now: ticks.append(now))
    given = found(tmp_path / "hub", revision)
    assert given.revision == COMMIT and read_back(Path(given.folder)) == contents()
    total = sum(len(data) for data in contents().values())
    assert ticks[-1] == (total, total) and {row[1] for row in ticks} == {total}


def test_connection_that_breaks_is_resumed_in_the_middle_of_the_file(server: Hub, tmp_path: Path) -> None:
    server.cut = {SHARD: 1}
    fetch(tmp_path / "hub")
    found(tmp_path / "hub")
    assert server.fetched().count(SHARD) == 2


def test_download_that_was_cut_short_goes_on_with_the_files_that_are_missing(server: Hub, tmp_path: Path) -> None:
    server.cut = {SHARD: 99}
    with pytest.raises(Refused, match="did not end well") as e:
        fetch(tmp_path / "hub")
    assert "whole files are kept" in e.value.way_out
    server.cut, server.asked = {}, []
    fetch(tmp_path / "hub")
    found(tmp_path / "hub")
    assert server.fetched() == [SHARD]


def test_token_is_read_from_its_file_and_stands_in_no_process_list(server: Hub, tmp_path: Path) -> None:
    server.token = "hf_secret"
    with pytest.raises(Refused, match="does not show it without a token"):
        fetch(tmp_path / "hub")
    token = tmp_path / "token"
    token.write_text("hf_secret\n")
    token.chmod(0o640)
    with pytest.raises(Refused, match="others can read this token"):
        fetch(tmp_path / "hub", token_file=str(token))
    token.chmod(0o600)
    seen: list[bytes] = []

    def look(done: int, total: int) -> None:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                seen.append(Path("/proc", pid, "cmdline").read_bytes())
            except OSError:
                continue

    fetch(tmp_path / "hub", token_file=str(token), told=look)
    found(tmp_path / "hub")
    assert server.seen == {"hf_secret"} and any(b"huggingface_hub" in line for line in seen)
    assert not any(b"hf_secret" in line for line in seen)


def test_same_weights_in_other_forms_are_left_on_the_hub(server: Hub, tmp_path: Path) -> None:
    more = {"original/consolidated.00.pth": b"x" * 99, "consolidated.safetensors": b"x" * 99, "pytorch_model.bin": b"x"}
    server.files = {**contents(), **more, "README.md": b"x"}
    ticks: list[tuple[int, int]] = []
    fetch(tmp_path / "hub", told=lambda *now: ticks.append(now))
    assert read_back(Path(found(tmp_path / "hub").folder)) == {**contents(), "README.md": b"x"}
    assert ticks[-1][1] == sum(len(data) for data in contents().values()) + 1


def test_repository_of_many_gguf_models_is_not_fetched_whole(server: Hub, tmp_path: Path) -> None:
    server.files = {"m-Q4.gguf": GGUF, "m-Q8-00001-of-00002.gguf": GGUF, "m-Q8-00002-of-00002.gguf": GGUF}
    with pytest.raises(Refused, match="2 models: m-Q4.gguf, m-Q8.gguf") as e:
        fetch(tmp_path / "hub")
    assert "hf download REPO FILE.gguf" in e.value.way_out and server.fetched() == []
    server.files = {name: data for name, data in server.files.items() if "Q8" in name}
    fetch(tmp_path / "hub")
    assert len(found(tmp_path / "hub").files) == 2


@pytest.mark.parametrize(
    ("repository", "revision", "words"),
    [("org/other", "main", "no such repository"), ("org/tiny", "v9", "no such revision")],
)
def test_what_the_hub_does_not_have_is_told_with_a_way_out(
    repository: str, revision: str, words: str, server: Hub, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=words) as e:
        hub.fetch(LiveHost(), repository, revision, str(tmp_path / "hub"), "", [sys.executable])
    assert e.value.where == "hf:%s@%s" % (repository, revision) and e.value.way_out


def test_hub_that_cannot_be_reached_is_told(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Refused, match="cannot be reached"):
        fetch(tmp_path / "hub")


def test_python_without_huggingface_hub_is_passed_over_and_none_at_all_is_told(server: Hub, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(Refused, match="no Python here has huggingface_hub") as e:
        hub.fetch(LiveHost(), "org/tiny", "main", str(tmp_path / "hub"), "", [str(bare), "/nonexistent/python"])
    assert "pip install huggingface_hub" in e.value.way_out
    hub.fetch(LiveHost(), "org/tiny", "main", str(tmp_path / "hub"), "", [str(bare), sys.executable])
    found(tmp_path / "hub")


def test_engines_of_this_host_lend_their_python() -> None:
    row = {"engine": "vllm", "model": "/m", "port": 1, "venv": "/opt/vllm"}
    profile = validate({"engines": {"a": row, "b": {**row, "in": "ct:200", "venv": "/opt/inside"}}})
    assert hub.pythons(profile, {}) == [sys.executable, hub.OWN + "/bin/python", "/opt/vllm/bin/python"]
    assert hub.pythons(profile, {"HOSTTUNE_HUB_PYTHON": "/opt/x/bin/python"})[0] == "/opt/x/bin/python"


def test_download_sees_the_hubs_variables_and_nothing_else_of_the_caller() -> None:
    seen = hub.environment({"HF_TOKEN": "t", "HF_ENDPOINT": "e", "https_proxy": "p", "AWS_SECRET": "s", "PYTHONPATH": "x"})
    assert {"HF_TOKEN", "HF_ENDPOINT", "https_proxy"} <= set(seen) and not {"AWS_SECRET", "PYTHONPATH"} & set(seen)
    assert "HF_TOKEN" not in hub.environment({"HF_TOKEN": "t"}, "/root/token"), "the file that was named counts"


def test_disk_without_room_is_told_before_the_download(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, %r); from hosttune import hub_script as h; print(h.room(1 << 60, '', %r))"
    told = subprocess.run([sys.executable, "-c", code % (str(Path(hub.__file__).parents[1]), str(tmp_path / "hub"))],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert "bytes are missing, and the disk of" in told
