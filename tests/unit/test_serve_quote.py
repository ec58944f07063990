# SPDX-License-Identifier: Apache-2.0
"""Quoting held against the real systemd-analyze: what is rendered leaves it silent, and what is not quoted would not.

What a process then really gets is in tests/kernel/test_serve.py.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.core.model import Refused
from hosttune.serve import quote

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def said(folder: Path, lines: str) -> str:
    """Everything that systemd-analyze says of a service with these lines."""
    unit = folder / "hosttune-x.service"
    unit.write_text("[Unit]\nDescription=x\n[Service]\nType=exec\n%s" % lines)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    return done.stderr + done.stdout


VALUES = [
    "", " lead and trail ", "100% %n %Z", "$HOME ${X} $$", "back\\slash \\q \\x4", "ends in \\", 'a "quoted" b', "it's", "'", '"',
    "# no comment", "; no comment", "ünï ✓", '{"a": [1, "%d"], "b": "\\"q\\" $x"}', "a=b=c", "@-:+!", ";",
]  # fmt: skip


@needs_systemd
@pytest.mark.parametrize("value", VALUES)
def test_a_quoted_value_leaves_systemd_silent(tmp_path: Path, value: str) -> None:
    lines = "Environment=%s\nExecStart=%s\n" % (
        quote.environment("A", value),
        quote.command(["/bin/true", value, "end"]),
    )
    assert said(tmp_path, lines) == ""


@needs_systemd
@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ('Environment="A=\\q"\nExecStart=/bin/true\n', "an unknown escape"),
        ('Environment="A=b\nExecStart=/bin/true\n', "an unbalanced quote"),
        ('Environment="A=%Z"\nExecStart=/bin/true\n', "an unknown specifier in Environment="),
        ("ExecStart=/bin/true %Z\n", "an unknown specifier in ExecStart="),
        ('ExecStart=/bin/true "b\n', "an unbalanced quote in ExecStart="),
        ('Environment="9A=b"\nExecStart=/bin/true\n', "a name that begins with a digit"),
    ],
)
def test_what_quoting_prevents_would_be_seen(tmp_path: Path, lines: str, rule: str) -> None:
    assert said(tmp_path, lines), rule


@pytest.mark.parametrize("name", ["", "9A", "A-B", "A B", "Ä", "A="])
def test_a_name_that_no_variable_can_have_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="no name of a variable"):
        quote.environment(name, "x")


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "\x1b[0m", "a\tb"])
def test_a_control_character_is_refused_with_its_place(value: str) -> None:
    with pytest.raises(Refused) as e:
        quote.environment("A", value, "engines.x.env")
    assert e.value.where == "engines.x.env.A"
    with pytest.raises(Refused) as e:
        quote.word(value, "engines.x.args")
    assert e.value.where == "engines.x.args"


@pytest.mark.parametrize("program", ["-/bin/x", "@x", "+x", "!x", ":x", "./x", ""])
def test_a_program_cannot_become_a_prefix_of_systemds(program: str) -> None:
    with pytest.raises(Refused):
        quote.command([program])


@pytest.mark.parametrize("path", ["relative", "/ends in \\", " /lead", "/trail "])
def test_a_path_that_a_unit_file_cannot_hold_is_refused(path: str) -> None:
    with pytest.raises(Refused):
        quote.path(path, "x")


plain = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), max_size=40)


@given(plain)
def test_quoting_undone_by_systemds_own_rules_gives_the_value_back(value: str) -> None:
    """One pass over the quoted text as systemd.syntax(7) describes it; nothing is left over."""
    text = quote.word(value)
    assert text[0] == text[-1] == '"'
    out, rest = "", text[1:-1]
    while rest:
        if rest[0] in "\\%$":
            assert len(rest) > 1 and rest[1] in {"\\": '\\"', "%": "%", "$": "$"}[rest[0]], rest
            out, rest = out + rest[1], rest[2:]
        else:
            assert rest[0] != '"'
            out, rest = out + rest[0], rest[1:]
    assert out == value
