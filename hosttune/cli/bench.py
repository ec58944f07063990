# SPDX-License-Identifier: Apache-2.0
"""hosttune bench: measure a running engine by a plan, and report what came of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..bench import plan as plans
from ..bench.plan import ATTACH, Configuration, Plan
from ..bench.results import MANIFEST, VALID, Results, existing, opened, same_plan
from ..core.catalogue import finding
from ..core.door.live import LiveHost
from ..core.model import ERROR, FAIL, OK, SKIP, WARN, Action, Finding, Hint, Refused, Report
from ..core.wanted.profile import Profile
from .output import Output, reporting
from .profile import load, profile_option

if TYPE_CHECKING:
    from ..bench.target import Arm

ROOT = Path("/var/lib/hosttune/results")


@click.group(name="bench")
def command() -> None:
    """Benchmarks of an inference engine whose figures can be trusted, and their report."""


@command.command("run", short_help="carry out a plan against a running engine")
@click.argument("plan_name", metavar="PLAN")
@click.option("--engine", metavar="NAME", help="The engine of the profile to attach to. Default: the only one.")
@click.option("--url", help="Where an engine answers that no profile declares.")
@click.option("--model", default="", help="The name that it serves. Default: the only one.")
@click.option(
    "--results", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Where results go and are continued."
)
@click.option(
    "--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="A file with the key that the server wants."
)
@click.option(
    "--wait",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a server that is not healthy.",
)
@click.option("--retry", is_flag=True, help="Measure invalid configurations again; what was there is kept beside.")
@click.option("--dry-run", is_flag=True, help="Show what would be measured; ask nothing of the engine.")
@click.option("--preflight", is_flag=True, help="Look first, as `hosttune preflight` does; a no-go measures nothing.")
@profile_option
@reporting
def run_(
    plan_name: str,
    engine: str | None,
    url: str | None,
    model: str,
    folder: Path | None,
    api_key_file: Path | None,
    wait: float,
    retry: bool,
    dry_run: bool,
    preflight: bool,
    profile_path: str | None,
    output: Output,
) -> int:
    """Carry out PLAN (a file, or the shipped `smoke`) against a running engine. Run it again to go on where it stopped.

    Each configuration is valid, with figures, or invalid, with reasons. Exit code 1 when one is invalid or missing.
    """
    from ..bench.run import to_do

    plan, profile = plans.load(plan_name), load(profile_path)
    engines = {} if dry_run and not profile.engines else _engines(plan, profile, engine, url)
    folder = folder or _folder(plan, profile, engines)
    there = (folder / MANIFEST).exists()
    rest = to_do(plan, same_plan(folder, plan), retry) if there else list(plan.configurations)
    if dry_run:
        if output.format == "text":
            _show(plan, rest, folder)
            return 0
        return output.emit(_planned(plan, rest, folder, plan_name), profile)
    if rest and preflight and (no_go := _no_go(profile)):
        facts = {"results": str(folder), "plan": plan.name, "verdict": "no-go"}
        return output.emit(Report("bench run", LiveHost().uname()[0], facts, findings=no_go), profile)
    before = _written(folder)
    if rest:
        _measure(plan, _arms(plan, profile, engines, url, model, _key(api_key_file)), folder, wait, retry)
    else:
        click.echo("nothing is left to measure in %s (--retry measures what is invalid again)" % folder, err=True)
    new = [path for path, when in _written(folder).items() if before.get(path) != when]
    effects = tuple({"effect": "measure", "target": path} for path in sorted(new))
    report = replace(_report(plan, existing(folder), folder, plan_name), changed=bool(new), effects=effects)
    return replace(output, verbose=True).emit(report, profile)


def _no_go(profile: Profile) -> tuple[Finding, ...]:
    """What speaks against measuring here now. Nothing is looked at when there is nothing left to measure."""
    from ..core.task import mark_ignored, trouble
    from ..preflight import preflight

    host = LiveHost()
    return tuple(trouble(mark_ignored(preflight(host, profile).findings, profile.ignore, host.clock())))


def _requests(plan: Plan, configuration: Configuration) -> int:
    return configuration.concurrency * (plan.rounds * plan.trials + plan.warm_up)


def _show(plan: Plan, rest: list[Configuration], folder: Path) -> None:
    """What would be measured, for a person."""
    for configuration in plan.configurations:
        click.echo("%s  %s" % ("measure" if configuration in rest else "keep   ", configuration))
    requests = sum(_requests(plan, configuration) for configuration in rest)
    click.echo(
        "%d of %d configurations, %d requests, into %s" % (len(rest), len(plan.configurations), requests, folder)
    )


def _planned(plan: Plan, rest: list[Configuration], folder: Path, plan_name: str) -> Report:
    """The same as a report: what is measured already stands with its figures, what would be measured is a skip."""
    from ..bench.report import gather

    rows = (
        {row.configuration: row for row in gather(existing(folder)).rows}
        if len(rest) < len(plan.configurations)
        else {}
    )
    found = [
        finding("HT800", SKIP, c.key, "to be measured, by %d requests" % _requests(plan, c))
        if c in rest
        else _finding(rows[c], folder, plan_name)
        for c in plan.configurations
    ]
    requests = sum(_requests(plan, configuration) for configuration in rest)
    why = "%d of %d configurations are to be measured" % (len(rest), len(plan.configurations))
    costs = "%d requests to the engine" % requests
    action = Action("measure", plan.name, ("hosttune", "bench", "run", plan_name), why, costs=costs)
    facts = {"results": str(folder), "plan": plan.name, "requests": str(requests)}
    return Report("bench run", LiveHost().uname()[0], facts, tuple(found), (), (action,) if rest else (), mode="plan")


def _written(folder: Path) -> dict[str, int]:
    """Each result that is there, and when it was written."""
    return {str(path): path.stat().st_mtime_ns for path in folder.glob("*.json") if path.name != MANIFEST}


def _measure(plan: Plan, arms: list[Arm], folder: Path, wait: float, retry: bool) -> None:
    import asyncio

    from .. import nvml
    from ..bench import snapshot
    from ..bench.run import run
    from ..bench.target import Attached, look
    from .bench_progress import shown

    first = next((arm.target for arm in arms if isinstance(arm, Attached)), None)
    served = asyncio.run(look(first)).model if first else ""
    host = LiveHost()
    with opened(folder, plan, served) as results, _ending_well(), shown() as watch:
        run(plan, arms, results, host, lambda: snapshot.take(host, nvml.ask()), watch, retry, wait)


def _engines(plan: Plan, profile: Profile, engine: str | None, url: str | None) -> dict[str, str]:
    """The engine of the profile behind each arm of the plan; an arm that attaches to --url has none."""
    found = {}
    for arm, named in plan.arms.items():
        if named != ATTACH:
            if named not in profile.engines:
                raise Refused("the arm %s names the engine %s, which the profile does not declare" % (arm, named), plan.path,
                              "known: %s" % (", ".join(profile.engines) or "none; give --profile FILE"))  # fmt: skip
            found[arm] = named
        elif not url:
            found[arm] = engine or profile.bench.get("engine") or _only(profile.engines)
    return found


def _arms(plan: Plan, profile: Profile, engines: Mapping[str, str], url: str | None, model: str, key: str) -> list[Arm]:
    """An arm of the plan either attaches to what runs, or names an engine of the profile that is started for it."""
    from ..bench.target import Attached, Target
    from ..serve.arm import EngineArm, target

    host = LiveHost()
    arms: list[Arm] = []
    for name, named in plan.arms.items():
        if named != ATTACH:
            arms.append(EngineArm(name, host, profile, named, lambda line: click.echo(line, err=True)))
        elif url:
            arms.append(Attached(name, Target(url, model, key=key)))
        else:
            seen = target(host, profile, engines[name])
            arms.append(Attached(name, replace(seen, model=model or seen.model, key=key)))
    return arms


@contextlib.contextmanager
def _ending_well() -> Iterator[None]:
    """SIGTERM (systemctl stop, a shutdown) ends a run as Ctrl-C does: what ran before the arms is brought back."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _only(engines: Mapping[str, Any]) -> str:
    if len(engines) != 1:
        what = "several engines are declared: %s" % ", ".join(engines) if engines else "no engine is declared here"
        raise Refused(what, "--engine", "say which: --engine NAME, bench.engine in the profile, or --url http://127.0.0.1:PORT")
    return next(iter(engines))


