# SPDX-License-Identifier: Apache-2.0
"""hosttune lxc: device access of LXC containers on this host."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..core.devices import DeviceTable, Node, device_table
from ..core.ignore import apply_ignores
from ..core.live import LiveHost
from ..core.lxc import needs, outlook, see, sync
from ..core.lxc.needs import Wanted
from ..core.model import Refused
from ..core.profile import Container, Profile
from .output import Output, reporting
from .profile import load, profile_option


@click.group(name="lxc")
def command() -> None:
    """Device access of LXC containers: show it, preview an edit, make it so, heal it live."""


def wanted_options(with_profile: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds --form, --gpus, --caps and --drop; what is not given comes from the profile, then from the defaults."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        options = [
            click.option("--form", type=click.Choice(needs.FORMS), help="keep (default) heals the form that is there."),
            click.option("--gpus", metavar="GPUS", help='all, minors such as "0,1", or "numa:0". Default: those it has now.'),
            click.option("--caps", is_flag=True, default=None, help="/dev/nvidia-caps too (MIG, some monitoring)."),
            click.option("--drop", multiple=True, type=click.IntRange(1, 511), metavar="MAJOR",
                         help="This major is stale, whatever it once was for. May be repeated."),
        ]  # fmt: skip
        for option in reversed(options):
            function = option(function)
        return profile_option(function) if with_profile else function

    return add


def _declared(profile: Profile, ct_id: str, form: str | None, gpus: str | None, caps: bool | None) -> Container | None:
    """The profile's container with the command line's words on top; None when neither says anything."""
    base = profile.containers.get(ct_id)
    if base is None and form is None and gpus is None and not caps:
        return None
    base = base or Container(gpu="optional")
    return replace(base, form=form or base.form, gpus=gpus or base.gpus, caps=base.caps if caps is None else caps)


def _wanted(host: LiveHost, declared: Container | None, drop: tuple[int, ...]) -> Wanted:
    return outlook.wanted_of(host, declared, drop) if declared else Wanted(drop=drop)


@command.command(name="show", short_help="what it gets, what is wrong with it, what sync would do")
@click.argument("ct_id", metavar="ID")
@wanted_options(with_profile=True)
@reporting
def show(ct_id: str, form: str | None, gpus: str | None, caps: bool | None, drop: tuple[int, ...], profile_path: str | None,
         output: Output) -> int:  # fmt: skip
    """What container ID gets, what is wrong with it, and what sync would do. Changes nothing.

    Exit code: 0 nothing to do, 1 something to do or to warn of, 2 refused.
    """
    profile, host = load(profile_path), LiveHost()
    declared = _declared(profile, ct_id, form, gpus, caps)
    report = sync.show(host, ct_id, _wanted(host, declared, drop))
    judged = replace(report, findings=tuple(apply_ignores(report.findings, profile.ignore, output.started)))
    return max(output.emit(judged), sync.code(judged))


@command.command(name="sync", short_help="heal file and running container; restart only by policy")
@click.argument("ct_id", metavar="ID")
@click.option("--dry-run", is_flag=True, help="Show the changes, make none.")
@click.option("--restart", type=click.Choice(["never", "idle", "always"]),
              help="never (default) names what a restart would destroy; idle restarts when that is nothing.")  # fmt: skip
@wanted_options(with_profile=True)
@reporting
def sync_(ct_id: str, dry_run: bool, restart: str | None, form: str | None, gpus: str | None, caps: bool | None,
          drop: tuple[int, ...], profile_path: str | None, output: Output) -> int:  # fmt: skip
    """Heal container ID: its config file, then the running container by a live rule, then (by policy) a restart.

    The file is backed up, replaced in one step under Proxmox VE's own lock, read back and journalled; then every node is
    opened inside again.
    """
    profile, host = load(profile_path), LiveHost()
    declared = _declared(profile, ct_id, form, gpus, caps)
    policy = restart or (declared.restart if declared else "never")
    return output.emit(sync.sync(host, ct_id, _wanted(host, declared, drop), policy, dry_run), profile)


@command.command(name="live", short_help="heal the running container alone, at once")
@click.argument("ct_id", metavar="ID")
@click.option("--dry-run", is_flag=True, help="Show the rule, do not add it.")
@profile_option
@reporting
def live(ct_id: str, dry_run: bool, profile_path: str | None, output: Output) -> int:
    """Give the running container ID the rules it lacks, at once. Not persistent: its file is left alone."""
    profile, host = load(profile_path), LiveHost()
    declared = profile.containers.get(ct_id)
    return output.emit(sync.live(host, ct_id, _wanted(host, declared, ()), dry_run), profile)


@command.command(name="preview", short_help="what sync would make of a copy of a config")
@click.argument("file", type=click.Path(exists=True, dir_okay=False), metavar="FILE")
@click.option("--devices", required=True, type=click.Path(exists=True, dir_okay=False), metavar="DEVICES",
              help="A recording of the host, or a copy of its /proc/devices.")  # fmt: skip
@click.option("--gpu-count", type=click.IntRange(0, 64),
              help="With a /proc/devices text: the host has /dev/nvidia0 to N-1 (default: /dev is unknown).")  # fmt: skip
@click.option(
    "--pve-container", metavar="VERSION", help="With a /proc/devices text: version of the package, such as 5.3.5."
)
@wanted_options(with_profile=False)
@reporting
def preview(file: str, devices: str, gpu_count: int | None, pve_container: str | None, form: str | None, gpus: str | None,
            caps: bool | None, drop: tuple[int, ...], output: Output) -> int:  # fmt: skip
    """What sync would make of a copy of a config, anywhere: the new file on stdout, findings on stderr.

    Exit code: 0 nothing to do, 1 something to do or to warn of, 2 refused.
    """
    data = Path(file).read_bytes()
    if b"\0" in data:
        raise Refused("this is not a container config: it holds NUL bytes", file)
    table = _table(devices, gpu_count, pve_container)
    chosen = _minors(gpus)
    wanted = Wanted(chosen, form=form or needs.KEEP, caps=bool(caps), drop=drop)
    report, new = sync.preview(data, file, wanted, table, "container")
    if output.format == "text":
        sys.stdout.buffer.write(new)
        sys.stdout.buffer.flush()
        output.emit(replace(report, steps=()), err=True)
    else:
        output.emit(report)
    return sync.code(report)


def _minors(gpus: str | None) -> tuple[int, ...] | None:
    if gpus is None:
        return ()
    if gpus == "all":
        return None
    if not re.fullmatch(r"\d+(,\d+)*", gpus):
        raise Refused("%s is neither all nor minors such as 0,1" % gpus, "--gpus")
    return tuple(sorted({int(n) for n in gpus.split(",")}))


def _table(path: str, gpu_count: int | None, pve_container: str | None) -> DeviceTable:
    text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    if text.lstrip().startswith("{"):
        return _recorded(path, text)
    if "Character devices:" not in text:
        raise Refused("neither a recording nor a copy of /proc/devices", path, "cat /proc/devices > FILE on the host")
    version = tuple(int(n) for n in re.findall(r"\d+", pve_container)) if pve_container else None
    bare = device_table(text)
    if gpu_count is None:
        return device_table(text, pve_container=version)
    nodes = {"/dev/nvidia%d" % n: Node("char", 195, n) for n in range(gpu_count)}
    nodes["/dev/nvidiactl"] = Node("char", 195, 255)
    uvm = bare.major("nvidia-uvm")
    if uvm is not None:
        nodes.update({"/dev/nvidia-uvm": Node("char", uvm, 0), "/dev/nvidia-uvm-tools": Node("char", uvm, 1)})
    return device_table(text, nodes, version)


def _recorded(path: str, text: str) -> DeviceTable:
    from ..core.recording import load as machines
    from ..data import machine

    try:
        hosts = machines(json.loads(text), machine)
    except (ValueError, RecursionError) as e:
        raise Refused("this is not JSON: %s" % getattr(e, "msg", e), "%s:%s" % (path, getattr(e, "lineno", 1)))
    if "host" not in hosts:
        raise Refused('the recording has no machine "host"', path)
    return see.device_table_of(hosts["host"])
