# SPDX-License-Identifier: Apache-2.0
"""hosttune doctor: why CUDA does not start."""

from __future__ import annotations

import os
import pwd
import shlex
from dataclasses import replace
from typing import Any

import click

from ..core.doctor.examine import declared_of, examine, judge
from ..core.doctor.survey import Machine
from ..core.door.live import LiveHost
from ..core.gpu import gpus
from ..core.model import Refused, Report
from ..core.recording.redaction import redact
from ..core.recording.replay import load as recordings
from ..core.wanted.profile import Profile
from ..data import machine
from . import replay as recorded_file
from .output import Output, reporting
from .profile import load, profile_option


@click.command(name="doctor")
@click.option(
    "--host",
    "target",
    metavar="SSH",
    help="Look at another host over ssh, such as root@pve1; nothing is installed there.",
)
@click.option(
    "--ct",
    "containers",
    multiple=True,
    metavar="ID",
    help="Look inside this container of the host, too. May be repeated.",
)
@click.option("--as-user", metavar="NAME|UID", help="Ask as this user: root passes file modes that a service does not.")
@click.option(
    "--pid",
    type=click.IntRange(1),
    metavar="PID",
    help="Through the eyes of this process: its user, environment, devices.",
)
@click.option(
    "--service", metavar="UNIT", help="Through the eyes of this systemd unit: its sandbox, user, environment."
)
@click.option(
    "--deep",
    is_flag=True,
    help="Contexts, a tiny kernel and memory of each GPU; what fails is traced, if strace is there.",
)
@click.option(
    "--engine-python",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False),
    help="Ask this Python, of an engine's environment, what its PyTorch says.",
)
@click.option("--gpus", "expected", type=click.IntRange(0, 64), help="How many GPUs CUDA shall count.")
@click.option("--next-boot", is_flag=True, help="Will this host survive its next reboot? Judges what is on disk now.")
@click.option(
    "--record",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write all that was asked and answered into a new file: a bug report.",
)
@click.option(
    "--replay", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Judge a recording; asks no machine."
)
@click.option("--no-redact", is_flag=True, help="Leave names, addresses and UUIDs in the recording.")
@profile_option
@reporting
def command(
    target: str | None,
    containers: tuple[str, ...],
    as_user: str | None,
    pid: int | None,
    service: str | None,
    deep: bool,
    engine_python: str | None,
    expected: int | None,
    next_boot: bool,
    record: str | None,
    replay: str | None,
    no_redact: bool,
    profile_path: str | None,
    output: Output,
) -> int:
    """Say why CUDA does not start here: the first cause, its proof, the fix and where to run it. Changes nothing."""
    if pid and service:
        raise click.UsageError("--pid and --service are two ways to name one process: give one of them")
    if (pid or service) and (containers or target):
        raise click.UsageError("--pid and --service are of this machine: run it there, without --ct and --host")
    if next_boot and (containers or as_user or deep or pid or service or engine_python or expected is not None):
        raise click.UsageError(
            "--next-boot looks at the host and all its containers: none of --ct, --as-user, --pid, --service, --deep, --gpus"
        )
    if replay and (target or containers or record or as_user or deep or pid or service or engine_python):
        raise click.UsageError(
            "--replay asks no machine: it goes with none of --host, --ct, --record, --as-user, --pid, --service, --deep"
        )
    if record:
        recorded_file.refuse_taken(record)
    profile = load(profile_path)
    if next_boot:
        return _next_boot(target, profile, record, replay, no_redact, output)
    eyes = {
        "pid": pid or 0,
        "service": service or "",
        "uid": _uid(as_user),
        "contexts": deep,
        "engine_python": _trusted(engine_python),
    }
    recording = recorded_file.read(replay) if replay else _ask(target, containers, profile, eyes, expected)
    if record:
        _keep(record, recording, no_redact)
    machines, findings = judge(recording, machine)
    here = machines.get("host") or next(iter(machines.values()), None)
    where = str(recording["machines"].get("host", {}).get("uname", "")).split(" ")[0]
    report = Report("doctor", target or where, facts=_facts(here), findings=tuple(findings))
    return output.emit(report, profile)


def _next_boot(target: str | None, profile: Profile, record: str | None, replay: str | None, no_redact: bool,
               output: Output) -> int:  # fmt: skip
    """The same recording serves a local, a remote and a replayed run; the profile is always this command's."""
    from ..core.nextboot.verdict import next_boot, recorded

    if replay:
        recording = recorded_file.read(replay)
    elif target:
        from ..remote import ask

        recording = ask(target, {"op": "next_boot", "profile": dict(profile.plain)})
    else:
        recording = recorded(LiveHost(), profile)
    if record:
        _keep(record, recording, no_redact)
    machines = recordings(recording, machine)
    if "host" not in machines:
        raise Refused(
            'the recording has no machine "host"', replay or "", "hosttune doctor --next-boot --record FILE makes one"
        )
    return replace(output, verbose=True).emit(next_boot(machines["host"], profile), profile)


def _keep(path: str, recording: dict[str, Any], no_redact: bool) -> None:
    recorded_file.keep(path, recording if no_redact else redact(recording))
    click.echo("recorded in %s%s" % (path, "" if no_redact else ", without names, addresses and UUIDs"), err=True)


def _ask(
    target: str | None,
    containers: tuple[str, ...],
    profile: Profile,
    eyes: dict[str, Any],
    expected: int | None,
) -> dict[str, Any]:
    declared = {**eyes, "gpus": None if containers else expected}
    if target:
        from ..remote import ask

        wanted = dict.fromkeys(containers, expected)
        answer: dict[str, Any] = ask(target, {"op": "examine", "containers": wanted, "declared": declared})
        return answer
    host = LiveHost()
    ids = containers or (() if eyes["pid"] or eyes["service"] else tuple(profile.containers))
    counted = {
        ct: expected
        if expected is not None
        else gpus.declared(host, profile.containers[ct].gpus)
        if ct in profile.containers
        else None
        for ct in ids
    }
    return examine(host, counted, declared_of(declared))


def _trusted(path: str | None) -> str:
    """An interpreter that this caller may run: root runs none that belongs to somebody else, nor one in his environment."""
    if path is None:
        return ""
    full = os.path.abspath(path)
    for part in (full, os.path.realpath(full), os.path.dirname(full), os.path.dirname(os.path.dirname(full))):
        owner = os.lstat(part).st_uid
        if os.geteuid() == 0 and owner != 0:
            raise Refused("it belongs to uid %d, and root does not run what another user can change" % owner, part,
                          "sudo -u '#%d' hosttune doctor --engine-python %s" % (owner, shlex.quote(path)))  # fmt: skip
    return full


def _uid(as_user: str | None) -> int | None:
    if as_user is None:
        return None
    if os.geteuid() != 0:
        raise Refused("only root can ask as another user", "--as-user", "sudo hosttune doctor --as-user %s" % as_user)
    try:
        return int(as_user) if as_user.isdigit() else pwd.getpwnam(as_user).pw_uid
    except KeyError:
        raise Refused("there is no such user: %s" % as_user, "--as-user")


def _facts(seen: Machine | None) -> dict[str, str]:
    if seen is None:
        return {}
    return {"kind": seen.kind, "driver": seen.module or "", "gpus": "" if seen.gpus is None else str(len(seen.gpus))}
