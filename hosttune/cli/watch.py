# SPDX-License-Identifier: Apache-2.0
"""hosttune watch: what is declared, kept while the machine runs. The unit hosttune-watch does the same without click."""

from __future__ import annotations

import click

from ..core.door.live import LiveHost
from ..core.unattended import main
from ..core.wanted.profile import PATH

HELP = (
    """When a GPU comes back, was reset, its driver is bound, or a module of it is loaded: look at the settings that %s
declares, and put them right as its `mode` lets. A register that somebody else wrote meanwhile is told, and left. Until it is
interrupted; each line says what was done. As a unit: hosttune apply boot-units."""
    % PATH
)


@click.command(name="watch", help=HELP)
def command() -> int:
    """Listen to the kernel, in the foreground."""
    from ..render.visible import visible

    return main.watching(LiveHost(), lambda line: click.echo(visible(line)))
