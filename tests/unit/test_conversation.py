# SPDX-License-Identifier: Apache-2.0
"""Many questions to one interpreter: asked once what it takes to start it, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from hosttune.core import corezip
from hosttune.core.door import command
from hosttune.core.door.host import Host, Ran
from hosttune.core.door.live import LiveHost

CORE = corezip.argv(sys.executable)


def ping(host: Host) -> dict[str, Any]:
    ran = host.converse(CORE, corezip.opening(), corezip.line({"op": "ping"}), 60)
    told: dict[str, Any] = json.loads(ran.out)["result"]
    return told


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def talk(program: str, *lines: str, timeout: float = 60) -> list[Ran]:
    """What a program that stays answers to these lines, one after the other."""
    host = LiveHost()
    return [host.converse([sys.executable, "-Ic", program], b"", line.encode(), timeout) for line in lines]


def test_one_process_answers_all_and_ends_with_the_door() -> None:
    host = LiveHost()
    pids = {ping(host)["pid"] for _ in range(3)}
    assert len(pids) == 1
    del host
    assert gone(pids.pop())


def test_two_doors_share_no_process() -> None:
    one, two = LiveHost(), LiveHost()
    assert ping(one)["pid"] != ping(two)["pid"]


def test_a_process_that_has_ended_is_started_again() -> None:
    host = LiveHost()
    first = ping(host)["pid"]
    os.kill(first, 9)
    while not all(one.over for one in host._standing.values()):
        pass
    assert ping(host)["pid"] != first


def test_of_many_that_were_asked_only_a_few_wait_on() -> None:
    host = LiveHost()
    programs = ["import os\nfor line in __import__('sys').stdin: print('{\"pid\": %%d}' %% os.getpid(), flush=True) # %d" % n
                for n in range(7)]  # fmt: skip
    pids = [json.loads(host.converse([sys.executable, "-Ic", one], b"", b"", 60).out)["pid"] for one in programs]
    assert [gone(pid) for pid in pids] == [True] * 3 + [False] * 4


def test_a_refusal_ends_nothing() -> None:
    host = LiveHost()
    before = ping(host)["pid"]
    refused = host.converse(CORE, corezip.opening(), corezip.line({"op": "no-such"}), 60)
    assert "error" in json.loads(refused.out) and ping(host)["pid"] == before


ECHO = "import sys\nfor line in sys.stdin: %s"


def test_a_banner_before_the_answer_is_none() -> None:
    told = talk(ECHO % "print('Welcome!\\n{\"n\": %s}' % line.strip(), flush=True)", "1", "2")
    assert [json.loads(ran.out)["n"] for ran in told] == [1, 2]


def test_one_that_ends_instead_of_answering_is_told_with_its_last_words() -> None:
    (ran,) = talk("import sys; sys.exit('no rights')", "1")
    assert (ran.rc, ran.out, ran.err.strip()) == (1, "", "no rights")


def test_one_that_is_not_there_is_told() -> None:
    ran = LiveHost().converse(["/no/such/python"], b"", b"1", 60)
    assert ran.rc == 127 and "/no/such/python" in ran.err


def test_one_that_keeps_silent_is_ended_and_the_next_question_starts_anew() -> None:
    silent, heard = talk(ECHO % "line == 'b\\n' and print('{}', flush=True)", "a", "b", timeout=1)
    assert (silent.rc, silent.timeout) == (124, 1)
    assert heard.out == "{}"


def test_complaints_without_end_are_no_answer() -> None:
    (ran,) = talk("import sys\nwhile True: sys.stderr.write('x' * 1000)", "1", timeout=1)
    assert ran.timeout == 1 and len(ran.err) <= 1 << 16


def test_too_much_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "OUTPUT_LIMIT", 1 << 20)
    (ran,) = talk("import sys\nwhile True: sys.stdout.write('{' * 1000)", "1")
    assert ran.rc == 125 and "1 MiB" in ran.err


def test_a_door_without_standing_commands_gives_the_same_answer() -> None:
    class Plain(LiveHost):
        converse = Host.converse

    first, second = ping(Plain()), ping(Plain())
    assert first["executable"] == second["executable"] == ping(LiveHost())["executable"]
