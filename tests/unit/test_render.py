# SPDX-License-Identifier: Apache-2.0
"""One report through every renderer, held against golden files. After a wanted change: UPDATE_GOLDEN=1 pytest ..., then
read the diff."""

from __future__ import annotations

import json
import os
import re
import string
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from hosttune.core.catalogue import finding
from hosttune.core.model import ERROR, FAIL, PROVED, SKIP, Action, Finding, Hint, Report, Step, exit_code
from hosttune.core.wanted.ignore import apply_ignores
from hosttune.core.wanted.profile import Ignore
from hosttune.render import as_json, junit, text
from hosttune.render.visible import visible

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[2]

REPORT = Report(
    "doctor",
    "pve1",
    facts={"driver": "595.71.05"},
    findings=(
        finding("HT302", "ok", "module", "nvidia 595.71.05 is loaded"),
        finding("HT360", "skip", "cuInit", "cuInit returns 999", machine="ct:200", because=("HT401",)),
        finding(
            "HT401",
            "fail",
            "/dev/nvidia-uvm",
            "the device cgroup refuses 511:0",
            machine="ct:200",
            proof="proved",
            evidence=(
                "open: EPERM, nvidiactl opens",
                "/proc/devices: 511 nvidia-uvm",
                "/etc/pve/lxc/200.conf:9 allows c 509:*",
            ),
            hint=Hint(
                'lxc-cgroup -n 200 devices.allow "c 511:* rwm"\nhosttune lxc sync 200',
                "host",
                "nothing is lost",
                "apply",
            ),
        ),
        finding("HT420", "warn", "c 509:* rwm", "509 belongs to hidraw now", proof="fits", decide="ls -l /dev/hidraw*"),
        finding("HT903", "error", "/proc/driver", "could not be read: EACCES"),
        finding(
            "HT201",
            "fail",
            "0000:c1:00.0",
            "MaxReadReq is 512, want 4096",
            have="512",
            want="4096",
            ignored="riser ordered",
        ),
    ),
    steps=(
        Step("HT421", "ct:200", "replace", "/etc/pve/lxc/200.conf", "arch: amd64\nold \udcff\n", "arch: amd64\nnew\n"),
        Step("HT101", "now", "poke", "/proc/sys/kernel/numa_balancing", "1", "0"),
        Step(
            "HT201",
            "0000:11:00.0",
            "run",
            "0000:11:00.0 MaxReadReq",
            "512",
            "4096",
            ("setpci", "-s", "0000:11:00.0", "x"),
            ("y",),
        ),
    ),
    actions=(
        Action(
            "restart", "ct:200", ("pct", "reboot", "200"), "a node was replaced", ("/dev/shm: 52.0 GB",), "about 5 s"
        ),
    ),
    mode="plan",
    version="0.1.0",
)


