# SPDX-License-Identifier: Apache-2.0
"""The profile: what a person gets for a mistake, and that the published schema is the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from hosttune.cli import hosttune, main
from hosttune.cli.profile import TAKES_PROFILE, load, naming
from hosttune.core.catalogue import finding
from hosttune.core.knobs import KNOBS
from hosttune.core.model import FAIL, ON, Hint, Refused
from hosttune.core.wanted.places import json_lines, line_of
from hosttune.core.wanted.profile import Container, validate
from hosttune.core.wanted.schema import schema
from hosttune.core.wanted.shipped import SHIPPED, resolve

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
    knobs = p.knobs or {}
    assert knobs["pcie-max-read-request"] == "4096" and knobs["boot-units"] == "on"
    assert knobs["numa-balancing"] == "1", "a knob of its own wins over the profile that is inherited"
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
        ({"knobs": {"pcie-acs": False}}, "hosttune.knobs.pcie-acs", 'in quotes: "off"'),
        ({"containers": {"200": {"gpuz": "all"}}}, "hosttune.containers.200.gpuz", "did you mean gpu"),
        ({"containers": {"200": {"gpus": "0;1"}}}, "hosttune.containers.200.gpus", '"0,1"'),
        ({"containers": {"../x": {}}}, "hosttune.containers", "a vmid such as 200"),
        ({"containers": {"200": {"restart": "yes"}}}, "hosttune.containers.200.restart", "never, idle, always"),
        ({"containers": {"200": {"caps": "yes"}}}, "hosttune.containers.200.caps", "true or false"),
        ({"containers": "200"}, "hosttune.containers", "a map of keys is wanted"),
        ({"models": {"m": {}}}, "hosttune.models.m.source", "missing"),
        ({"models": {"m": {"source": "hf:repo"}}}, "hosttune.models.m.source", "hf:REPO@REVISION"),
        ({"models": {"m": {"source": "/m", "limit": "fast"}}}, "hosttune.models.m.limit", "a rate such as 2GB/s"),
        ({"models": {"m": {"source": "/m", "limit": "0 GB/s"}}}, "hosttune.models.m.limit", "a rate such as 2GB/s"),
        ({"models": {"m": {"source": "/m", "nice": 10}}}, "hosttune.models.m.nice", 'in quotes: "10"'),
        ({"models": {"m": {"source": "/m", "nice": "20"}}}, "hosttune.models.m.nice", "0 to 19"),
        ({"models": {"m": {"source": "/m", "hash": "never"}}}, "hosttune.models.m.hash", "now, later"),
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
        validate(data, knobs=KNOBS)
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


def test_shipped_profiles_inherit_and_hold_what_can_be_had() -> None:
    """A knob that is recommended for everybody and stands in no profile was forgotten."""
    assert resolve("report-only") == {}
    assert {name for name, knob in KNOBS.items() if knob.recommend == ON} == set(resolve("conservative"))
    assert resolve("pcie-inference")["pcie-max-read-request"] == ("4096", "pcie-inference")
    assert resolve("pcie-inference")["numa-balancing"] == ("0", "conservative")
    for name in SHIPPED:
        for knob, (want, _) in resolve(name).items():
            assert KNOBS[knob].check(want) == "", (name, knob)


def test_each_want_says_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "site.yml"
    path.write_text(
        'hosttune:\n  knobs:\n    profile: pcie-inference\n    numa-balancing: "1"\n    boot-units: leave\n'
    )
    profile = load(str(path))
    assert profile.sources["numa-balancing"] == "%s:4" % path
    assert profile.sources["pcie-max-read-request"] == "%s:3 (pcie-inference)" % path
    assert "boot-units" not in (profile.knobs or {}) and "boot-units" not in profile.sources


MISTAKES = [
    ("knobs:\n  numa-balancin: '0'\n", 2, "knobs.numa-balancin: no such knob"),
    ("knobs: {profile: fast}\n", 1, "no such profile: fast"),
    ("mode: apply\nknobs:\n  numa-balancing: '7'\n", 3, "7 is none of 0, 1, 2, 3"),
    ("knobs:\n  numa-balancing: 0\n", 2, 'write it in quotes: "0"'),
    ("knobs:\n  profile: report-only\n  numa-balancing: ''\n", 3, "`leave` takes a setting out"),
    ("knobs: {nvidia-power-limit: '\u00b2'}\n", 1, "is no whole number from 1 to 2000"),
    ("ignore:\n- id: HT209\n  reason: x\n  until: '2027-13-01'\n", 4, "a date such as 2027-03-01"),
    ("containers:\n  200:\n    gpus: all\n    caps: 'yes'\n", 4, "containers.200.caps"),
    ("containers:\n  200:\n    gpuz: all\n", 3, "did you mean gpu"),
    ("ignore:\n- {id: HT209, reason: x}\n- id: '209'\n  reason: x\n", 3, "ignore[1].id"),
    ("models:\n  a.b:\n    placement: interleave\n", 2, "models.a.b.source: the key is missing"),
    ("models:\n  a.b:\n    source: /m\n    limit: -1GB/s\n", 4, "2GB/s"),
    ("mode: plan\nengines:\n  e: {engine: vllm,\n      model: m,\n      port: 0}\n", 5, "from 1 to 65535"),
]


@pytest.mark.parametrize("kind", ["yml", "json"])
@pytest.mark.parametrize(("text", "line", "words"), MISTAKES)
def test_a_mistake_in_a_file_is_told_by_its_line(kind: str, text: str, line: int, words: str, tmp_path: Path) -> None:
    path = tmp_path / ("site." + kind)
    path.write_text(text)
    if kind == "json":
        data = json.loads(json.dumps(yaml.safe_load(text)))
        path.write_text(json.dumps(data, indent=1))
        named = "numa-balancin profile numa-balancing nvidia-power-limit caps gpuz 209 until a.b limit port".split()
        rows = path.read_text().splitlines()
        found = [n for n, row in enumerate(rows, 1) if any('"%s"' % key in row for key in named)]
        line = found[-1]
    with pytest.raises(Refused) as e:
        load(str(path))
    assert e.value.where == "%s:%d" % (path, line)
    assert words in e.value.what + " " + e.value.way_out


def test_aliases_are_not_gone_through_again_and_again(tmp_path: Path) -> None:
    """Each of forty lines names the one before it twice: walked in full that would be 2^40 places."""
    rows = ["a0: &a0 {x: '1'}"] + ["a%d: &a%d [*a%d, *a%d]" % (n, n, n - 1, n - 1) for n in range(1, 40)]
    (tmp_path / "site.yml").write_text("\n".join(rows))
    with pytest.raises(Refused, match="no such key"):
        load(str(tmp_path / "site.yml"))


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            '{"a": {"b": [1, {"c": 2}]},\n "d": "x:{,"}',
            {"a": 1, "a.b": 1, "a.b[0]": 1, "a.b[1]": 1, "a.b[1].c": 1, "d": 2},
        ),
        ('[\n{"k":\n1}\n]', {"[0]": 2, "[0].k": 2}),
        ('{"a\\"b": {},\n"c": []}', {'a"b': 1, "c": 2}),
        ("3", {}),
    ],
)
def test_places_of_a_json_text(text: str, places: dict[str, int]) -> None:
    json.loads(text)
    assert json_lines(text, "f") == places
    assert line_of(places, "a.b[1].missing") == places.get("a.b[1]", places.get("a", 0))


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("hosttune apply swappiness", "hosttune apply --profile 'my site.yml' swappiness"),
        ("sudo hosttune stage verify tiny", "sudo hosttune stage verify --profile 'my site.yml' tiny"),
        (
            'lxc-cgroup -n 200 devices.allow "c 511:* rwm" && hosttune lxc sync 200',
            "lxc-cgroup -n 200 devices.allow \"c 511:* rwm\" && hosttune lxc sync --profile 'my site.yml' 200",
        ),
        ("hosttune stage drop tiny", "hosttune stage drop tiny"),
        ("hosttune apply boot-units --profile FILE", "hosttune apply boot-units --profile FILE"),
        ("cat /usr/local/lib/hosttune apply", "cat /usr/local/lib/hosttune apply"),
        ("", ""),
    ],
)
def test_a_fix_wants_what_the_finding_wants(command: str, named: str) -> None:
    """Pasted without --profile it would write the value of /etc/hosttune/profile.json, or the recommended one."""
    told = naming(finding("HT106", FAIL, "now", "", hint=Hint(command), decide=command), "my site.yml")
    assert told.hint.command == told.decide == named


def test_check_with_a_profile_names_it_in_its_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "site.yml"
    profile.write_text('knobs: {swappiness: "199"}\n')
    assert main(["check", "swappiness", "--profile", str(profile), "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)["hosts"][0]["findings"]
    assert {f["hint"]["command"] for f in told} == {"hosttune apply --profile %s swappiness" % profile}


def test_a_profile_that_comes_through_a_pipe_is_named_in_no_fix() -> None:
    profile = b'{"knobs": {"swappiness": "199"}}'
    argv = [sys.executable, "-m", "hosttune", "check", "swappiness", "--profile", "/dev/stdin", "-o", "json"]
    told = json.loads(subprocess.run(argv, input=profile, capture_output=True).stdout)["hosts"][0]["findings"]
    assert {f["hint"]["command"] for f in told} == {"hosttune apply swappiness"}


def test_each_command_that_takes_a_profile_gets_it_in_a_fix() -> None:
    def commands(group: click.Group, above: str) -> Iterator[tuple[str, click.Command]]:
        for word in group.list_commands(context):
            command = group.get_command(context, word)
            assert command
            yield "%s %s" % (above, word), command
            if isinstance(command, click.Group):
                yield from commands(command, "%s %s" % (above, word))

    context = click.Context(hosttune)
    every = dict(commands(hosttune, "hosttune"))
    takes = {words for words, command in every.items() if any(o.name == "profile_path" for o in command.params)}
    assert takes == {words for words in every if TAKES_PROFILE.fullmatch(words)}
