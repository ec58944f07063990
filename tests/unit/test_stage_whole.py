# SPDX-License-Identifier: Apache-2.0
"""Each rule by which a source is a whole model or not: safetensors of the real library, caches that huggingface_hub made."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.stage import source, whole
from hosttune.core.stage.source import Doubt, NotWhole
from tests.bench import tiny_gguf
from tests.unit import hub_server
from tests.unit.hub_server import Hub, serving
from tests.unit.stage_models import GGUF, downloaded, plain, tensors

LAYERS, WIDTH, WORDS = 4, 16, 40
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
CONFIG: dict[str, Any] = {"architectures": ["TinyForCausalLM"], "num_hidden_layers": LAYERS, "hidden_size": WIDTH,
                          "vocab_size": WORDS}  # fmt: skip
TOKENIZER: dict[str, Any] = {"model": {"vocab": {"w%d" % n: n for n in range(WORDS)}}, "added_tokens": [{"id": WORDS - 1}]}


def text(data: object) -> bytes:
    return json.dumps(data).encode()


def llama() -> dict[str, bytes]:
    """A model of two shards with an index, a config and a tokenizer that agree."""
    names = {"model.layers.%d.mlp.weight" % n: ("bfloat16", (WIDTH, WIDTH)) for n in range(LAYERS)}
    first = {"model.embed_tokens.weight": ("bfloat16", (WORDS, WIDTH)), **dict(list(names.items())[:2])}
    second = {**dict(list(names.items())[2:]), "big": ("uint8", (1 << 19,))}
    index = {"metadata": {"total_size": WORDS * WIDTH * 2 + LAYERS * WIDTH * WIDTH * 2 + (1 << 19)},
             "weight_map": {**dict.fromkeys(first, FIRST), **dict.fromkeys(second, SECOND)}}  # fmt: skip
    return {FIRST: tensors(first), SECOND: tensors(second), "model.safetensors.index.json": text(index),
            "config.json": text(CONFIG), "tokenizer.json": text(TOKENIZER), "generation_config.json": b"{}"}  # fmt: skip


def judge(folder: Path) -> tuple[Doubt, ...]:
    return whole.refuse_unless_whole(LiveHost(), source.read(LiveHost(), str(folder)))


def test_whole_model_is_taken_without_a_doubt(tmp_path: Path) -> None:
    assert judge(plain(tmp_path / "m", llama())) == ()


Change = Callable[[Path], object]


def put(name: str, data: bytes) -> Change:
    return lambda folder: plain(folder, {name: data})


def less(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def config(**more: object) -> Change:
    return put("config.json", text({**CONFIG, **more}))


def index(change: Callable[[dict[str, Any]], object]) -> Change:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        data = json.loads(path.read_bytes())
        change(data)
        path.write_bytes(text(data))

    return edit


def bare(**files: bytes) -> Change:
    """Only these in place of all shards and the index."""

    def edit(folder: Path) -> None:
        for name in (FIRST, SECOND, "model.safetensors.index.json"):
            (folder / name).unlink()
        plain(folder, {name.replace("__", "."): data for name, data in files.items()})

    return edit


def header(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    """Rewrite the header of a shard, its length kept right."""

    def edit(folder: Path) -> None:
        data = (folder / name).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        rows = json.loads(data[8:end])
        change(rows)
        new = text(rows)
        (folder / name).write_bytes(len(new).to_bytes(8, "little") + new + data[end:])

    return edit


def sparse(folder: Path) -> None:
    """As a download that reserved its file and lost the middle."""
    path = folder / SECOND
    data = path.read_bytes()
    with path.open("wb") as f:
        f.write(data[:4096])
        f.seek(len(data) - 4096)
        f.write(data[-4096:])
    assert path.stat().st_size == len(data)


def zeroed(folder: Path, share: float = 1.0) -> None:
    """The end of it, all but its head at most."""
    path = folder / SECOND
    data = path.read_bytes()
    kept = max(4096, int(len(data) * (1 - share)))
    path.write_bytes(data[:kept] + bytes(len(data) - kept))


def gguf_part(of: int) -> bytes:
    """A part of a split GGUF file, by its header."""
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len("split.count")) + b"split.count" + struct.pack("<IH", 2, of)


def packed(folder: Path) -> None:
    bare(model__safetensors=tensors({"model.layers.3.mlp.weight_packed": ("uint8", (8, 8))}))(folder)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def both(*changes: Callable[[Path], object]) -> Callable[[Path], object]:
    """One after the other."""

    def run(folder: Path) -> None:
        for change in changes:
            change(folder)

    return run


REFUSED: dict[str, tuple[str, Change, str]] = {
    "directories only": ("EMPTY", empty, "holds no files"),
    "no weights": ("EMPTY", bare(), "none of its 3 files holds weights"),
    "a shard of no bytes": ("EMPTY", put(FIRST, b""), "the file is empty"),
    "no config": ("EMPTY", less("config.json"), "config.json is missing"),
    "a dangling link": ("DANGLING", lambda f: (f / "x.json").symlink_to("nowhere"), "a link to nothing"),
    "a link out of it": ("DANGLING", lambda f: (f / "x.json").symlink_to("/etc/hostname"), "leaves the source"),
    "an unfinished download": ("PARTIAL", put("x.aria2", b"x"), "has not ended"),
    "an unfinished download into it": ("PARTIAL", put(".cache/huggingface/download/x.incomplete", b"x"), "has not ended here"),
    "a pointer for weights": ("LFS_POINTER", put(FIRST, b"version https://git-lfs.github.com/spec/v1\n"), "LFS pointer"),
    "a pointer for a tokenizer": ("LFS_POINTER", put("tokenizer.model", b"version https://git-lfs.github.com/spec/v1\n"), "LFS"),
    "config that is cut": ("JSON", put("config.json", b'{"architectures": ['), "this is not JSON"),
    "tokenizer that is cut": ("JSON", put("tokenizer.json", b"{"), "this is not JSON"),
    "tokenizer that is a list": ("JSON", put("tokenizer.json", b"[]"), "a JSON object is wanted"),
    "no architectures": ("JSON", config(architectures=None), "names no architectures"),
    "code of its own is missing": ("JSON", config(auto_map={"AutoModel": "modeling_x.X"}), "wants modeling_x.py"),
    "a shard is missing": ("INDEX", less(SECOND), "1 of 2 shards are missing, first " + SECOND),
    "a tensor is in no shard": ("INDEX", index(lambda i: i["weight_map"].update(more=FIRST)), "first more"),
    "numbered without index": ("INDEX", bare(**{"model-00001-of-00003__safetensors": tensors({"a": ("uint8", (9,))})}), "2 of 3"),
    "an index that is empty": ("INDEX", index(lambda i: i.clear()), "it names no tensor"),
    "an index that leaves a shard out": ("INDEX", index(lambda i: i.update(
        weight_map={t: s for t, s in i["weight_map"].items() if s == FIRST})), "it names no tensor of " + SECOND),
    "a part of GGUF under another name": ("INDEX", bare(m__gguf=gguf_part(3)), "one of 3 parts, and its name does not say so"),
    "parts of GGUF by two counts": ("INDEX", bare(**{"m-00001-of-00001__gguf": gguf_part(2)}), "one of 2 parts"),
    "a split of GGUF is missing": ("INDEX", bare(**{"m-00002-of-00002__gguf": GGUF}), "first m-00001-of-00002.gguf"),
    "a shard is cut": ("HEADER", lambda f: os.truncate(f / FIRST, 1000), "and its header wants"),
    "a shard is longer": ("HEADER", lambda f: os.truncate(f / FIRST, 9999), "and its header wants"),
    "a shard is none": ("HEADER", put(FIRST, b"\xff" * 4096), "no safetensors file"),
    "a header of zeros": ("HEADER", put(FIRST, bytes(4096)), "no safetensors file"),
    "a header that is no JSON": ("HEADER", put(FIRST, (4).to_bytes(8, "little") + b"{bad"), "cannot be read"),
    "tensors overlap": ("HEADER", header(SECOND, lambda r: r["big"].update(data_offsets=[8, 1 << 19])), "overlap"),
    "a shape that is not its bytes": ("HEADER", header(SECOND, lambda r: r["big"].update(shape=[7])), "its shape wants 7"),
    "a tensor in two shards": ("HEADER", both(lambda f: shutil.copy(f / SECOND, f / FIRST), index(
        lambda i: i.update(weight_map={"big": SECOND, "model.layers.2.mlp.weight": FIRST}))), "shards of two versions"),
    "a tensor in two shards without index": ("HEADER", both(less("model.safetensors.index.json"), lambda f: shutil.copy(
        f / SECOND, f / FIRST)), "shards of two versions"),
    "a shape below nothing": ("HEADER", header(SECOND, lambda r: r["big"].update(shape=[-1, -(1 << 19)])), "cannot be read"),
    "an archive that is cut": ("HEADER", bare(pytorch_model__bin=b"PK\3\4" + b"x" * 9999), "an archive without its end"),
    "sparse": ("HOLES", sparse, "the file is sparse: no data at byte 4096"),
    "filled with zeros": ("HOLES", zeroed, "filled with zeros"),
    "no tokenizer": ("TOKENIZER", less("tokenizer.json"), "the tokenizer is missing"),
    "weights of a smaller model": ("MATCH", config(num_hidden_layers=9), "has 9 layers, and the weights have 4"),
}  # fmt: skip
DOUBTED: dict[str, tuple[str, Change, str]] = {
    "another total": ("INDEX", index(lambda i: i["metadata"].update(total_size=1)), "the index says 1 bytes"),
    "the same weights twice": ("INDEX", put("consolidated.safetensors", tensors({"a": ("uint8", (9,))})), "both are staged"),
    "the same weights in another form": ("INDEX", put("pytorch_model.bin", b"x"), "both are staged"),
    "an index that leaves a tensor out": ("INDEX", index(lambda i: i["weight_map"].pop("big")), "1 tensors of its shards"),
    "two models without index": ("INDEX", bare(**{name: tensors({name: ("uint8", (9,))}) for name in (
        "a__safetensors", "b__safetensors")}), "a.safetensors and b.safetensors lie side by side"),
    "the folder above two models": ("INDEX", both(shutil.rmtree, lambda f: plain(f, {"b/m.gguf": GGUF, "a/m.gguf": GGUF})),
                                    "weights lie in a and b"),
    "a type of another time": ("HEADER", header(SECOND, lambda r: r["big"].update(dtype="Q9")), "big is of type Q9"),
    "an end of zeros": ("HOLES", lambda f: zeroed(f, 0.2), "13 of 64 samples of it are zeros"),
    "more words than the model": ("TOKENIZER", config(vocab_size=7), "40 words, and config.json 7"),
    "more layers than config": ("MATCH", config(num_hidden_layers=2), "has 2 layers, and the weights have 4"),
    "another width": ("MATCH", config(hidden_size=99), "is 16 wide"),
    "packed, and config does not say so": ("MATCH", packed, "is not quantised, and"),
    "config says quantised": ("MATCH", config(quantization_config={"quant_method": "gptq"}), "and no tensor is"),
}  # fmt: skip
TAKEN: dict[str, Change] = {
    "shards without index": less("model.safetensors.index.json"),
    "an archive with its end": bare(pytorch_model__bin=b"PK\3\4" + b"x" * 9999 + b"PK\5\6" + bytes(18)),
    "a tokenizer of another name": both(less("tokenizer.json"), put("tokenizer.model.v3", b"x")),
    "a drafter borrows its tokenizer": both(less("tokenizer.json"), config(architectures=["LlamaForCausalLMEagle3"])),
    "a part that predicts further": config(num_hidden_layers=3, num_nextn_predict_layers=1),
    "text below text_config": put("config.json", text({"architectures": ["X"], "text_config": CONFIG})),
    "code of another repository": config(auto_map={"AutoModel": "other/repo--modeling_x.X"}),
    "Mistral's own form": both(bare(consolidated__safetensors=tensors({"a": ("uint8", (9,))})), less("config.json"),
                              put("params.json", b"{}")),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_whole_is_refused_by_its_rule_with_the_place(what: str, tmp_path: Path) -> None:
    code, change, words = REFUSED[what]
    change(plain(tmp_path / "m", llama()))
    with pytest.raises(NotWhole) as e:
        judge(tmp_path / "m")
    assert (e.value.code, words in e.value.what) == (code, True), e.value.what
    assert e.value.where.startswith(str(tmp_path / "m")) and e.value.way_out


@pytest.mark.parametrize("what", DOUBTED)
def test_what_is_odd_is_told_and_taken(what: str, tmp_path: Path) -> None:
    code, change, words = DOUBTED[what]
    change(plain(tmp_path / "m", llama()))
    (doubt,) = judge(tmp_path / "m")
    assert doubt.code == code and words in doubt.what and Path(doubt.where).exists()


@pytest.mark.parametrize("what", TAKEN)
def test_what_looks_odd_and_is_right_is_taken(what: str, tmp_path: Path) -> None:
    TAKEN[what](plain(tmp_path / "m", llama()))
    assert judge(tmp_path / "m") == ()


def test_zeros_in_a_file_whose_hash_the_hub_knows_are_the_hashs_business(tmp_path: Path) -> None:
    made = tensors({"big": ("uint8", (1 << 19,))})
    zeros = made[: -(1 << 19)] + bytes(1 << 19)
    with serving(Hub("org/tiny", {"model.safetensors": zeros, "config.json": b'{"architectures": ["X"]}'})) as hub:
        assert judge(downloaded(hub, tmp_path / "hub")) == ()


def test_gguf_is_as_long_as_its_header_says(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    path = tmp_path / "m/tiny.gguf"
    tiny_gguf.write(path, 2)
    assert judge(tmp_path / "m") == ()
    data = path.read_bytes()
    for wrong, words in ((data[:-4096], "and its header wants"), (data[:200], "ends after the file"),
                         (b"GGML" + data[4:], "no GGUF file"), (data[:4] + b"\x63" + data[5:], "does not know")):  # fmt: skip
        path.write_bytes(wrong)
        with pytest.raises(NotWhole, match=words) as e:
            judge(tmp_path / "m")
        assert e.value.code == "HEADER"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A cache and a local_dir, both as huggingface_hub itself leaves them; tests work on copies."""
    top = tmp_path_factory.mktemp("real")
    with serving(Hub("org/tiny", llama())) as hub:
        downloaded(hub, top / "hub")
        downloaded(hub, top / "hub", "local_dir=%r" % str(top / "local"))
        yield top / "hub", top / "local"


