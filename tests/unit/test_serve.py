# SPDX-License-Identifier: Apache-2.0
"""What an engine's declaration becomes, what is wrong with NCCL variables, and how a death is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hosttune.core.knobs import boot_units
from hosttune.core.model import Refused
from hosttune.core.recording.replay import load
from hosttune.core.wanted.profile import Profile, validate
from hosttune.data import machine
from hosttune.serve import command, deaths, declare, nccl, unit
from hosttune.serve.devices import Devices, devices

SGLANG = {"in": "ct:200", "engine": "sglang", "venv": "/opt/sglang", "model": "m", "tp": 4, "port": 30000}


def profile(containers: dict[str, Any] | None = None, **engine: Any) -> Profile:
    return validate(
        {"models": {"m": {"source": "/m"}}, "containers": containers or {}, "engines": {"e": {**SGLANG, **engine}}}
    )


def words(**engine: Any) -> str:
    return " ".join(command.argv(declare.engine(profile(**engine), "e")))


def rendered(seen: Devices | None = None, **engine: Any) -> unit.Rendered:
    return unit.render(declare.engine(profile(**engine), "e"), seen or Devices())


@pytest.mark.parametrize(
    ("engine", "wanted"),
    [
        ({}, "/opt/sglang/bin/python -m sglang.launch_server --model-path /srv/models/m --tp-size 4"),
        ({"engine": "vllm", "venv": "/v"}, "/v/bin/vllm serve /srv/models/m --tensor-parallel-size 4"),
        (
            {"engine": "llama.cpp", "venv": "", "tp": 1, "model": "m/a.gguf"},
            "llama-server --model /srv/models/m/a.gguf",
        ),
        ({"engine": "llama.cpp", "venv": "/l", "tp": 2}, "--split-mode row"),
        ({"engine": "xllamacpp", "model": "/own/a.gguf"}, "engines/xllamacpp_server.py --model /own/a.gguf"),
        ({"in": "host"}, "--model-path /dev/shm/models/m"),
        (
            {"args": {"context-length": "32768", "enable-metrics": "", "-x": "y"}},
            "--context-length 32768 --enable-metrics -x y",
        ),
    ],
)
def test_each_engine_gets_the_same_facts_under_its_own_names(engine: dict[str, Any], wanted: str) -> None:
    told = words(**engine)
    assert wanted in told and "--port 30000" in told and "--host 127.0.0.1" in told


@pytest.mark.parametrize(
    ("engine", "place", "way_out"),
    [
        ({"model": "other"}, "engines.e.model", "name it under models:"),
        ({"model": "m/../x"}, "engines.e.model", ""),
        ({"venv": ""}, "engines.e.venv", "venv: /opt/sglang"),
        ({"args": {"api-key": "s3cr3t"}}, "engines.e.args.api-key", "secret:NAME"),
        ({"env": {"HF_TOKEN": "hf_x"}}, "engines.e.env.HF_TOKEN", "secret:NAME"),
        ({"env": {"KEY_FILE": "secret:absent"}}, "engines.e.env.KEY_FILE", "under secrets:"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_with_its_place(
    engine: dict[str, Any], place: str, way_out: str
) -> None:
    with pytest.raises(Refused) as e:
        declare.engine(profile(**engine), "e")
    assert e.value.where == place and way_out in e.value.way_out and "s3cr3t" not in str(e.value)


def test_an_argument_that_the_declaration_gives_is_not_taken_twice() -> None:
    with pytest.raises(Refused, match="itself") as e:
        words(args={"tp-size": "8"})
    assert "`tp:`" in e.value.way_out


def test_an_unknown_engine_names_those_there_are() -> None:
    with pytest.raises(Refused, match=r"no such engine: f \(declared: e\)"):
        declare.engine(profile(), "f")


def test_the_mark_changes_with_every_word_and_with_nothing_else() -> None:
    assert rendered().mark == rendered().mark
    marks = {
        rendered(**change).mark
        for change in ({}, {"env": {"A": "1"}}, {"memlock": "8G"}, {"args": {"x": ""}}, {"user": "llm"})
    }
    assert len(marks) == 5
    assert 'Environment="HOSTTUNE_UNIT=%s"' % rendered().mark in rendered().text


def test_the_unit_leaves_cuda_alone_and_asserts_its_model() -> None:
    text = rendered().text
    for breaks in ("PrivateDevices", "ProtectClock", "MemoryDenyWriteExecute", "ProcSubset"):
        assert not any(line.startswith(breaks) for line in text.splitlines())
    (after,) = [line for line in text.splitlines() if line.startswith("After=")]
    assert boot_units.STAGE_UNIT in after.split(), "at boot the model comes first"
    assert "\nAssertPathExists=/srv/models/m\n" in text and "\nLimitMEMLOCK=infinity\n" in text


def test_a_secret_is_a_path_of_systemds_only_as_a_whole_value() -> None:
    text = rendered(
        secrets={"k": "/etc/k"}, env={"A": "secret:k", "B": "x=secret:k"}, args={"api-key-file": "secret:k"}
    ).text
    assert 'Environment="A=%d/k"' in text and 'Environment="B=x=secret:k"' in text and '"--api-key-file" "%d/k"\n' in text
    assert "\nLoadCredential=k:/etc/k\n" in text


def test_the_founding_nccl_set_is_kept_honest() -> None:
    text = rendered(nccl="pcie-ll-ring").text
    assert 'Environment="NCCL_P2P_LEVEL=SYS"' in text
    for name in ("NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_IB_DISABLE"):
        assert "# %s: inert" % name in text
    for name, preset in nccl.PRESETS.items():
        variables = {variable: value for variable, value, _ in preset}
        assert not [a for a in nccl.lint(variables) if a.level == nccl.ERROR], name
    with pytest.raises(Refused, match="did you mean pcie-ll-ring"):
        rendered(nccl="pcie-ring")


def test_what_env_says_wins_over_the_set() -> None:
    made = rendered(nccl="pcie-ll-ring", env={"NCCL_PROTO": "LL,Simple"})
    assert made.environment["NCCL_PROTO"] == "LL,Simple" and made.text.count("NCCL_PROTO=") == 1


@pytest.mark.parametrize(
    ("name", "value", "level", "fix"),
    [
        ("NCCL_BUFFSIZE", "16M", "error", "16777216"),
        ("NCCL_BUFFSIZE", "5000000", "error", "8388608"),
        ("NCCL_BUFFSIZE", "8388608", "", ""),
        ("NCCL_P2P_LEVEL", "sys", "error", "SYS"),
        ("NCCL_P2P_LEVEL", "5", "warning", "SYS"),
        ("NCCL_P2P_LEVEL", "PHB", "", ""),
        ("NCCL_IB_DISABLE", "yes", "error", "1"),
        ("NCCL_IB_TIMEOUT", "010", "warning", "10"),
        ("NCCL_PROT", "LL", "warning", "NCCL_PROTO"),
        ("nccl_proto", "LL", "warning", "NCCL_PROTO"),
        ("CCL_NET_GDR_LEVEL", "SYS", "warning", "NCCL_NET_GDR_LEVEL"),
        ("NCCL_PROTO", "LL,Fast", "error", ""),
        ("NCCL_ALGO", "Tree", "error", "Ring,Tree"),
        ("NCCL_ALGO", "allreduce:tree", "warning", "ring,tree;allreduce:tree"),
        ("NCCL_ALGO", "Ring", "", ""),
        ("NCCL_NTHREADS", "100", "error", "512"),
        ("NCCL_MAX_NCHANNELS", "128", "error", ""),
        ("NCCL_P2P_DISABLE", "2", "warning", "1"),
        ("NCCL_DEBUG", "info", "warning", "INFO"),
        ("NCCL_DEBUG", "LOUD", "error", ""),
        ("NCCL_BLOCKING_WAIT", "1", "warning", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_CHECKS_DISABLE", "1", "warning", "NCCL_CHECK_MODE"),
        ("OTHER", "16M", "", ""),
    ],
)
def test_a_variable_that_nccl_would_misread_is_named_with_what_to_write(
    name: str, value: str, level: str, fix: str
) -> None:
    found = [a for a in nccl.lint({name: value}) if a.level != nccl.INFO]
    assert [(a.level, a.fix) for a in found][:1] == ([(level, fix)] if level else []), found


@pytest.mark.parametrize(
    ("variables", "name", "level"),
    [
        ({"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "8388608"}, "NCCL_BUFFSIZE", "warning"),
        ({"NCCL_PROTO": "LL,Simple", "NCCL_BUFFSIZE": "8388608"}, "", ""),
        ({"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "8"}, "NCCL_MIN_NCHANNELS", "error"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, "NCCL_SHM_DISABLE", "error"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, "NCCL_P2P_LEVEL", "warning"),
        ({"NCCL_MIN_NCHANNELS": "8", "NCCL_MIN_CTAS": "4"}, "NCCL_MIN_NCHANNELS", "warning"),
        ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, "NCCL_NSOCKS_PERTHREAD", "error"),
    ],
)
def test_variables_that_contradict_each_other_are_named(variables: dict[str, str], name: str, level: str) -> None:
    found = [(a.name, a.level) for a in nccl.lint(variables) if a.level != nccl.INFO]
    assert (name, level) in found if name else found == [], found


def test_the_table_is_whole() -> None:
    rows = nccl.known()
    assert len(rows) > 280 and rows["NCCL_BUFFSIZE"]["type"] == "size"
    assert {row["type"] for row in rows.values()} <= {"bool", "int", "size", "enum", "flags", "list", "pathlevel", "ifspec",
                                                      "hcaspec", "path", "string"}  # fmt: skip


def healthy() -> Any:
    """Eight GPUs, four on each of two nodes."""
    numa = {"possible": "0-1\n", "node0/cpulist": "0-31,64-95\n", "node1/cpulist": "32-63,96-127\n"}
    files = {"/sys/devices/system/node/" + name: text for name, text in numa.items()}
    host = {"base": "healthy-host", "files": files}
    return load({"schema": "hosttune.recording/1", "machines": {"host": host}}, machine)["host"]


@pytest.mark.parametrize(
    ("gpus", "container", "visible"),
    [
        ("all", None, None),
        ("none", None, ""),
        ("4,5", None, "4,5"),
        ("numa:1", None, "4,5,6,7"),
        ("4,5,6,7", {"gpus": "4,5,6,7"}, "0,1,2,3"),
        ("GPU-00000000-1111-2222-3333-444444444444", None, "GPU-00000000-1111-2222-3333-444444444444"),
    ],
)
def test_cuda_counts_the_gpus_of_the_engines_own_machine(
    gpus: str, container: dict[str, str] | None, visible: str | None
) -> None:
    p = profile({"200": container} if container else {}, gpus=gpus, tp=1)
    assert devices(healthy(), declare.engine(p, "e"), p).visible == visible


@pytest.mark.parametrize(
    ("gpus", "tp", "container", "words"),
    [("9", 1, None, "/dev/nvidia9"), ("0,1", 4, None, "only 2 GPUs"), ("0,4", 1, {"gpus": "4,5"}, "/dev/nvidia0")],
)
def test_gpus_that_are_not_there_are_refused(gpus: str, tp: int, container: dict[str, str] | None, words: str) -> None:
    p = profile({"200": container} if container else {}, gpus=gpus, tp=tp)
    with pytest.raises(Refused, match=words):
        devices(healthy(), declare.engine(p, "e"), p)


def test_gpus_of_one_node_bring_its_cpus_and_those_of_two_do_not() -> None:
    p = profile(gpus="numa:1")
    seen = devices(healthy(), declare.engine(p, "e"), p)
    assert seen.node == 1 and seen.cpus == "32-63,96-127"
    text = unit.render(declare.engine(p, "e"), seen).text
    assert "\nNUMAPolicy=preferred\nNUMAMask=1\n" in text and "\nCPUAffinity=%s\n" % seen.cpus.replace(",", " ") in text
    for change in ({"gpus": "3,4", "tp": 2}, {"gpus": "numa:1", "affinity": "none"}):
        p = profile(**change)
        assert devices(healthy(), declare.engine(p, "e"), p).node is None


@pytest.mark.parametrize(
    ("lines", "means"),
    [
        (["INFO: ok", "OSError: [Errno 98] Address already in use"], "another server has the port"),
        (["Scheduler hit an exception:", "assert x, 'max_running_request is zero'", "Received sigquit from a child process"],
         "no memory is left for a single request"),
        (["RuntimeError: CUDA unknown error - this may be due to"], "CUDA does not start here"),
        (["launch_server.py: error: unrecognized arguments: --foo"], "does not know an argument"),
    ],
)  # fmt: skip
def test_the_cause_is_told_and_not_what_came_of_it(lines: list[str], means: str) -> None:
    found = deaths.known(lines)
    assert found and means in found[0].means and found[1] in lines


def test_an_assertion_without_words_brings_the_line_above_it() -> None:
    told = deaths.last_errors(["loading", "    assert num_heads % tp == 0", "AssertionError"])
    assert told == ["assert num_heads % tp == 0", "AssertionError"]


@pytest.mark.parametrize(
    ("show", "words"),
    [
        ({"Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "3"}, "exit code 3"),
        ({"Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9"}, "SIGKILL"),
        ({"Result": "oom-kill", "ExecMainCode": "2", "ExecMainStatus": "9"}, "memory ran out"),
        ({"Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "203"}, "could not be executed"),
        ({"Result": "success", "ExecMainCode": "1", "ExecMainStatus": "0"}, "ended by itself"),
    ],
)
def test_how_it_ended_is_said_in_words(show: dict[str, str], words: str) -> None:
    assert words in deaths.how(show)


def test_a_declaration_survives_json() -> None:
    """The profile reaches a target as JSON; what is rendered there is what is rendered here."""
    p = profile(nccl="pcie-ll-ring")
    again = Profile(models=json.loads(json.dumps(p.models)), engines=json.loads(json.dumps(p.engines)))
    assert unit.render(declare.engine(again, "e"), Devices()) == unit.render(declare.engine(p, "e"), Devices())
