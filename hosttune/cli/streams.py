# SPDX-License-Identifier: Apache-2.0
"""Standard streams as hosttune needs them: there, and able to print whatever a machine says."""

from __future__ import annotations

import io
import os
import sys


def repair() -> None:
    """Closed streams go to /dev/null: else the next file that is opened gets their number, and a library that complains
    on descriptor 2 writes into it. A character that the locale cannot print becomes its escape, never an exception."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