@pytest.fixture
def cache(real: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of that cache."""
    shutil.copytree(real[0], tmp_path / "hub", symlinks=True)
    return tmp_path / "hub"


def top_of(cache: Path) -> Path:
    return cache / "models--org--tiny"


def snapshot_of(cache: Path) -> Path:
    return top_of(cache) / "snapshots" / hub_server.COMMIT


def without_list(cache: Path) -> None:
    shutil.rmtree(top_of(cache) / "trees")


def wiped(cache: Path) -> None:
    """The founding case: a tmpfs that was emptied of files, and kept its directories."""
    for path in cache.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            path.unlink()


def stray(cache: Path) -> None:
    (top_of(cache) / "blobs/ab.0.incomplete").touch()


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda cache: os.truncate((snapshot_of(cache) / name).resolve(), size)


CACHES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "wiped, directories kept": ("NO_SNAPSHOT", wiped, "is not in the Hugging Face cache"),
    "no ref": ("NO_SNAPSHOT", lambda c: (top_of(c) / "refs/main").unlink(), "is not in the Hugging Face cache"),
    "a ref that is torn": ("NO_SNAPSHOT", lambda c: (top_of(c) / "refs/main").write_text("89ab"), "is not in the"),
    "blobs wiped, links kept": ("DANGLING", lambda c: shutil.rmtree(top_of(c) / "blobs"), "a link to nothing"),
    "a small file is gone": ("SIZE", lambda c: (snapshot_of(c) / "generation_config.json").unlink(), "this revision is missing"),
    "a small file is cut": ("SIZE", cut("config.json", 9), "9 bytes long, and"),
    "a shard is cut": ("SIZE", cut(FIRST, 999), "999 bytes long, and"),
    "a small file is another": (
        "HASH", lambda c: (snapshot_of(c) / "generation_config.json").resolve().write_bytes(b"[]"), "what the hub calls"),
    "a download goes on, no list": ("PARTIAL", both(without_list, stray), "has not ended"),
    "a shard is cut, no list": ("HEADER", both(without_list, cut(FIRST, 999)), "its header wants"),
}  # fmt: skip


@pytest.mark.parametrize("what", CACHES)
def test_cache_of_huggingface_hub_that_is_not_whole_is_refused_by_its_rule(what: str, cache: Path) -> None:
    code, change, words = CACHES[what]
    change(cache)
    with pytest.raises(NotWhole) as e:
        whole.refuse_unless_whole(LiveHost(), source.read(LiveHost(), "hf:org/tiny@main", [str(cache)]))
    assert (e.value.code, words in e.value.what) == (code, True), e.value.what


def test_download_that_left_out_what_no_engine_opens_is_whole(tmp_path: Path) -> None:
    more = {"README.md": b"x", "original/weights.pth": b"x", "pytorch_model.bin": b"x", "other-Q4_K_M.gguf": b"x"}
    with serving(Hub("org/tiny", {**llama(), **more})) as hub:
        snapshot = downloaded(hub, tmp_path / "hub", "allow_patterns=['*.safetensors', '*.json']")
    assert not (snapshot / "README.md").exists() and judge(snapshot) == ()


def test_index_of_another_form_whose_shards_were_left_on_the_hub_is_no_shortage(tmp_path: Path) -> None:
    forms = {"pytorch_model.bin": "pytorch_model-%05d-of-00002.bin", "tf_model.h5": "tf_model-%05d-of-00002.h5"}
    indices = {form + ".index.json": text({"weight_map": {"a": shard % 1, "b": shard % 2}}) for form, shard in forms.items()}
    shards = {shard % number: b"x" * 999 for shard in forms.values() for number in (1, 2)}
    wanted = "allow_patterns=['*.safetensors', 'model.*', 'config.json', 'tokenizer.json', 'generation_config.json']"
    with serving(Hub("org/tiny", {**llama(), **indices, **shards})) as hub:
        for n, more in enumerate(("ignore_patterns=['*.bin', '*.h5']", wanted)):
            assert judge(downloaded(hub, tmp_path / str(n), more)) == ()
        snapshot = downloaded(hub, tmp_path / "half", "ignore_patterns=['pytorch_model-00002*', '*.h5']")
    with pytest.raises(NotWhole, match="1 of 2 shards are missing, first pytorch_model-00002-of-00002.bin"):
        judge(snapshot)


def test_whole_cache_gives_the_hubs_hashes_and_a_finished_list_outweighs_a_stray_download(cache: Path) -> None:
    stray(cache)
    found = source.read(LiveHost(), "hf:org/tiny@main", [str(cache)])
    assert whole.refuse_unless_whole(LiveHost(), found) == () and found.revision == hub_server.COMMIT
    hub = Hub("org/tiny", llama())
    for file in found.files:
        row = hub.row(file.path)
        assert (file.sha256, file.git) == ((row["lfs"]["oid"], "") if "lfs" in row else ("", row["oid"]))


def test_local_dir_of_huggingface_hub_gives_the_same_hashes_until_a_file_is_younger_than_its_note(
    real: tuple[Path, Path], tmp_path: Path
) -> None:
    local = tmp_path / "local"
    shutil.copytree(real[1], local)
    found = source.read(LiveHost(), str(local))
    assert whole.refuse_unless_whole(LiveHost(), found) == () and found.revision == hub_server.COMMIT
    hub = Hub("org/tiny", llama())
    assert {f.path: f.sha256 for f in found.files if f.sha256} == {n: hub.row(n)["lfs"]["oid"] for n in (FIRST, SECOND)}
    os.utime(local / FIRST, (4e9, 4e9))
    assert {f.path for f in source.read(LiveHost(), str(local)).files if f.sha256} == {SECOND}
    (local / "generation_config.json").unlink()
    with pytest.raises(NotWhole, match="generation_config.json of this revision is missing"):
        judge(local)
