# SPDX-License-Identifier: Apache-2.0
"""How every reporting command prints, and the exit code it ends with."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from .. import __version__
from ..core.model import Report, exit_code
from ..core.wanted.ignore import apply_ignores
from ..core.wanted.profile import Profile

if TYPE_CHECKING:  # it brings the engine, which only a check needs
    from ..core.settings import Setting


@dataclass(frozen=True)
class Output:
    """What the shared options say. started: seconds since the epoch."""

    format: str
    verbose: bool
    strict: bool
    colour: str
    ascii: bool
    started: float

    def emit(
        self,
        report: Report,
        profile: Profile | None = None,
        err: bool = False,
        settings: Mapping[str, Setting] | None = None,
    ) -> int:
        """Print the report on stdout (err: on stderr, where stdout has another use) and return the exit code.

        settings: what is known of each setting, by finding id: the text is then a table of them.
        """
        findings = report.findings
        if profile and profile.ignore:
            findings = tuple(apply_ignores(findings, profile.ignore, self.started))
        if path := _profile_of_this_host():
            from .profile import naming

            findings = tuple(naming(f, path) for f in findings)
        report = replace(
            report, findings=findings, version=__version__, duration_ms=int((time.time() - self.started) * 1000)
        )
        colours = self.format == "text" and coloured(self.colour, sys.stderr if err else sys.stdout)
        click.echo(self._text(report, colours, settings), nl=False, err=err, color=colours)
        return exit_code(report, self.strict)

    def _text(self, report: Report, colours: bool, settings: Mapping[str, Setting] | None) -> str:
        if self.format == "json":
            from ..render import as_json

            return as_json.render(report, self.started, self.strict, settings)
        if self.format == "junit":
            from ..render import junit

            return junit.render(report)
        ascii_only = self.ascii or not utf8()
        if settings is not None:
            from ..render import check_table

            width = shutil.get_terminal_size((100, 24)).columns
            return check_table.render(report, settings, width, colours, ascii_only, self.verbose)
        if report.command == "status":
            from ..render import status_text

            return status_text.render(report, colours, ascii_only, self.verbose)
        from ..render import text

        return text.render(report, colours, ascii_only, self.verbose)


def _profile_of_this_host() -> str:
    """What --profile names, "" for nothing. A fix for another host is run there, where that file is not; and what came through
    /dev/stdin, as from Ansible, nobody can name a second time."""
    context = click.get_current_context(silent=True)
    said = context.params if context else {}
    path: str = "" if said.get("host") or said.get("replay") else said.get("profile_path") or ""
    return "" if path.startswith(("/dev/", "/proc/")) else path


def coloured(choice: str, stream: TextIO) -> bool:
    """Whether colours shall be written there. choice: auto, always or never; NO_COLOR and FORCE_COLOR decide under auto."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty() and os.environ.get("TERM") != "dumb"


def utf8() -> bool:
    """Whether stdout takes characters beyond ASCII."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def reporting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds -o, -v, --strict, --color and --ascii; the function gets them as `output`."""

    @click.option(
        "-o", "--output", "format_", type=click.Choice(["text", "json", "junit"]), default="text", help="How to print."
    )
    @click.option("-v", "--verbose", is_flag=True, help="Show what is well and what does not apply, too.")
    @click.option("--strict", is_flag=True, help="A warning also makes the exit code 1.")
    @click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto")
    @click.option("--ascii", "ascii_", is_flag=True, help="No character beyond ASCII.")
    @functools.wraps(command)
    def with_output(
        *args: Any, format_: str, verbose: bool, strict: bool, color: str, ascii_: bool, **kwargs: Any
    ) -> Any:
        return command(*args, output=Output(format_, verbose, strict, color, ascii_, time.time()), **kwargs)

    return with_output
