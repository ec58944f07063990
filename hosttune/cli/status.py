# SPDX-License-Identifier: Apache-2.0
"""hosttune status: one screen after a reboot."""

from __future__ import annotations

import click

from ..core.live import LiveHost
from ..core.status import status
from .output import Output, reporting
from .profile import load, profile_option


@click.command(name="status")
@profile_option
@reporting
def command(profile_path: str | None, output: Output) -> int:
    """What survived the reboot, what is gone, and what would be done about it: settings, then containers. Changes nothing."""
    profile = load(profile_path)
    return output.emit(status(LiveHost(), profile), profile)
