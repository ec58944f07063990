# SPDX-License-Identifier: Apache-2.0
"""How an engine loads a staged model: what is advised, and the time it took beside the staging."""

from __future__ import annotations

from typing import Any

import pytest

from hosttune.core.recording.replay import ReplayHost
from hosttune.core.stage import manifest
from hosttune.core.wanted.profile import validate
from hosttune.serve import declare, loader

MODEL = manifest.Manifest("m", "/srv/m", "/srv/m", "", 0.0, "1", 32 << 20, (), seconds=3.14)


def engine(kind: str, args: dict[str, str], model: str = "m") -> declare.Engine:
    row: dict[str, Any] = {"engine": kind, "model": model, "port": 30000, "venv": "/opt/e", "args": args}
    return declare.engine(validate({"models": {"m": {"source": "/srv/m"}}, "engines": {"e": row}}), "e")


@pytest.mark.parametrize(
    ("kind", "args", "slow"),
    [
        ("sglang", {}, "one thread"),
        ("vllm", {"model-loader-extra-config": '{"num_threads": 8}'}, "one thread"),
        ("vllm", {"--model-loader-extra-config": loader.WANT}, ""),
        ("sglang", {"model-loader-extra-config": "of-its-own"}, ""),
        ("sglang", {"load-format": "runai_streamer"}, ""),
        ("llama.cpp", {}, ""),
        ("llama.cpp", {"no-mmap": ""}, "memory of its own"),
        ("xllamacpp", {"mlock": ""}, "never gives away"),
    ],
)
def test_each_engine_is_advised_in_its_own_words(kind: str, args: dict[str, str], slow: str) -> None:
    told, write = loader.advice(engine(kind, args))
    assert (slow in told, bool(told), bool(write)) == (True, bool(slow), bool(slow))


def test_what_is_advised_is_taken_as_an_argument_of_the_engine() -> None:
    _, write = loader.advice(engine("vllm", {}))
    name, value = write.split(": ", 1)
    assert loader.advice(engine("vllm", {name: value.strip("'")})) == ("", "")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["[TP0] Load weight end. elapsed=31.50 s, type=X", "[TP1] Load weight end. elapsed=32.25 s, type=X"], "32.2 s"),
        (["INFO [default_loader.py:272] Loading weights took 18.35 seconds"], "18.4 s"),
        (["Load weight end. type=LlamaForCausalLM, dtype=torch.float16"], ""),
        (["srv  init: loading model", "srv  load_model: loading model '/m'", "", "srv  init: model loaded"], "in 1.5 s"),
        (["srv  init: loading model", "llama_model_load: error loading model"], ""),
    ],
)
def test_the_slowest_rank_counts_and_stands_beside_the_staging(lines: list[str], said: str) -> None:
    host = ReplayHost({"files": {manifest.manifest_path("m"): manifest.dump(MODEL).decode()}})
    told = loader.times(host, engine("sglang", {}), [{"text": text, "at": 1e9 + n / 2} for n, text in enumerate(lines)])
    assert told.endswith("staging them took 3.1 s") and (said in told) and ("loaded in" in told) == bool(said)


@pytest.mark.parametrize(
    ("gpus", "model", "path"),
    [
        ("numa:1", "m", "/dev/shm/models/m@node1"),
        ("numa:1", "m/f.gguf", "/dev/shm/models/m@node1/f.gguf"),
        ("numa:0", "m", "/dev/shm/models/m"),
        ("all", "m", "/dev/shm/models/m"),
    ],
)
def test_engine_on_a_node_reads_the_copy_of_that_node(gpus: str, model: str, path: str) -> None:
    row = {"engine": "llama.cpp", "model": model, "port": 1, "gpus": gpus}
    models = {"m": {"source": "/srv/m", "placement": "per-node"}}
    assert declare.engine(validate({"models": models, "engines": {"e": row}}), "e").model_path == path
    assert "@" not in declare.engine(validate({"models": {"m": {"source": "/srv/m"}}, "engines": {"e": row}}), "e").model_path
