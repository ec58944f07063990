# SPDX-License-Identifier: Apache-2.0
"""hosttune stage: models into memory. Progress on stderr, the report on stdout."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import click

from ..core.door.live import LiveHost
from ..core.stage import declared, pages, source, space
from ..core.stage import drop as dropping
from ..core.stage import verify as verifying
from ..core.stage.pace import Pace
from ..core.stage.progress import Progress
from ..core.wanted.profile import Profile
from .output import Output, reporting
from .profile import load, profile_option

_Command = TypeVar("_Command", bound=Callable[..., object])


@click.group(name="stage")
def command() -> None:
    """Models in memory: into hosttune's own tmpfs, verified, whole or not at all, seen by containers at /srv/models."""


def _caches() -> tuple[str, ...]:
    return source.hub_caches(os.environ, os.path.expanduser("~"))


def _rate(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Bytes a second, 0 for as fast as it goes."""
    try:
        return text if text is None else 0.0 if text == "none" else space.rate_of(text)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


def paced(function: _Command) -> _Command:
    """--limit and --nice."""
    nice = click.option("--nice", type=click.IntRange(0, 19), help="Behind others at CPUs and disk.")
    limit = click.option("--limit", callback=_rate, metavar="RATE", help="At most so much a second, as in 2GB/s, or none.")
    return limit(nice(function))


def _rest(now: Progress) -> str:
    """, 2.1 GB/s, 12 s left: as much of it as is known, and nothing before there is something to go by."""
    if now.bytes * 100 < now.total:
        return ""
    left = "" if now.left is None or now.left < 1 else ", %d s left" % now.left
    return ", %s/s%s" % (space.size_text(now.rate), left) if now.rate else ""


class Line:
    """Progress on stderr: one line that is written over where a terminal shows it; else one line an event, and one for each tenth
    without any, for one file may take minutes."""

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.started, self.said, self.fetching = time.monotonic(), 0, False

    def staged(self, now: Progress) -> None:
        """Told by the copy."""
        size, total = space.size_text(now.bytes), space.size_text(now.total)
        if now.event == "wait":
            self._event("%s: another run of hosttune is staging; waiting for it to end" % now.name)
        elif now.event == "start":
            self.started, self.said = time.monotonic(), now.bytes
            there = ", of which %s are there" % space.size_text(now.there) if now.there else ""
            self._event("%s: %s in %d files to copy%s" % (now.name, total, now.of - now.files, there))
        elif now.event == "file":
            self.said = now.bytes
            self._event("%s: %s of %s%s, file %d of %d: %s" % (now.name, size, total, _rest(now), now.files, now.of, now.file))
        elif now.event == "end":
            seconds = max(time.monotonic() - self.started, 1e-3)
            how, copied = "hashed" if now.hashed else "not hashed yet", now.total - now.there
            there = "; %s were there from an earlier run" % space.size_text(now.there) if now.there else ""
            self._event("%s: %s in %.1f s, %s/s, %s%s" % (
                now.name, space.size_text(copied), seconds, space.size_text(copied / seconds), how, there))
        else:
            self._often("%s: %s of %s (%d%%), %d of %d files%s" % (
                now.name, size, total, 100 * now.bytes // max(1, now.total), now.files, now.of, _rest(now)), now.bytes, now.total)

    def fetched(self, done: int, total: int) -> None:
        """Told by a download."""
        if not self.fetching:
            self._event("download: %s" % space.size_text(total))
        self.fetching = True
        said = "download: %s of %s (%d%%)" % (space.size_text(done), space.size_text(total), 100 * done // max(1, total))
        self._often(said, done, total)

    def read(self, done: int, total: int) -> None:
        """Told by verify."""
        said = "verify: %s of %s (%d%%)" % (space.size_text(done), space.size_text(total), 100 * done // max(1, total))
        self._often(said, done, total)

    def _often(self, text: str, done: int, total: int) -> None:
        """All the time on a terminal, else when a tenth has come since the last line."""
        if self.terminal and total:
            self._over(text)
        elif (done - self.said) * 10 >= max(1, total):
            self.said = done
            self._event(text)

    def _event(self, text: str) -> None:
        click.echo(("\r\033[K" if self.terminal else "") + text, err=True)

    def _over(self, text: str) -> None:
        click.echo("\r\033[K" + text, nl=False, err=True)

    def end(self) -> None:
        """Leave a clean line."""
        if self.terminal:
            click.echo("\r\033[K", nl=False, err=True)


@command.command(name="add", short_help="bring a model into memory")
@click.argument("model")
@click.option("--source", "spec", default="", metavar="SOURCE",
              help="A directory, ssh:HOST:DIRECTORY, or hf:REPO@REVISION (cache, else hub). Default: the profile's.")  # fmt: skip
@click.option("--restart", type=click.Choice(["never", "idle", "always"]),
              help="Of the containers that use it. Default: as the profile says, else never.")  # fmt: skip
@click.option("--threads", type=click.IntRange(0, 256), default=0, help="Default: one for each CPU, at most 32.")
@paced
@click.option("--hash", "when", type=click.Choice(declared.HASHED),
              help="later: copy at memory speed; stage verify compares. Default: as the profile says, else now.")  # fmt: skip
@click.option("--token-file", metavar="FILE", help="Of mode 0600, with the hub's token. Default: the profile's, else HF_TOKEN.")
@click.option("--evict", is_flag=True, help="Take others out of memory for it: nobody's first; none that is in use.")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@profile_option
@reporting
def add(model: str, spec: str, restart: str | None, threads: int, limit: float | None, nice: int | None, when: str | None,
        token_file: str | None, evict: bool, dry_run: bool, profile_path: str | None, output: Output) -> int:  # fmt: skip
    """Bring MODEL into memory. Refused, with the sum, if it does not fit; a run that was killed goes on where it was."""
    profile, line = load(profile_path), Line()
    # A path that a person types may be relative; one in a profile may not.
    spec = os.path.abspath(spec) if spec and not spec.startswith(("hf:", "ssh:")) else spec
    host, token = LiveHost(), token_file or str(profile.models.get(model, {}).get("token-file", ""))

    def fetch(repository: str, revision: str, caches: Sequence[str]) -> None:
        from .. import hub

        hub.fetch(host, repository, revision, caches[0], token, hub.pythons(profile, os.environ), line.fetched)

    report = declared.bring(host, profile, model, spec, _caches(), restart, dry_run, line.staged, threads, evict, fetch,
                            declared.pace_of(profile, model, limit, nice), when)  # fmt: skip
    line.end()
    return output.emit(report, profile)


@command.command(name="status", short_help="what is in memory, is it whole, and the room left")
@profile_option
@reporting
def show(profile_path: str | None, output: Output) -> int:
    """What is in memory, whether it is whole, what would be done, and the room that is left. Reads no weights."""
    profile = load(profile_path)
    report = declared.overview(LiveHost(), profile, _caches(), pages.look)
    if output.format == "text":
        for name, value in report.facts.items():
            click.echo("%-8s %s" % (name, value))
    return replace(output, verbose=True).emit(report, profile)  # what is well is what was asked for


@command.command(name="verify", short_help="read every byte and compare with the digests")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@paced
@click.option("--repair", is_flag=True, help="Copy the damaged chunks again, and only those.")
@profile_option
@reporting
def verify(models: tuple[str, ...], limit: float | None, nice: int | None, repair: bool, profile_path: str | None,
           output: Output) -> int:  # fmt: skip
    """Read every byte of each MODEL (of all that are staged) and compare with its digests; what was not hashed when it was
    copied, with the hub's hash or with its source."""
    profile, line = load(profile_path), Line()
    report = verifying.verify(LiveHost(), models, line.read, repair=repair, pace=Pace(limit or 0, nice or 0),
                              declared=frozenset(profile.models))  # fmt: skip
    line.end()
    return replace(output, verbose=True).emit(report, profile)  # what is as it was copied is what was asked for


@command.command(name="drop", short_help="remove a model from memory")
@click.argument("model")
@click.option("--force", is_flag=True, help="Even if a process has it mapped.")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@reporting
def drop(model: str, force: bool, dry_run: bool, output: Output) -> int:
    """Remove MODEL from memory. Its source stays."""
    report = dropping.drop(LiveHost(), model, force, dry_run)
    if report.changed:
        click.echo("%s: dropped" % model, err=True)
    return output.emit(report, Profile())
