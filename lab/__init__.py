# SPDX-License-Identifier: Apache-2.0
"""The lab: a virtual Proxmox host with eight GPUs that really reboots. docs/lab.md says what in it is real."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class LabError(Exception):
    """The lab cannot do what was asked; the text is one sentence for a person, with the way out."""


def cache() -> Path:
    """Where images and guests live, outside the checkout."""
    return Path(os.environ.get("HOSTTUNE_CACHE") or "~/.cache/hosttune").expanduser() / "lab"


def say(text: str) -> None:
    """Progress, on standard error."""
    sys.stderr.write("lab: %s\n" % text)
