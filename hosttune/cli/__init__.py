# SPDX-License-Identifier: Apache-2.0
"""The command line. Each command has a file of its own."""

from __future__ import annotations

import click

from .. import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="hosttune %(version)s")
def hosttune() -> None:
    """See, judge and change multi-GPU Linux hosts."""


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    done = hosttune(standalone_mode=False)
    return done if isinstance(done, int) else 0
