# SPDX-License-Identifier: Apache-2.0
"""The command line as one file for targets: hosttune and the pure-Python libraries it uses, from this environment.

`python -m hosttune.zipapp OUT` writes it; `--cached` in place of OUT keeps it in ~/.cache/hosttune and says where, as JSON.
It runs on any Linux with Python 3.11 or newer and no packages at all: compiled speed-ups are left out (markupsafe and pyyaml
do without), and so are fabric and ansible-core, which are for the machine that one sits at. What is inside is what is
installed here, so these versions were tested together. Bytecode of this very Python lies beside each source: a target with
the same one starts twice as fast, another compiles.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import marshal
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from .core import __version__, corezip
from .core.model import Refused

LIBRARIES = ("click", "h11", "jinja2", "markupsafe", "nvidia-ml-py", "pyudev", "pyyaml", "rich")
"""rich's own requirements (pygments, markdown-it-py) are used by parts of it that hosttune never imports."""

LEGAL = ("METADATA", "LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS")
"""Beginnings of names in *.dist-info that travel along: who made it, under which licence, which version."""

MAIN = b"""\
import sys
from hosttune.__main__ import main
sys.exit(main())
"""


def build() -> bytes:
    """The whole file. Raises Refused when a library is not installed here."""
    return _made(sorted(_contents()))


def _made(contents: Sequence[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    out.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, data in _compiled(contents):
            _add(archive, name, data)
        core = corezip.zipped(sorted(_compiled(list(corezip.sources()))))
        _add(archive, "hosttune/core/" + corezip.READY, core, zipfile.ZIP_STORED)
    return out.getvalue()


def _compiled(contents: Sequence[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """The same with bytecode behind each source. __main__.py of the whole file is only ever run as a source."""
    for name, data in contents:
        yield name, data
        if name.endswith(".py") and name != "__main__.py":
            yield name + "c", _bytecode(name, data)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, how: int = zipfile.ZIP_DEFLATED) -> None:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.compress_type = how
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


def _bytecode(name: str, source: bytes) -> bytes:
    """A .pyc that is never compared with its source (PEP 552): the two lie in one file. Of another Python, it is passed over."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def write(path: Path) -> None:
    """Put the zipapp at `path`, mode 0755, whole or not at all."""
    _put(path, build())


def _put(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=path.name + ".", delete=False) as temp:
        try:
            temp.write(data)
            os.fchmod(temp.fileno(), 0o755)
            os.replace(temp.name, path)
        except BaseException:
            os.unlink(temp.name)
            raise


def cached() -> dict[str, str]:
    """{path, sha256, version} of the file in the user's cache, made anew only when something in it is another."""
    contents = sorted(_contents())
    seen = hashlib.sha256(repr((sys.implementation.cache_tag, importlib.util.MAGIC_NUMBER, MAIN)).encode())
    for name, data in contents:
        seen.update(b"%d %s %d " % (len(name), name.encode(), len(data)) + data)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hosttune" / "zipapp"
    path = cache / seen.hexdigest()[:16] / "hosttune"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(path, _made(contents))
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "version": __version__}


def _contents() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", MAIN
    yield from _tree(files(__package__), "hosttune")
    for library in LIBRARIES:
        try:
            yield from _library(distribution(library))
        except PackageNotFoundError:
            raise Refused("%s is not installed" % library, sys.prefix, "pip install hosttune") from None


def _library(dist: Distribution) -> Iterator[tuple[str, bytes]]:
    for file in dist.files or ():
        folder = file.parts[0]
        wanted = file.name.startswith(LEGAL) if folder.endswith(".dist-info") else file.suffix == ".py"
        if wanted and folder != "..":
            yield file.as_posix(), file.read_binary()


def _tree(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """Everything of the package itself, its data files too; links are followed."""
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _tree(entry, "%s/%s" % (name, entry.name))
        else:
            yield "%s/%s" % (name, entry.name), entry.read_bytes()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m hosttune.zipapp OUT | --cached")
    try:
        if sys.argv[1] == "--cached":
            sys.stdout.write(json.dumps(cached()) + "\n")
        else:
            write(Path(sys.argv[1]))
    except Refused as e:
        sys.exit(str(e))
