# SPDX-License-Identifier: Apache-2.0
"""hosttune topo: the machine as a picture."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from ..core.door.host import digest, read_or_none
from ..core.door.live import LiveHost
from ..core.gpu import groups, peers
from ..core.model import WARN, Finding, Refused, as_dict
from ..core.pci import topology
from .output import coloured, utf8
from .profile import load, profile_option
from .replay import host_of, keep_host, replay_option

SCHEMA = "hosttune.topology/1"


@click.command(name="topo")
@click.option("--gpus", metavar="SET", help="Mark this set, and say whether it crosses NUMA nodes: 0-3, 0,2 or numa:0.")
@click.option("--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Draw it into this file, too.")
@click.option(
    "--deep", is_flag=True, help="Ask the driver (nvidia-smi) and CUDA, too, which GPUs reach each other's memory."
)
@click.option("-o", "--output", "format_", type=click.Choice(["text", "json"]), default="text", help="How to print.")
@click.option("--strict", is_flag=True, help="A set that crosses NUMA nodes, or a dispute, makes the exit code 1.")
@click.option("--color", "colour", type=click.Choice(["auto", "always", "never"]), default="auto")
@click.option("--ascii", "ascii_", is_flag=True, help="No character beyond ASCII.")
@profile_option
@replay_option
def command(
    gpus: str | None,
    svg: str | None,
    deep: bool,
    format_: str,
    strict: bool,
    colour: str,
    ascii_: bool,
    profile_path: str | None,
    record: str | None,
    replay: str | None,
) -> int:
    """Sockets, NUMA nodes, PCIe ports and switches, and the GPUs, NICs and NVMe drives below them, with their links; the ways
    between GPUs, and the groups for tensor parallelism that they imply. Reads /sys and /proc alone. Changes nothing. With --deep
    also starts nvidia-smi, and libcuda in a child process, which may load the driver.

    Says which sets cross NUMA nodes: that of --gpus, and those of the engines that the profile declares.
    """
    host = host_of(replay, record)
    machine = topology.see(host)
    asked = peers.ask(host, machine) if deep else None
    keep_host(record, host)
    if not machine.nodes and not machine.devices:
        why = "; ".join("%s: %s" % both for both in machine.unknown[:3])
        raise Refused("no NUMA node and no PCI device can be seen%s" % (" (%s)" % why if why else ""), replay or "/sys")
    chosen = groups.choose(machine, gpus) if gpus is not None else ()
    found = [groups.crossing(machine, chosen)] if chosen else []
    if profile_path or not replay:  # this machine's own profile says nothing of another
        found += groups.of_engines(machine, load(profile_path).engines)
    found += peers.disputes(machine, asked) if asked else []
    if svg:
        _draw(svg, machine, chosen, found, asked)
    if format_ == "json":
        click.echo(json.dumps(_data(machine, chosen, found, asked), indent=2))
    else:
        from ..render import topo_text

        shown = topo_text.render(machine, chosen, found, coloured(colour, sys.stdout), ascii_ or not utf8(), asked)
        click.echo(shown, nl=False, color=True)
    return int(strict and any(f.status == WARN for f in found))


def _draw(
    path: str, machine: topology.Topology, chosen: tuple[int, ...], found: list[Finding], asked: peers.Peers | None
) -> None:
    """A picture is made anew each time: an older one of that name is replaced whole; what is no picture is not."""
    from ..render.topo_svg import render

    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise Refused("there is no such folder", folder)
    host = LiveHost()
    old = read_or_none(host, path)
    if old and "<svg" not in old[:1000]:
        raise Refused("there is another file of that name, and it is no SVG", path, "name another")
    data = render(machine, chosen, found, asked).encode()
    host.replace(path, data, None if old is None else digest(old.encode("utf-8", "surrogateescape")))
    click.echo("drawn in %s" % path, err=True)


def _data(
    machine: topology.Topology, chosen: tuple[int, ...], found: list[Finding], asked: peers.Peers | None
) -> dict[str, Any]:
    """The document: nodes, bridges, devices, ways between GPUs, groups, and what is said of the chosen set. p2p: "unknown"
    where it was not asked."""
    plain: dict[str, Any] = as_dict(machine)
    words = groups.paths(machine)
    numbers = [gpu.number for gpu in machine.gpus if gpu.number is not None]
    return {
        "schema": SCHEMA,
        **plain,
        "unknown": [{"path": where, "why": why} for where, why in machine.unknown],
        "paths": {str(a): {str(b): words[a, b] for b in numbers} for a in numbers},
        "p2p": "unknown" if asked is None else as_dict(asked),
        "groups": as_dict(groups.groups(machine)),
        "chosen": list(chosen),
        "findings": as_dict(found),
    }
