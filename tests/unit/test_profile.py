# SPDX-License-Identifier: Apache-2.0
"""The profile: what a person gets for a mistake, and that the published schema is the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hosttune.core.knobs import KNOBS
from hosttune.core.model import Refused
from hosttune.core.profile import Container, schema, validate

ROOT = Path(__file__).parents[2]
MISSION = yaml.safe_load("""
mode: apply
knobs: {profile: pcie-inference, numa-balancing: "1"}
containers:
  200: {gpus: all, gpu: required, form: keep, restart: never}
models:
  qwen3.6-27b: {source: "hf:Qwen/Qwen3.6-27B@abc123", placement: interleave}
engines:
  tp4-b15: {in: "ct:200", engine: sglang, venv: /opt/sglang, model: qwen3.6-27b, tp: 4, gpus: "numa:0",
            port: 30000, user: llm, nccl: pcie-ll-ring, args: {context-length: "32768"}}
bench: {plan: smoke, when: site}
ignore: [{id: HT209, subject: "0000:c1:00.0", reason: "riser, new one ordered", until: "2027-03-01"}]
""")


def test_the_mission_profile() -> None:
    p = validate(MISSION)
    assert p.mode == "apply"
    assert p.knobs == {"pcie-max-read-request": "4096", "numa-balancing": "1", "boot-units": "on"}, (
        "a knob of its own wins over the named profile"
    )
    assert p.containers == {"200": Container()}
    assert p.ignore[0].until == "2027-03-01"


def test_nothing_wanted_is_a_plan() -> None:
    assert validate({}).mode == "plan" and validate(None).containers == {}


@pytest.mark.parametrize(
    ("data", "place", "words"),
    [
        ({"kobs": {}}, "hosttune.kobs", "did you mean knobs"),
        ({"mode": "yes"}, "hosttune.mode", "none of plan, apply"),
        ({"mode": True}, "hosttune.mode", "a text is wanted"),
        ({"knobs": {"numa-balancing": 0}}, "hosttune.knobs.numa-balancing", 'write it in quotes: "0"'),
        ({"knobs": {"numa-balancin": "0"}}, "hosttune.knobs.numa-balancin", "did you mean numa-balancing"),
        ({"knobs": {"profile": "fast"}}, "hosttune.knobs.profile", "conservative"),
        ({"knobs": ["numa"]}, "hosttune.knobs", "a list"),
        ({"containers": {"200": {"gpuz": "all"}}}, "hosttune.containers.200.gpuz", "did you mean gpu"),
        ({"containers": {"200": {"gpus": "0;1"}}}, "hosttune.containers.200.gpus", '"0,1"'),
        ({"containers": {"../x": {}}}, "hosttune.containers", "a vmid such as 200"),
        ({"containers": {"200": {"restart": "yes"}}}, "hosttune.containers.200.restart", "never, idle, always"),
        ({"containers": {"200": {"caps": "yes"}}}, "hosttune.containers.200.caps", "true or false"),
        ({"containers": "200"}, "hosttune.containers", "a map of keys is wanted"),
        ({"models": {"m": {}}}, "hosttune.models.m.source", "missing"),
        ({"models": {"m": {"source": "hf:repo"}}}, "hosttune.models.m.source", "hf:REPO@REVISION"),
        ({"engines": {"e": {"engine": "vllm", "model": "m", "port": 0}}}, "hosttune.engines.e.port", "from 1 to 65535"),
        (
            {"engines": {"e": {"engine": "vllm", "model": "m", "port": "80"}}},
            "hosttune.engines.e.port",
            "a whole number",
        ),
        ({"ignore": [{"id": "209", "reason": "x"}]}, "hosttune.ignore[0].id", "HT201"),
        ({"ignore": [{"id": "HT209"}]}, "hosttune.ignore[0].reason", "missing"),
        ({"ignore": [{"id": "HT209", "reason": "x", "until": "soon"}]}, "hosttune.ignore[0].until", "2027-03-01"),
        ("mode", "hosttune", "a map of keys is wanted"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_a_mistake_is_named_with_its_place_and_the_way_out(data: Any, place: str, words: str) -> None:
    with pytest.raises(Refused) as e:
        validate(data, knobs=tuple(KNOBS))
    assert e.value.where == place
    assert words in e.value.what + " " + e.value.way_out
    if data != {"knobs": {"numa-balancin": "0"}} and data != {"knobs": {"profile": "fast"}}:
        with pytest.raises(jsonschema.ValidationError):  # the published schema refuses it too
            jsonschema.validate(data, schema())


def test_the_published_schema_is_the_table() -> None:
    assert json.loads((ROOT / "docs/profile.schema.json").read_text()) == schema()
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(dict(MISSION, containers={"200": MISSION["containers"][200]}), schema())


def test_defaults_of_the_schema_are_those_of_the_profile() -> None:
    given = schema()["properties"]["containers"]["additionalProperties"]["properties"]
    assert Container(**{k: v["default"] for k, v in given.items()}) == Container()
