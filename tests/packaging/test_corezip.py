# SPDX-License-Identifier: Apache-2.0
"""The core runs from standard input, on the oldest Python it promises, and leaves nothing behind."""

from __future__ import annotations

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


def test_zipapp_runs_alone_on_its_oldest_python(tmp_path: Path) -> None:
    app = tmp_path / "hosttune.pyz"
    subprocess.run([sys.executable, "-m", "hosttune.zipapp", str(app)], check=True, cwd=tmp_path)
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