def golden(name: str, got: str) -> None:
    """Equal to the golden file, or (asked to) become it."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(got)
    assert got == path.read_text()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("text.txt", {}),
        ("text-verbose.txt", {"verbose": True}),
        ("text-ascii.txt", {"ascii_only": True, "verbose": True}),
        ("text-colour.txt", {"colour": True}),
    ],
)
def test_text(name: str, options: dict[str, bool]) -> None:
    golden(name, text.render(REPORT, **options))


def test_the_first_line_is_the_cause() -> None:
    assert text.render(REPORT).splitlines()[0].split()[1] == "HT401"


def test_a_hint_that_mends_nothing_is_no_fix_in_any_face() -> None:
    hint = Hint("dmesg | tail", "host", "no command is sure to heal it", "look")
    look = finding("HT409", FAIL, "/dev/nvidia3", "EIO", hint=hint)
    report = Report("doctor", findings=(look,))
    assert text.render(report).splitlines()[1:3] == [
        "     look (host):  dmesg | tail",
        "     then:   no command is sure to heal it",
    ]
    assert "look: dmesg | tail" in junit.render(report) and "fix" not in junit.render(report)
    jsonschema.validate(as_json.data(report), json.loads((ROOT / "docs/report.schema.json").read_text()))


@pytest.mark.parametrize("words", ["tiny is odd", "tiny: is odd"])
def test_a_subject_with_which_the_sentence_begins_is_said_once(words: str) -> None:
    report = Report("stage status", "pve1", findings=(finding("HT508", FAIL, "tiny", words),))
    assert "HT508  %s\n" % words in text.render(report)


def test_ascii_is_ascii() -> None:
    assert text.render(REPORT, ascii_only=True, verbose=True).isascii()


def test_junit() -> None:
    got = junit.render(REPORT)
    golden("report.xml", got)
    root = ET.fromstring(got)
    assert sum(int(s.get("failures") or 0) for s in root) == 1, "an ignored failure is not one"


def test_json_is_its_published_schema() -> None:
    got = as_json.render(REPORT)
    golden("report.json", got)
    jsonschema.validate(json.loads(got), json.loads((ROOT / "docs/report.schema.json").read_text()))


def test_exit_codes() -> None:
    ok = Report("x", findings=(finding("HT302", "ok", "m", "s"), finding("HT201", "skip", "m", "s")))
    assert exit_code(ok) == 0
    assert exit_code(Report("x", findings=(finding("HT420", "warn", "m", "s"),))) == 0
    assert exit_code(Report("x", findings=(finding("HT420", "warn", "m", "s"),)), strict=True) == 1
    assert exit_code(Report("x", findings=(finding("HT903", "error", "m", "s"),))) == 1, "could not tell is not clean"
    assert exit_code(Report("x", findings=(finding("HT201", "fail", "m", "s", ignored="known"),))) == 0


NOW = 1796000000.0  # 2026-11-30


@pytest.mark.parametrize(
    ("ignore", "ignored", "unused"),
    [
        (Ignore("HT201", "riser"), True, False),
        (Ignore("HT201", "riser", "0000:11:00.0"), True, False),
        (Ignore("HT201", "riser", "0000:12:00.0"), False, True),
        (Ignore("HT201", "riser", until="2026-11-30"), True, False),
        (Ignore("HT201", "riser", until="2026-11-29"), False, True),
        (Ignore("HT209", "riser"), False, True),
    ],
)
def test_ignores(ignore: Ignore, ignored: bool, unused: bool) -> None:
    found = apply_ignores([finding("HT201", "fail", "0000:11:00.0", "s")], [ignore], NOW)
    assert bool(found[0].ignored) is ignored
    assert any(f.id == "HT901" for f in found) is unused


EVIL = "a\x1b]0;title\x07\x1b[2J\nforged: all is well\r\x9b31m\u202eesrever\u2028\udcff\x00\ufffe"
"""As a container's root may name a process, a mount point or a driver's error."""
LINE = EVIL.replace("\n", "")
"""A diff shows the lines of a file as lines."""


def evil() -> Report:
    hurt = Finding(
        "HT401", "device-cgroup-refuses", FAIL, "correctness", EVIL, EVIL, EVIL, EVIL,
        Hint("one\ntwo" + LINE, EVIL, EVIL, "apply"), (EVIL,), PROVED, (EVIL,), EVIL, "ct:" + EVIL,
    )  # fmt: skip
    findings = (hurt, replace(hurt, status=ERROR), replace(hurt, status=SKIP), replace(hurt, ignored=EVIL))
    return Report(
        "doctor", EVIL, {"kind": EVIL}, findings,
        (Step("HT421", EVIL, "replace", EVIL, "old" + LINE, "new" + LINE),
         Step("HT101", EVIL, "poke", EVIL, EVIL, EVIL, (EVIL,))),
        (Action("restart", EVIL, (EVIL,), EVIL, (EVIL,), EVIL),), ({"effect": "run", "target": EVIL},), True, "apply",
    )  # fmt: skip


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_text_of_a_machine_steers_the_terminal(colour: bool, ascii_only: bool) -> None:
    told = text.render(evil(), colour, ascii_only, verbose=True)
    told.encode()  # lone surrogates would not print
    plain = re.sub("\x1b\\[[0-9;]*m", "", told) if colour else told
    assert set(plain) & set(EVIL) - set(string.printable.replace("\x0b", "").replace("\x0c", "")) == set()
    assert "\r" not in plain
    lines = told.splitlines()
    assert not any(line.lstrip().startswith("forged") for line in lines), told
    assert r"\x1b[2J" in told and r"\xff" in told and r"\u202e" in told


def test_junit_is_well_formed_whatever_a_machine_says() -> None:
    root = ET.fromstring(junit.render(evil()))
    assert len(root.findall(".//testcase")) == 4 and r"\x1b[2J" in ET.tostring(root, encoding="unicode")


def test_json_holds_every_byte_and_stays_ascii() -> None:
    told = as_json.render(evil())
    assert told.isascii() and json.loads(told)["hosts"][0]["findings"][0]["summary"] == EVIL


def test_a_healthy_text_is_shown_as_it_is() -> None:
    assert visible("c 511:* rwm → größer ✗ 日本") == "c 511:* rwm → größer ✗ 日本"
