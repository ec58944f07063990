# SPDX-License-Identifier: Apache-2.0
"""Which way imports point, and who may touch a machine. Read from the syntax trees; nothing is imported.

core <- ansible, render, serve, bench, nvml, inventory, remote ... <- cli <- __main__
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "hosttune"
FILES = sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py"))
CORE = [f for f in FILES if f.startswith("core/")]

PAST_THE_DOOR = {
    "core/door/live.py": "it is the door",
    "core/door/command.py": "runs commands for the door",
    "core/door/child.py": "starts the child process in which the door asks risky questions",
    "core/door/child_script.py": "it is that child process",
    "core/unattended/uevents.py": "hears what the kernel announces, which no question can wait for",
    "core/unattended/inotify.py": "hears who closes a GPU's node or writes its config space: the same",
    "core/unattended/ears.py": "waits for both",
    "core/__main__.py": "ping tells about its own process",
    "core/stage/copy.py": "copies gigabytes, which no question or effect of the door is made for",
    "core/stage/reading.py": "reads them",
    "core/stage/chunks.py": "hashes them",
    "core/stage/together.py": "gives each thread its buffer, and counts the CPUs",
    "core/stage/pace.py": "sets the nice level of the threads that copy them",
    "core/stage/begun.py": "notes each chunk as it is copied, by the thread that copied it",
    "core/stage/folders.py": "makes and thins out folders for them",
    "core/stage/contents.py": "finds holes and zeros in weights, at offsets that no question of the door has",
    "core/stage/nodes.py": "binds a file's pages to a NUMA node, by mbind(2)",
    "core/stage/pages.py": "maps staged files, to see in which pages and on which nodes they lie",
    "core/stage/over_ssh.py": "holds ssh connections through which gigabytes come",
    "bench/results.py": "keeps results for whoever runs a benchmark, not settings of the machine",
    "cli/streams.py": "gives a closed standard stream a place",
    "cli/__init__.py": "the same, when nobody reads what is printed",
    "hub.py": "follows a download of an hour line by line, in a Python that has the hub's library",
    "zipapp.py": "writes the file that it is asked for",
}
"""Files that touch a machine without asking a Host, each with its reason. A file that no longer does so must leave."""

BENEATH = {
    "door": set(),
    "machine": {"door"},
    "recording": {"door", "machine"},
    "configured": {"door"},
    "pci": {"door"},
    "gpu": {"door", "machine", "pci"},
    "wanted": set(),
}
"""The lower rooms of core, each with the rooms that it may use. Above them: engine, knobs, lxc, stage, doctor."""
NOUNS = {"core/__init__.py", "core/model.py", "core/catalogue.py"}
"""What any file of core may use besides."""

MACHINE_MODULES = {
    *("asyncio", "ctypes", "fcntl", "glob", "mmap", "multiprocessing", "pathlib", "pty", "resource", "select"),
    *("shutil", "signal", "socket", "subprocess", "tempfile", "urllib.request"),
}
PURE_OS = {"PathLike", "fsdecode", "fsencode", "major", "makedev", "minor", "path", "sep", "strerror"}
PURE_IO = {"BytesIO", "StringIO"}
PURE_OS_PATH = {"abspath", "basename", "commonpath", "dirname", "isabs", "join", "normpath", "relpath", "split"}


def parse(file: str) -> ast.Module:
    floor = (3, 9) if file.startswith(("core/", "ansible/")) else (3, 11)
    return ast.parse((PACKAGE / file).read_text(), file, feature_version=floor)


def absolute_imports(tree: ast.AST) -> set[str]:
    """Dotted names of modules that are imported absolutely, function bodies included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
    return found