def _key(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise Refused(getattr(e, "strerror", "") or "it is not UTF-8 text", str(path), "--api-key-file FILE")


def _root() -> Path:
    """The place of the host's own results for root, else the user's."""
    if os.getuid() == 0:
        return ROOT
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "hosttune" / "results"


def _folder(plan: Plan, profile: Profile, engines: Mapping[str, str]) -> Path:
    """Where results go by default: named by the plan, the engine, and what that is declared as. An engine that is declared
    anew is measured anew, and what was measured of the earlier one stays beside it."""
    from ..serve.arm import mark

    if not engines:
        return _root() / plan.name
    marks = {name: mark(LiveHost(), profile, name) for name in sorted(set(engines.values()))}
    one = next(iter(marks.values())) if len(marks) == 1 else hashlib.sha256(json.dumps(marks).encode()).hexdigest()
    return _root() / "-".join([plan.name, *(marks if len(marks) == 1 else ()), one[:8]])


def _report(plan: Plan, results: Results, folder: Path, plan_name: str) -> Report:
    from ..bench.report import gather

    bench = gather(results)
    found = [_finding(row, folder, plan_name) for row in bench.rows]
    found += [
        finding("HT808", WARN, c.arm, "not compared with %s: %s" % (c.baseline, c.differs[0]), evidence=c.differs[1:4])
        for c in bench.comparisons
        if c.differs
    ]
    facts = {"results": str(folder), "model": str(results.manifest["model"]), "plan": plan.name}
    return Report("bench run", LiveHost().uname()[0], facts, findings=tuple(found), mode="apply")


def _finding(row: Any, folder: Path, plan_name: str) -> Finding:
    from ..bench.statistics import words

    subject = row.configuration.key
    again = "hosttune bench run %s --results %s" % (plan_name, folder)
    if row.result is None:
        hint = Hint(again, "host", "the time of the measurement")
        return finding("HT800", ERROR, subject, "not measured", hint=hint)
    if row.status == VALID:
        output, ttft = row.figure("output"), row.figure("ttft")
        have = "%s tokens/s, TTFT %s ms, n=%d" % (words(output), words(ttft, 1000), output.n)
        return finding("HT800", OK, subject, have, have=have)
    first = row.reasons[0]
    hint = Hint(again + " --retry", "host", "the time of the measurement, once the cause is gone")
    return finding(
        first["finding"],
        FAIL,
        subject,
        "invalid: %s" % first["text"],
        hint=hint,
        evidence=tuple(reason["text"] for reason in row.reasons[1:4]),
    )


@command.command("report", short_help="what was measured, what was invalid and why")
@click.argument("folder", type=click.Path(path_type=Path), metavar="[DIR]", required=False)
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path), metavar="FILE", help="Also write one self-contained page."
)
def report_(folder: Path | None, html_file: Path | None) -> int:
    """What was measured, under which circumstances, what was invalid and why: Markdown on stdout.

    DIR is a results directory; without it, the one that was written last. Exit code 1 when a result is invalid or missing.
    """
    from ..bench import report
    from ..bench.results import write_text

    folder = folder or _newest()
    bench = report.gather(existing(folder))
    if html_file:
        write_text(html_file, report.html(bench))
        click.echo("wrote %s" % html_file, err=True)
    click.echo(report.markdown(bench), nl=False)
    return 0 if bench.count(VALID) == len(bench.rows) else 1


def _newest() -> Path:
    root = _root()
    found = sorted(root.glob("*/" + MANIFEST), key=lambda path: path.parent.stat().st_mtime)
    if not found:
        raise Refused("there are no results yet", str(root), "hosttune bench run smoke")
    click.echo("results of %s" % found[-1].parent, err=True)
    return found[-1].parent
