# SPDX-License-Identifier: Apache-2.0
"""hosttune/core as a small zip that runs from the standard input of any Python 3.9 or newer.

Nothing is installed and nothing is written to a disk over there: a fixed program text (`BOOTSTRAP`) reads the zip into
memory and imports from it. Data never stands in argv, where every user of that machine could read it.

    standard input:   LENGTH of the zip in decimal, a line feed, the zip, then JSON requests, a line each
    standard output:  a JSON answer for each, a line (hosttune/core/__main__.py)
"""

from __future__ import annotations

import functools
import io
import json
import re
import zipfile
from importlib.resources import files
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from . import __version__

READY = "travelling.zip"
"""A zipapp holds there, beside these files, what build() would make, with the bytecode of the Python that it was made by."""
BOOTSTRAP = """\
import os, sys
if sys.version_info < (3, 9):
    sys.stdout.write('{"error": {"what": "Python is %d.%d, want 3.9 or newer", "where": "%s", '
                     '"way_out": "name a newer Python 3 of this machine"}}\\n'
                     % (sys.version_info[0], sys.version_info[1], sys.executable))
    sys.exit(2)
size = int(sys.stdin.buffer.readline())
code = sys.stdin.buffer.read(size)
if len(code) != size:
    sys.exit("hosttune: the connection ended after %d of %d bytes" % (len(code), size))
try:
    fd = os.memfd_create("hosttune")
except (AttributeError, OSError):
    import tempfile
    fd, path = tempfile.mkstemp()
    os.unlink(path)
while code:
    code = code[os.write(fd, code):]
sys.path.insert(0, "/proc/self/fd/%d" % fd)
from hosttune.core.__main__ import main
sys.exit(main())
"""
"""A kernel may forbid memfd_create (vm.memfd_noexec = 2); then a file of mode 0600 without a name does the same.

It must stay readable to old Pythons, so that they can say that they are too old.
"""


def argv(python: str = "python3") -> List[str]:
    """The command that runs the core over there. For ssh, join it with shlex.join: ssh hands one string to a shell.

    -I: neither environment variables nor the working directory of the other side change what is imported.
    """
    return [python, "-I", "-c", BOOTSTRAP]


@functools.cache
def build() -> bytes:
    """The zip: all of hosttune/core under that name, byte for byte the same for the same sources.

    It is made of the running copy, also when that copy lies in a zip itself (an Ansible module, a zipapp): the core can
    always send itself on, from a controller to a host and from there into a container. A zipapp has it ready.
    """
    ready = _here().joinpath(READY)
    return ready.read_bytes() if ready.is_file() else zipped(sorted(sources()))


def zipped(sources: List[Tuple[str, bytes]], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of (name, data), the same bytes whenever it is made. Compressed little: making it is what takes the time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how, compresslevel=1) as archive:
        for name, data in sources:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = how
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return out.getvalue()


@functools.cache
def opening() -> bytes:
    """What the bootstrap reads before the first request: length and zip."""
    code = build()
    return b"%d\n" % len(code) + code


def stdin(request: Mapping[str, Any]) -> bytes:
    """All that the bootstrap reads for one request: length, zip, request."""
    return opening() + line(request)


def line(request: Mapping[str, Any]) -> bytes:
    """A request as one line, without its end."""
    return json.dumps(request).encode("ascii")


@functools.lru_cache(maxsize=None)
def archive() -> bytes:
    """The part of the core that a boot needs, as a program: `python3 -I FILE knobs`.

    Only what unattended/main.py imports, directly or not, so that every copy of the core makes the same bytes: Ansible bundles
    no more than a module's own imports.
    """
    head = [("__main__.py", b"import sys\n\nfrom hosttune.core.unattended.main import main\n\nsys.exit(main(sys.argv[1:]))\n")]
    # Not compressed: it lies on a disk, and each check makes it anew to compare digests.
    files = closure("hosttune/core/unattended/main.py", _read)
    if not files:
        raise LookupError("this copy of the core holds nothing that a boot could start")
    return zipped([*head, _INIT, *sorted(files.items())], zipfile.ZIP_STORED)


def closure(start: str, read: Callable[[str], Optional[bytes]]) -> Dict[str, bytes]:
    """Every file that a file imports by relative imports, wherever in it they stand, itself included. read: the text of a
    file, None when there is none of that name."""
    found: Dict[str, bytes] = {}
    asked: Set[str] = set()  # most of what may be meant by an import is no file: it is asked for once, not at each import
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in asked:
            continue
        asked.add(name)
        text = read(name)
        if text is not None:
            found[name] = text
            waiting += imported(name, text)
    return found


def imported(name: str, text: bytes) -> List[str]:
    """The names of the files that may be meant by the relative imports of this one, and of the packages that it lies in."""
    package = name.split("/")[:-1]
    names = ["/".join(package[:depth]) + "/__init__.py" for depth in range(2, len(package) + 1)]
    for dots, module, words in _RELATIVE_IMPORT.findall(text.decode()):
        base = package[: len(package) - len(dots) + 1] + (module.split(".") if module else [])
        paths = [base] + [base + word.split()[:1] for word in words.strip("()").split(",")]
        names += ["/".join(parts) + end for parts in paths for end in (".py", "/__init__.py")]
    return names


_RELATIVE_IMPORT = re.compile(r"^[ \t]*from (\.+)([\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
"""Parsing fifty files for what a pattern finds would be most of what a check costs; a test compares the two."""


@functools.cache
def _here() -> Any:
    """The folder of these files. Kept: one in a zip reads the list of all names for each new one."""
    return files(__package__)


def _read(name: str) -> Optional[bytes]:
    path = _here()
    for part in name.split("/")[2:]:  # one at a time: in a zip, Python 3.9 takes no more
        path = path.joinpath(part)
    try:
        data: bytes = path.read_bytes()  # in a zip, Python 3.9 calls everything a file, and KeyError what is not there
    except (OSError, KeyError):
        return None
    return data


def sources() -> Iterator[Tuple[str, bytes]]:
    """Every file of the core by the name that it is imported by."""
    yield _INIT
    yield from _python_files(_here(), "hosttune/core")


_INIT = ("hosttune/__init__.py", b'__version__ = "%s"\n' % __version__.encode())


def _python_files(folder: Any, name: str) -> Iterator[Tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _python_files(entry, "%s/%s" % (name, entry.name))
        elif entry.name.endswith(".py"):
            yield "%s/%s" % (name, entry.name), entry.read_bytes()
