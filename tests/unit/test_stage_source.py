# SPDX-License-Identifier: Apache-2.0
"""What may be a model's source, on real directories and a cache as huggingface_hub leaves it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.model import Refused
from hosttune.core.stage import source, whole
from tests.unit.stage_models import COMMIT, GGUF, cached, contents, plain

SHARD = "model-00001-of-00002.safetensors"


def read(spec: str, *caches: Path) -> source.Source:
    found = source.read(LiveHost(), spec, [str(cache) for cache in caches])
    whole.refuse_unless_whole(LiveHost(), found)
    return found


def test_directory_gives_every_file_with_size_and_time(tmp_path: Path) -> None:
    files = {**contents(), "a b\nc/\u00e4 \u4e2d.txt": b"x", "sub/deep/er.json": b"{}"}
    found = read(str(plain(tmp_path / "model", files)))
    assert {file.path: file.size for file in found.files} == {name: len(data) for name, data in files.items()}
    assert all(file.mtime == os.stat(file.source).st_mtime for file in found.files)


def test_name_that_is_no_utf8_survives(tmp_path: Path) -> None:
    folder = os.fsencode(plain(tmp_path / "model"))
    with open(folder + b"/\xff.txt", "wb") as f:
        f.write(b"x")
    assert "\udcff.txt" in {file.path for file in read(os.fsdecode(folder)).files}


def test_snapshot_of_a_cache_gives_the_blobs_and_their_digests(tmp_path: Path) -> None:
    snapshot = cached(tmp_path / "hub", files={**contents(), "sub/x.json": b"{}"})
    for spec in ("hf:org/tiny@main", "hf:org/tiny@" + COMMIT, str(snapshot)):
        found = read(spec, tmp_path / "hub")
        assert found.revision == COMMIT
        by_path = {file.path: file for file in found.files}
        assert set(by_path) == {*contents(), "sub/x.json"}
        assert by_path[SHARD].sha256 == os.path.basename(by_path[SHARD].source)
        assert by_path["config.json"].sha256 == "" and by_path["config.json"].git


def test_shared_blob_is_followed_and_keeps_the_digest_of_its_first_name(tmp_path: Path) -> None:
    snapshot = cached(tmp_path / "hub")
    blob = (snapshot / SHARD).resolve()
    (tmp_path / "hub/blobs/ab").mkdir(parents=True)
    shared = tmp_path / "hub/blobs/ab" / ("f" * 64)
    blob.rename(shared)
    blob.symlink_to("../../blobs/ab/" + shared.name)
    found = {file.path: file for file in read(str(snapshot)).files}
    assert found[SHARD].source == str(shared) and found[SHARD].sha256 == blob.name


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({}, "/home/x/.cache/huggingface/hub"),
        ({"HF_HOME": "/srv/hf"}, "/srv/hf/hub"),
        ({"HF_HOME": "/srv/hf", "HF_HUB_CACHE": "/srv/c"}, "/srv/c"),
        ({"XDG_CACHE_HOME": "/srv/x"}, "/srv/x/huggingface/hub"),
    ],
)
def test_cache_is_looked_for_where_huggingface_hub_keeps_it(environ: dict[str, str], where: str) -> None:
    assert source.hub_caches(environ, "/home/x") == (where,)


def _write(name: str, data: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return write


def _link(name: str, to: str) -> Callable[[Path], None]:
    def link(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(to)

    return link


def _circle(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "a download": (_write("abc.incomplete", b"x"), "a download has not ended"),
    "rsync's own": (_write(".%s.Ab12Cd" % SHARD, b"x"), "a download has not ended"),
    "a dangling link": (_link("extra.json", "nowhere"), "a link to nothing"),
    "a link to itself": (_link("extra.json", "extra.json"), "a link in a circle"),
    "links to each other": (_circle, "a link in a circle"),
    "a folder in itself": (_link("sub/up", ".."), "leads to a folder above itself"),
    "a link out of it": (_link("extra.json", "/etc/hostname"), "a link that leaves the source"),
    "a folder out of it": (_link("sub", "/etc"), "a link that leaves the source"),
    "a pipe": (lambda folder: os.mkfifo(folder / "pipe"), "neither a file nor a folder"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_whole_model_is_refused_with_the_place(what: str, tmp_path: Path) -> None:
    folder = plain(tmp_path / "model")
    breaks, message = BROKEN[what]
    breaks(folder)
    with pytest.raises(Refused) as e:
        read(str(folder))
    assert message in e.value.what and e.value.where.startswith(str(folder)) and e.value.way_out


@pytest.mark.parametrize(
    ("spec", "message", "way_out"),
    [
        ("hf:org/other@main", "is not in the Hugging Face cache here", "hf download org/other --revision main"),
        ("hf:org/tiny@v2", "is not in the Hugging Face cache here", "hf download org/tiny --revision v2"),
        ("models/x", "is no absolute path", ""),
        ("ssh:-oProxyCommand=x:/a", "is no absolute path", ""),
        ("ssh:host:relative", "is no absolute path", ""),
        ("/nonexistent/model", "cannot be read", "ls -lL /nonexistent/model"),
        ("/etc/hostname", "is no directory", "--source /etc"),
    ],
)
def test_source_that_is_not_here_is_refused_with_a_way_out(spec: str, message: str, way_out: str, tmp_path: Path) -> None:
    cached(tmp_path / "hub")
    with pytest.raises(Refused) as e:
        read(spec, tmp_path / "hub")
    assert message in e.value.what and way_out in e.value.way_out


def test_model_of_one_gguf_needs_no_config(tmp_path: Path) -> None:
    assert read(str(plain(tmp_path / "model", {"tiny.gguf": GGUF + b"x" * 100}))).size == 124


def test_bookkeeping_of_downloaders_is_no_part_of_the_model(tmp_path: Path) -> None:
    folder = plain(tmp_path / "model", {**contents(), ".cache/huggingface/x.metadata": b"x", ".git/config": b"x"})
    assert {file.path for file in read(str(folder)).files} == set(contents())
