# SPDX-License-Identifier: Apache-2.0
"""Folders of a staged model: made, thinned out, renamed, removed. Past the door, as the copy itself is."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Sequence


def make_folders(top: str, folders: Sequence[str]) -> None:
    """`top` and folders below it, all 0755 whatever the umask says."""
    for folder in [top, *sorted(folders)]:
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o755)


def keep_only(top: str, files: Sequence[str]) -> None:
    """Remove everything below `top` but these files (real paths) and the folders they are in."""
    kept = set(files)
    for folder, folders, names in os.walk(top, topdown=False):
        for name in names:
            if os.path.join(folder, name) not in kept:
                os.unlink(os.path.join(folder, name))
        for name in folders:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                os.unlink(path)
            elif not os.listdir(path):
                os.rmdir(path)


def move(source: str, target: str) -> None:
    """One rename. Raises OSError."""
    os.rename(source, target)


def remove(path: str) -> None:
    """A folder with all in it, or a file; what is not there is no error."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