def own_imports(tree: ast.AST, file: str) -> set[str]:
    """First two parts ("core/model", "cli") of what a file imports from hosttune itself, however it is written."""
    here = ["hosttune", *file.split("/")[:-1]]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            names = [base + [alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "hosttune" and len(name) > 1}
    return found


def uses(tree: ast.AST, file: str) -> set[str]:
    """Files of core that a file of core imports relatively: "core/door/host.py"."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*file.split("/")[: -node.level], *(node.module or "").split(".")]
            for name in ["/".join(filter(None, [*base, *end])) for alias in node.names for end in ([], [alias.name])]:
                found |= {name + end for end in (".py", "/__init__.py") if name + end in FILES}
    return found


def touches(tree: ast.AST) -> Iterator[str]:
    """Each place where a tree reaches for the machine: open(), os.unlink(), import subprocess ..."""
    for name in absolute_imports(tree):
        if name in MACHINE_MODULES or name.split(".")[0] in MACHINE_MODULES:
            yield "import %s" % name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield "line %d: open()" % node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module in ("io", "os", "os.path"):
            yield "line %d: from %s import ..., which hides what is used" % (node.lineno, node.module)
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if node.attr not in {"io": PURE_IO, "os": PURE_OS, "os.path": PURE_OS_PATH}.get(owner, {node.attr}):
                yield "line %d: %s.%s" % (node.lineno, owner, node.attr)


@pytest.mark.parametrize("file", CORE)
def test_core_is_python_3_9_and_imports_the_standard_library_only(file: str) -> None:
    foreign = {n for n in absolute_imports(parse(file)) if n.split(".")[0] not in sys.stdlib_module_names}
    assert not foreign, "%s travels to targets alone; import within core relatively" % file


@pytest.mark.parametrize("file", CORE)
def test_core_loads_no_ctypes_when_it_is_imported(file: str) -> None:
    top = [node for node in parse(file).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [n for node in top for n in absolute_imports(node) if n.split(".")[0] == "ctypes"]


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith("ansible/")])
def test_ansible_modules_import_what_travels_with_them(file: str) -> None:
    for name in absolute_imports(parse(file)):
        known = name.split(".")[0] in sys.stdlib_module_names or name.startswith("ansible.module_utils.")
        assert known, "%s: Ansible does not send %s along: from ..module_utils.core import ..." % (file, name)


def may_import(file: str) -> set[str]:
    """Names below hosttune that a file may import: "*" for all."""
    room = file.split("/")[0]
    if room == "core":
        return {"core"}
    if file == "__init__.py":
        return {"core"}
    if room == "ansible":
        return {"ansible"}  # ..module_utils.core, a link that exists in the collection only
    return {"*"} if room in ("cli", "__main__.py") else {"*", "-cli"}


@pytest.mark.parametrize("file", FILES)
def test_imports_point_towards_core(file: str) -> None:
    allowed, used = may_import(file), own_imports(parse(file), file)
    if "-cli" in allowed:
        assert "cli" not in used, "%s must not know the command line" % file
    if "*" not in allowed:
        assert used <= allowed, "%s may import %s only" % (file, sorted(allowed))


@pytest.mark.parametrize("file", CORE)
def test_core_reaches_the_machine_through_the_door_only(file: str) -> None:
    if file not in PAST_THE_DOOR:
        assert not list(touches(parse(file))), "%s: ask the Host, or list it in PAST_THE_DOOR with the reason" % file


@pytest.mark.parametrize("file", [f for f in CORE if f.split("/")[1] in BENEATH])
def test_lower_rooms_of_core_know_nothing_of_the_upper_ones(file: str) -> None:
    room = file.split("/")[1]
    above = {name for name in uses(parse(file), file) - NOUNS if name.split("/")[1] not in BENEATH[room] | {room}}
    assert not above, "%s may use %s of core's rooms only" % (file, sorted(BENEATH[room]) or "none")


@pytest.mark.parametrize("file", [f for f in FILES if f not in CORE])
def test_faces_start_no_process_and_open_no_file_past_the_door(file: str) -> None:
    wide = [t for t in touches(parse(file)) if "open()" in t or "os.open" in t or "os.popen" in t or "subprocess" in t]
    if file not in PAST_THE_DOOR:
        assert not wide, "%s: ask the Host, or list it in PAST_THE_DOOR with the reason" % file


@pytest.mark.parametrize("file", PAST_THE_DOOR)
def test_no_exception_outlives_its_reason(file: str) -> None:
    assert list(touches(parse(file))), "%s touches nothing past the door: take it off the list" % file


@pytest.mark.parametrize(
    ("code", "caught"),
    [
        ("import subprocess", True),
        ("def f():\n    from subprocess import run", True),
        ("open('/etc/x')", True),
        ("import os\nos.unlink('x')", True),
        ("import io\nio.open('x')", True),
        ("import os\nos.path.exists('x')", True),
        ("from os.path import exists", True),
        ("import os\nos.path.join('a', 'b'), os.strerror(1), os.major(1)", False),
        ("import os\nos.path.basename('/a').startswith('b')", False),
        ("from urllib.parse import quote", False),
        ("host.open('x'); host.read('/proc/devices')", False),
    ],
)
def test_the_search_for_touches_finds_them(code: str, caught: bool) -> None:
    assert bool(list(touches(ast.parse(code)))) is caught


@pytest.mark.parametrize(
    ("file", "code", "names"),
    [
        ("core/lxc/store.py", "from ..door.host import Host", {"core"}),
        ("core/knobs/numa.py", "from ... import cli", {"cli"}),
        ("render/text.py", "from ..cli import main", {"cli"}),
        ("remote.py", "def f():\n    import hosttune.cli.main", {"cli"}),
        ("ansible/modules/tune.py", "from ..module_utils.core import engine", {"ansible"}),
    ],
)
def test_the_search_for_imports_finds_them(file: str, code: str, names: set[str]) -> None:
    assert own_imports(ast.parse(code), file) == names


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from ..door.host import Host", {"core/door/host.py"}),
        ("from ..door import host, live", {"core/door/__init__.py", "core/door/host.py", "core/door/live.py"}),
        ("def f():\n    from .. import engine", {"core/__init__.py", "core/engine/__init__.py"}),
        ("from . import bus", {"core/pci/__init__.py", "core/pci/bus.py"}),
        ("from ..knobs import BY_ID", {"core/knobs/__init__.py"}),
        ("import json", set()),
    ],
)
def test_the_search_for_used_files_finds_them(code: str, found: set[str]) -> None:
    assert uses(ast.parse(code), "core/pci/link.py") == found
