# SPDX-License-Identifier: Apache-2.0
"""A native LXC container with systemd in which engines can run: a virtual environment with xllamacpp, and a tiny model.

xllamacpp is the one of this environment, bound read-only: nothing is downloaded, and 100 MB stay out of the scratch tmpfs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hosttune.core.profile import Profile, validate
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
    """One that is booted. A venv is three files; the container has no module of that name to make them with."""
    site = "opt/xllamacpp/lib/python3/site-packages/xllamacpp"
    made = make(f"lxc.mount.entry = {xllamacpp} {site} none bind,ro,create=dir 0 0\n", unprivileged=unprivileged)
    venv = made.rootfs / VENV.lstrip("/")
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to("/usr/bin/python3")
    (venv / "bin/unhurried").write_text("#!/bin/sh\nexec sleep 600\n")
    (venv / "bin/unhurried").chmod(0o755)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (made.rootfs / site).mkdir(parents=True)  # by hand: LXC may not make it in an unprivileged container
    (venv / "lib/python3.11").symlink_to("python3")
    model = made.rootfs / MODEL.lstrip("/")
    model.parent.mkdir(parents=True)
    tiny_gguf.write(model)
    return made.start(booted=True)


def profile(ct: Container, **engine: Any) -> Profile:
    """A profile with this one engine, called tiny."""
    plain = {"in": "ct:" + ct.name, "engine": "xllamacpp", "venv": VENV, "model": "tiny/tiny.gguf", "port": PORT, "gpus": "none",
             "wait": 60, "args": {"n_ctx": "4096", "n_parallel": "1", "cpuparams.n_threads": "1"}}  # fmt: skip
    return validate({"models": {"tiny": {"source": "/nowhere"}}, "engines": {"tiny": {**plain, **engine}}})
