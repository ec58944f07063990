# SPDX-License-Identifier: Apache-2.0
"""hosttune status: one screen after a reboot."""

from __future__ import annotations

import os

import click

from ..core.door.live import LiveHost
from ..core.stage import source
from ..core.status import status
from .output import Output, reporting
from .profile import load, profile_option


@click.command(name="status")
@profile_option
@reporting
def command(profile_path: str | None, output: Output) -> int:
    """What survived the reboot, what is gone, and who brings it back: settings, device nodes, containers' rules, models, engines,
    and hosttune's own units. Changes nothing. -v shows every line that would change.
    """
    profile, host = load(profile_path), LiveHost()
    engines = []
    if profile.engines:
        from ..serve.standing import standing  # only who declares an engine waits for it

        engines = standing(host, profile)
    caches = source.hub_caches(os.environ, os.path.expanduser("~"))
    return output.emit(status(host, profile, caches, engines), profile)
