# SPDX-License-Identifier: Apache-2.0
"""hosttune unit: inference engines as systemd units."""

from __future__ import annotations

from dataclasses import replace

import click

from ..core.model import Finding, Refused, Report
from ..core.place import Reaching
from ..core.wanted.profile import PATH, Profile
from .output import Output, reporting
from .profile import load, profile_option


@click.group(name="unit")
def command() -> None:
    """The engines of the profile, each a systemd unit: render, check, diff, start, stop, restart, wait."""


def _named(profile: Profile, names: tuple[str, ...]) -> tuple[str, ...]:
    chosen = names or tuple(profile.engines)
    if not chosen:
        raise Refused(
            "no engine is declared", "engines", "name one under engines: in the profile (--profile FILE, or %s)" % PATH
        )
    return chosen


@command.command(name="render", short_help="print a unit as start would write it")
@click.argument("name")
@profile_option
def render(name: str, profile_path: str | None) -> int:
    """Print the unit of engine NAME, as start would write it. Looks at this host's GPUs; changes nothing."""
    from ..serve import declare, devices, unit

    profile, host = load(profile_path), Reaching()
    declared = declare.engine(profile, name)
    made = unit.render(declared, devices.devices(host, declared, profile))
    for path, text in made.files.items():
        if len(made.files) > 1:
            click.echo("# %s" % path)
        click.echo(text, nl=False)
    return 0


@command.command(name="check", short_help="is all there that a start needs, and does it answer")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@profile_option
@reporting
def check(names: tuple[str, ...], profile_path: str | None, output: Output) -> int:
    """Is all that a start needs there; do NCCL and systemd read the unit as it is meant; does it answer. Changes nothing."""
    from ..serve import alive, launch, loader, see, written

    profile, host = load(profile_path), Reaching()
    found: list[Finding] = []
    for name in _named(profile, names):
        try:
            seen = see.see(host, profile, name, health=True)
            found += [*launch.launchable(seen), *written.lint(seen), written.files(seen), *written.verified(seen)]
            found += alive.running(seen)
            found += loader.judge(host, seen)
        except Refused as e:
            if names:
                raise
            found.append(see.unseen(name, e))
    return output.emit(Report("unit check", host.uname()[0], findings=tuple(found), mode="plan"), profile)


@command.command(name="diff", short_help="what start would write, line by line")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@profile_option
@reporting
def diff(names: tuple[str, ...], profile_path: str | None, output: Output) -> int:
    """What start would write, line by line. Exit code: 0 nothing, 1 something. Changes nothing."""
    from ..serve import see, written

    profile, host = load(profile_path), Reaching()
    found = [see.see(host, profile, name) for name in _named(profile, names)]
    report = Report("unit diff", host.uname()[0], findings=tuple(written.files(one) for one in found),
                    steps=tuple(step for one in found for step in see.steps(one)), mode="plan")  # fmt: skip
    return output.emit(report, profile)


def _timeout(function: click.decorators.FC) -> click.decorators.FC:
    told = "How long to wait. Default: `wait` of the engine, else 1800."
    return click.option("--timeout", type=click.FloatRange(min=0.1), metavar="SECONDS", help=told)(function)


def _answers(report: Report) -> bool:
    """Whether it was seen to answer already, as an engine that runs was."""
    return any((f.id, f.status) == ("HT605", "ok") for f in report.findings)


def _options(function: click.decorators.FC) -> click.decorators.FC:
    function = click.option("--dry-run", is_flag=True, help="Show what would be done, do nothing.")(function)
    return profile_option(function)  # type: ignore[return-value]


@command.command(name="start", short_help="write units that differ, start engines that do not run")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--wait/--no-wait", "waits", default=False, help="Also wait until each answers; without it, not.")
@_timeout
@_options
@reporting
def start(
    names: tuple[str, ...], waits: bool, timeout: float | None, dry_run: bool, profile_path: str | None, output: Output
) -> int:
    """Write the units that differ, and start the engines that do not run. One that runs is never restarted."""
    from ..serve import start as starting

    profile, host = load(profile_path), Reaching()
    reports = []
    for name in _named(profile, names):
        report = starting.start(host, profile, name, dry_run)
        reports.append(report)
        if waits and not dry_run and report.mode == "apply" and not _answers(report):
            rest = tuple(f for f in report.findings if f.id != "HT605")  # it runs already, and does not answer yet
            if not any(f.status == "fail" for f in rest):
                reports[-1] = replace(report, findings=rest)
                reports.append(_wait(host, profile, name, timeout or 0))
    return output.emit(_joined("unit start", host, reports, dry_run), profile)


@command.command(name="stop", short_help="end engines with all their processes")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_options
@reporting
def stop(names: tuple[str, ...], dry_run: bool, profile_path: str | None, output: Output) -> int:
    """End engines with all their processes, and say what that ended."""
    from ..serve import start as starting

    profile, host = load(profile_path), Reaching()
    reports = [starting.stop(host, profile, name, dry_run) for name in names]
    return output.emit(_joined("unit stop", host, reports, dry_run), profile)


@command.command(name="restart", short_help="stop and start engines; says what that ends")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--wait/--no-wait", "waits", default=False, help="Also wait until each answers; without it, not.")
@_options
@reporting
def restart(names: tuple[str, ...], waits: bool, dry_run: bool, profile_path: str | None, output: Output) -> int:
    """Stop engines and start them as declared; says what that ends. Nothing is stopped if the new start could not work."""
    from ..serve import start as starting

    profile, host = load(profile_path), Reaching()
    reports = []
    for name in names:
        report = starting.restart(host, profile, name, dry_run)
        reports.append(report)
        if waits and report.changed and not any(f.status == "fail" for f in report.findings):
            reports.append(_wait(host, profile, name, 0))
    return output.emit(_joined("unit restart", host, reports, dry_run), profile)


@command.command(name="wait", short_help="until they answer; their journal meanwhile")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_timeout
@profile_option
@reporting
def wait(names: tuple[str, ...], timeout: float | None, profile_path: str | None, output: Output) -> int:
    """Until each engine answers; its journal on stderr meanwhile. When it dies: why."""
    profile, host = load(profile_path), Reaching()
    reports = [_wait(host, profile, name, timeout or 0) for name in _named(profile, names)]
    return output.emit(_joined("unit wait", host, reports, True), profile)


def _wait(host: Reaching, profile: Profile, name: str, timeout: float) -> Report:
    from ..render.visible import visible
    from ..serve.wait import wait as waiting

    return waiting(host, profile, name, timeout, lambda line: click.echo("%s | %s" % (name, visible(line)), err=True))


def _joined(command: str, host: Reaching, reports: list[Report], dry_run: bool) -> Report:
    """Several reports as one. A later word on one subject stands beside the earlier one."""
    joined = Report(command, host.uname()[0], mode="plan" if dry_run else "apply")
    for r in reports:
        joined = replace(joined, findings=joined.findings + r.findings, steps=joined.steps + r.steps,
                         actions=joined.actions + r.actions, changed=joined.changed or r.changed,
                         facts={**joined.facts, **r.facts})  # fmt: skip
    return replace(joined, effects=tuple(host.effects))
