# SPDX-License-Identifier: Apache-2.0
"""A native LXC container with systemd in which engines can run: a virtual environment with xllamacpp, and a tiny model.

xllamacpp is the one of this environment, bound read-only: nothing is downloaded, and 100 MB stay out of the scratch tmpfs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hosttune.core.wanted.profile import Profile, validate
from tests.bench import tiny_gguf
from tests.kernel.conftest import MakeContainer
from tests.kernel.container import Container

VENV = "/opt/xllamacpp"
MODEL = "/srv/models/tiny/tiny.gguf"
PORT = 30000


def package() -> Path | None:
    """The folder of xllamacpp, None where it is not installed."""
    found = importlib.util.find_spec("xllamacpp")
    return Path(found.origin).parent if found and found.origin else None


def container(make: MakeContainer, xllamacpp: Path, unprivileged: bool = False) -> Container:
    """One that is booted, with the model where a container has its models."""
    made = make(bind(xllamacpp), unprivileged=unprivileged)
    install(made)
    write_model(made, MODEL)
    return made.start(booted=True)


def bind(xllamacpp: Path, venv: str = VENV) -> str:
    """The line of a container's config that brings xllamacpp into a venv there."""
    return f"lxc.mount.entry = {xllamacpp} {_site(venv)} none bind,ro,create=dir 0 0\n"


def install(made: Container, venv: str = VENV) -> None:
    """Make that venv. It is three files; the container has no module of that name to make them with."""
    folder = made.rootfs / venv.lstrip("/")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to("/usr/bin/python3")
    (folder / "bin/unhurried").write_text("#!/bin/sh\nexec sleep 600\n")
    (folder / "bin/unhurried").chmod(0o755)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (made.rootfs / _site(venv)).mkdir(parents=True)  # by hand: LXC may not make it in an unprivileged container
    (folder / "lib/python3.11").symlink_to("python3")
    (folder / "lib/python3/site-packages/compressed_tensors-0.8.1.dist-info").mkdir()


def _site(venv: str) -> str:
    return venv.lstrip("/") + "/lib/python3/site-packages/xllamacpp"


def write_model(made: Container, path: str, blocks: int = 16) -> None:
    """The tiny model, at that path in the container."""
    model = made.rootfs / path.lstrip("/")
    model.parent.mkdir(parents=True)
    tiny_gguf.write(model, blocks)


def profile(ct: Container, **engine: Any) -> Profile:
    """A profile with this one engine, called tiny."""
    plain = {"in": "ct:" + ct.name, "engine": "xllamacpp", "venv": VENV, "model": "tiny/tiny.gguf", "port": PORT, "gpus": "none",
             "wait": 60, "args": {"n_ctx": "4096", "n_parallel": "1", "cpuparams.n_threads": "1"}}  # fmt: skip
    return validate({"models": {"tiny": {"source": "/nowhere"}}, "engines": {"tiny": {**plain, **engine}}})
