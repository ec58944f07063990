# SPDX-License-Identifier: Apache-2.0
"""Every finding has a page that is there when the network is not, and every command on it is one a shell understands."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import textwrap
from pathlib import Path

import click
import pytest
import yaml

from hosttune.cli import hosttune, main
from hosttune.core.catalogue import CATALOGUE
from hosttune.core.wanted.profile import validate

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "findings"
SECTIONS = ["Symptom", "Why it matters", "Check by hand", "Fix", "Ignore"]
CAUSES = {"H": 11, "K": 14, "N": 11, "C": 22, "L": 13, "E": 8, "S": 9, "M": 3, "R": 2, "F": 4, "P": 2, "X": 2, "V": 5}
"""Letters of the taxonomy of CUDA start failures, and how many causes each has."""

NOT_YET_USED: dict[str, str] = {}
"""Ids that no code reports yet, each with the reason. One that is used must leave."""


def page(id: str) -> str:
    return (PAGES / (id + ".md")).read_text(encoding="utf-8")


def section(id: str, title: str) -> str:
    return page(id).partition("## %s\n" % title)[2].partition("\n## ")[0].partition("\nTaxonomy:")[0]


def commands(text: str) -> list[str]:
    """Indented blocks of a page, without the `ignore:` example. Tables stand in fences, which are left out."""
    bare = re.sub(r"(?ms)^```.*?^```\n", "", text)
    blocks = re.findall(r"(?m)(?:^ {4,}\S.*\n(?:\n(?= {4,}\S))?)+", bare)
    plain = [textwrap.dedent(block).strip() for block in blocks]
    return [block for block in plain if not block.startswith("ignore:")]


def test_every_finding_has_a_page_and_every_page_a_finding() -> None:
    assert {p.stem for p in PAGES.iterdir()} == set(CATALOGUE)


@pytest.mark.parametrize("id", CATALOGUE)
def test_a_page_has_its_parts_in_order(id: str) -> None:
    text = page(id)
    assert text.startswith("# %s %s\n" % (id, CATALOGUE[id].name))
    assert re.findall(r"(?m)^## (.*)$", text) == SECTIONS
    assert all(section(id, title).strip() for title in SECTIONS)
    last = text.rstrip("\n").splitlines()[-1]
    causes = re.fullmatch(r"Taxonomy: (none|[A-Z]\d+(?:, [A-Z]\d+)*)", last)
    assert causes, last
    for cause in () if causes[1] == "none" else causes[1].split(", "):
        assert 1 <= int(cause[1:]) <= CAUSES[cause[0]], cause


@pytest.mark.parametrize("id", CATALOGUE)
def test_a_page_shows_commands_that_a_shell_understands(id: str) -> None:
    assert commands(section(id, "Check by hand")), "nothing to paste"
    for block in commands(page(id)):
        if block.startswith(("dev0:", "{")):
            continue  # a line of a config, a recording
        parsed = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True)
        assert parsed.returncode == 0, "%s\n%s" % (block, parsed.stderr)


@pytest.mark.parametrize("id", CATALOGUE)
def test_a_page_says_where_its_commands_are_to_be_run(id: str) -> None:
    where = re.compile(r"(?i)\b(on the (host|controller)|inside|in the container|where (it|that|the)\b|as the user)")
    assert where.search(section(id, "Check by hand"))
    assert where.search(section(id, "Fix"))


def _told(text: str) -> list[list[str]]:
    """Every `hosttune ...` of a page, in blocks and in the text, as words."""
    found = re.findall(r"(?m)(?:^ {4,}(?:sudo )?|`(?:sudo )?|&& )(hosttune [^`#&|\n]*)", text)
    return [shlex.split(line.replace("$CT", "200"))[1:] for line in found]


@pytest.mark.parametrize("id", CATALOGUE)
def test_a_page_names_commands_of_hosttune_as_they_are(id: str) -> None:
    for words in _told(page(id)):
        command: click.Command = hosttune
        while isinstance(command, click.Group) and words:
            inner = command.get_command(click.Context(command), words[0])
            assert inner, "%s has no command %s" % (command.name, words[0])
            command, words = inner, words[1:]
        options = {option for param in command.params for option in param.opts}
        assert [word for word in words if word.startswith("-") and word not in options] == []
        files = any(isinstance(p, click.Argument) and isinstance(p.type, click.Path) for p in command.params)
        assert not files or not words or not words[0].isdigit(), "%s takes a file" % command.name


@pytest.mark.parametrize("id", CATALOGUE)
def test_the_ignore_example_is_a_valid_entry_of_the_profile(id: str) -> None:
    example = yaml.safe_load(textwrap.dedent(section(id, "Ignore").partition("    ignore:\n")[2]))
    (ignore,) = validate({"ignore": example}).ignore
    assert ignore.id == id and ignore.reason


@pytest.mark.parametrize("said", ["HT401", "ht401", "device-cgroup-refuses"])
def test_explain_prints_the_page_by_id_and_by_name(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", said]) == 0
    assert capsys.readouterr().out == page("HT401")


@pytest.mark.parametrize(("said", "near"), [("HT411", "HT4"), ("cuda-visible-device", "cuda-visible-devices")])
def test_explain_of_an_unknown_finding_names_one_that_is_near(
    said: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", said]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "no such finding: %s" % said in told.err and "did you mean %s" % near in told.err


def test_explain_of_nonsense_says_where_all_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "xyzzy"]) == 2
    assert "hosttune list" in capsys.readouterr().err


def _mentioned() -> dict[str, set[str]]:
    """Finding ids in the strings of the code, docstrings left out: {id: files}."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "hosttune").rglob("*.py")):
        if path.name == "catalogue.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                for name in re.findall(r"\bHT\d{3}\b", node.value):
                    found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_the_code_mentions_no_finding_that_is_not_catalogued() -> None:
    strangers = {id: files for id, files in _mentioned().items() if id not in CATALOGUE}
    assert strangers == {}


def test_every_finding_is_used_or_says_why_not() -> None:
    assert set(CATALOGUE) - set(_mentioned()) == set(NOT_YET_USED)
