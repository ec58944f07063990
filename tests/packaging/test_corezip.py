# SPDX-License-Identifier: Apache-2.0
"""The core runs from standard input, on the oldest Python it promises, and leaves nothing behind."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import hosttune
from hosttune.core import corezip

ROOT = Path(__file__).resolve().parents[2]


def pythons() -> list[str]:
    """Every Python 3 of this machine, oldest first: 3.9 is the floor, older ones must say that they are too old."""
    found = {p.name: str(p) for p in Path("/usr/bin").glob("python3.*[0-9]")}
    found |= {p.name: str(p) for p in (Path.home() / ".pyenv/versions").glob("3.*/bin/python3.*[0-9]")}
    return sorted(found.values(), key=version)


def version(python: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", os.path.basename(python))
    return int(major), int(minor)


NEW = [p for p in pythons() if version(p) >= (3, 9)]
OLD = [p for p in pythons() if (3, 5) <= version(p) < (3, 9)]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zipapp, made by this Python."""
    folder = tmp_path_factory.mktemp("zipapp")
    subprocess.run([sys.executable, "-m", "hosttune.zipapp", str(folder / "hosttune.pyz")], check=True, cwd=folder)
    return folder / "hosttune.pyz"


def ask(argv: Sequence[str], request: dict[str, Any], cwd: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of a core that runs elsewhere."""
    done = subprocess.run(argv, input=corezip.stdin(request), capture_output=True, cwd=cwd, timeout=60)
    assert not done.stderr, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer


@pytest.mark.parametrize("python", NEW, ids=os.path.basename)
def test_core_answers_from_standard_input(python: str, tmp_path: Path) -> None:
    code, told = ask(corezip.argv(python), {"op": "ping"}, tmp_path)
    assert (code, told["version"]) == (0, hosttune.__version__)
    assert told["result"]["python"].startswith("%d.%d." % version(python))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("python", NEW, ids=os.path.basename)
def test_core_starts_its_child_process(python: str, tmp_path: Path) -> None:
    code, told = ask(corezip.argv(python), {"op": "child", "nodes": ["/dev/null", "/dev/no-such"]}, tmp_path)
    assert code == 0, told
    assert told["result"]["nodes"]["/dev/null"]["rdev"] == "1:3"
    assert told["result"]["nodes"]["/dev/null"]["access"] == "ok"
    assert told["result"]["nodes"]["/dev/no-such"] == {"errno": "ENOENT"}


@pytest.mark.parametrize("python", OLD, ids=os.path.basename)
def test_python_that_is_too_old_says_so(python: str, tmp_path: Path) -> None:
    code, told = ask(corezip.argv(python), {"op": "ping"}, tmp_path)
    assert code == 2
    assert told["error"]["what"] == "Python is %d.%d, want 3.9 or newer" % version(python)
    assert told["error"]["where"] == python and told["error"]["way_out"]


def test_core_runs_where_the_kernel_forbids_memfd(tmp_path: Path) -> None:
    forbid = "import os\ndef refuse(*_): raise PermissionError(13, 'memfd_noexec')\nos.memfd_create = refuse\n"
    folder = tmp_path / "tmp"
    folder.mkdir()
    argv = [sys.executable, "-I", "-c", forbid + corezip.BOOTSTRAP]
    env = {"TMPDIR": str(folder)}
    done = subprocess.run(argv, input=corezip.stdin({"op": "ping"}), capture_output=True, env=env, check=True)
    assert json.loads(done.stdout)["result"]["python"]
    assert not list(folder.iterdir())


def test_connection_that_ends_early_is_told(tmp_path: Path) -> None:
    sent = corezip.stdin({"op": "ping"})[:-4000]
    done = subprocess.run(corezip.argv(sys.executable), input=sent, capture_output=True, cwd=tmp_path)
    assert done.returncode == 1 and b"the connection ended after" in done.stderr and not done.stdout


def test_unknown_operation_names_the_known_ones(tmp_path: Path) -> None:
    code, told = ask(corezip.argv(sys.executable), {"op": "no-such"}, tmp_path)
    assert code == 2 and "ping" in told["error"]["way_out"]


def test_same_sources_give_the_same_zip_with_nothing_but_the_core() -> None:
    first = corezip.build()
    corezip.build.cache_clear()
    assert corezip.build() == first
    names = zipfile.ZipFile(BytesIO(first)).namelist()
    here = {p.relative_to(ROOT).as_posix() for p in (ROOT / "hosttune/core").rglob("*.py")}
    assert set(names) == here | {"hosttune/__init__.py"}


def test_request_stands_in_no_argument() -> None:
    assert corezip.argv() == ["python3", "-I", "-c", corezip.BOOTSTRAP]


def test_zipapp_runs_alone_on_its_oldest_python(app: Path) -> None:
    alone = [shutil.which("python3.11") or sys.executable, "-I", "-S"]
    told = subprocess.run([*alone, str(app), "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == "hosttune %s\n" % hosttune.__version__
    assert "Usage:" in subprocess.run([*alone, str(app), "--help"], capture_output=True, text=True, check=True).stdout
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import click, jinja2, markupsafe, pynvml, pyudev, yaml, rich.console, rich.progress, rich.table\n"
        "print(jinja2.Template('{{ x|e }}').render(x='<'), yaml.safe_load('a: [1]'))\n"
        "print({m.__file__.startswith(sys.argv[1]) for m in (click, jinja2, markupsafe, pynvml, pyudev, yaml, rich)})\n"
    )
    told = subprocess.run([*alone, "-c", code, str(app)], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["&lt; {'a': [1]}", "{True}"]


def test_bytecode_travels_with_the_zipapp_and_on_into_containers(app: Path) -> None:
    code = (
        "import json, subprocess, sys; sys.path.insert(0, sys.argv[1])\n"
        "from hosttune.core import corezip\nfrom hosttune.core.door import host\n"
        "program = corezip.BOOTSTRAP.replace('sys.exit(main())', 'print(main.__code__.co_filename)')\n"
        "sent = corezip.stdin({'op': 'ping'})\n"
        "there = subprocess.run([sys.executable, '-Ic', program], input=sent, capture_output=True, text=False, check=True)\n"
        "print(host.digest.__code__.co_filename, there.stdout.decode().strip())\n"
    )
    told = subprocess.run([sys.executable, "-Ic", code, str(app)], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["hosttune/core/door/host.py", "hosttune/core/__main__.py"], "compiled from source, again"


@pytest.mark.parametrize("python", [p for p in NEW if version(p) != sys.version_info[:2]], ids=os.path.basename)
def test_another_python_passes_the_bytecode_over(python: str, app: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from hosttune.core.door import host; print(host.digest(b''))"
    assert len(subprocess.run([python, "-Ic", code, str(app)], capture_output=True, check=True).stdout) == 65


def test_the_zipapp_in_the_cache_is_made_once(tmp_path: Path) -> None:
    ask = [sys.executable, "-m", "hosttune.zipapp", "--cached"]
    runs = [
        json.loads(subprocess.run(ask, env={"XDG_CACHE_HOME": str(tmp_path), "PYTHONHASHSEED": seed},
                                  capture_output=True, check=True).stdout)
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1] and len(list(tmp_path.rglob("hosttune"))) == 2, "a folder and one file"


def imported(tree: ast.AST, name: str) -> set[str]:
    """Files that may be meant by the relative imports of a parsed file."""
    package, found = name.split("/")[:-1], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for parts in [base] + [[*base, alias.name] for alias in node.names]:
                found |= {"/".join(parts) + end for end in (".py", "/__init__.py")}
    return found


@pytest.mark.parametrize("name", dict(corezip.sources()))
def test_imports_are_found_as_python_itself_would(name: str) -> None:
    text = (ROOT / name).read_bytes()
    assert imported(ast.parse(text), name) <= set(corezip.imported(name, text))
