# SPDX-License-Identifier: Apache-2.0
"""hosttune lxc: device access of LXC containers on this host."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..core.door.host import Host
from ..core.door.live import LiveHost
from ..core.lxc import cuda, docker, fleet, needs, outlook, see, store, sync, vms
from ..core.lxc.needs import Wanted
from ..core.lxc.patience import Patience
from ..core.machine.devices import DeviceTable, Node, device_table
from ..core.model import Hint, Refused, Report
from ..core.wanted.ignore import apply_ignores
from ..core.wanted.keys import CONTAINER
from ..core.wanted.kinds import value
from ..core.wanted.profile import Container, Profile
from ..render.visible import visible
from .output import Output, reporting
from .profile import load, profile_option


@click.group(name="lxc")
def command() -> None:
    """Device access of LXC containers: show it, preview an edit, make it so, heal it live."""


def wanted_options(with_profile: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds what a container is wanted to have, as `words`; what is not given comes from the profile, then from the defaults."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        options = [
            click.option("--form", type=click.Choice(needs.FORMS), help="keep (default) heals the form that is there."),
            click.option("--gpus", metavar="GPUS", help='all, minors ("0,1"), PCI addresses, UUIDs, or "numa:0"; and no others. '
                         "Default: those it has now."),
            click.option("--caps", is_flag=True, default=None, help="/dev/nvidia-caps too (MIG, some monitoring)."),
            click.option("--dri", is_flag=True, default=None, help="The /dev/dri nodes of its GPUs too (not needed for CUDA)."),
            click.option("--cpus", metavar="CPUS", help='Pin it: numa (its GPUs\' NUMA node) or a list ("0-15,64-79").'),
            click.option("--drop", multiple=True, type=click.IntRange(1, 511), metavar="MAJOR",
                         help="This major is stale, whatever it once was for. May be repeated."),
            click.option("--repair", is_flag=True, help="Mend lines that Proxmox VE would drop, where their meaning is plain."),
            click.option("--prune", is_flag=True, help="Also drop stale rules of which nobody can tell what they were for."),
        ]  # fmt: skip
        for option in reversed(options):
            function = option(function)
        return profile_option(function) if with_profile else function

    return add


def _declared(profile: Profile, ct_id: str, words: dict[str, Any]) -> Container | None:
    """The profile's container with the command line's words on top; None when neither says anything."""
    base = profile.containers.get(ct_id)
    said = {key: words[key] for key in ("form", "gpus", "caps", "dri", "cpus") if words.get(key) is not None}
    if base is None and not said:
        return None
    for key, word in said.items():
        value(CONTAINER.keys[key], word, "--" + key)
    return replace(base or Container(gpu="optional", gpus=""), **said)


def _wanted(host: Host, profile: Profile, ct_id: str, words: dict[str, Any], given: dict[int, str] | None = None) -> Wanted:
    declared = _declared(profile, ct_id, words)
    serves = outlook.serves(profile.engines, ct_id)
    return outlook.wanted_of(host, declared, words["drop"], words["prune"], serves, given, words["repair"])


SYNC = "hosttune lxc sync "


def _as_asked(report: Report, words: dict[str, Any], profile_path: str | None = None) -> Report:
    """A report whose `hosttune lxc sync ID` asks for the same as this command did: pasted without its words it would do
    something else."""
    asked = {"--" + key: words.get(key) for key in ("form", "gpus", "caps", "dri", "cpus", "drop", "repair", "prune")}
    asked["--profile"] = profile_path
    return replace(report, findings=tuple(replace(f, hint=_with_options(f.hint, asked)) for f in report.findings))


def _with_options(hint: Hint, asked: dict[str, Any]) -> Hint:
    if not hint.command.startswith(SYNC) or "&" in hint.command or "#" in hint.command:
        return hint
    there = shlex.split(hint.command)
    more: list[tuple[str, ...]] = []
    for name, given in asked.items():
        if isinstance(given, tuple):  # may be repeated
            more += [(name, str(one)) for one in given if str(one) not in there]
        elif given and name not in there:
            more.append((name,) if given is True else (name, str(given)))
    return replace(hint, command=" ".join([hint.command, *(shlex.join(option) for option in more)]))


@command.command(name="show", short_help="what it gets, what is wrong with it, what sync would do")
@click.argument("ct_id", metavar="ID")
@wanted_options(with_profile=True)
@reporting
def show(ct_id: str, profile_path: str | None, output: Output, **words: Any) -> int:
    """What container ID gets, rule by rule; what is wrong with it; what sync would do. Changes nothing.

    Exit code: 0 nothing to do, 1 something to do or to warn of, 2 refused.
    """
    profile, host = load(profile_path), LiveHost()
    report = sync.show(host, ct_id, _wanted(host, profile, ct_id, words))
    if report.facts["running"] != "no":
        config = store.find(host, ct_id)
        report = replace(report, findings=(*report.findings, *docker.advice(host, config, see.devices_for(host, config))))
    report = _as_asked(report, words, profile_path)
    judged = replace(report, findings=tuple(apply_ignores(report.findings, profile.ignore, output.started)))
    if output.format == "text":
        _tell_gets(report)
    return max(output.emit(judged), sync.code(judged))


def _tell_gets(report: Report) -> None:
    """A line for each device line: where it stands, what it says, what it means now."""
    facts = report.facts
    state = "does not run" if facts["running"] == "no" else "runs (%s)" % facts["running"]
    click.echo("%s  %s, %s" % (facts["config"], facts["kind"], state))
    rows = [row.split("\t") for row in facts["gets"].split("\n") if row]
    own = facts["config"] + ":"
    said = [(place.removeprefix(own), _short(visible(says)), visible(means)) for place, says, means in rows]
    width = max([len(says) for _, says, _ in said], default=0)
    for number, says, means in said:
        click.echo("  %5s  %s  %s" % (number, says.ljust(width), means))


def _short(line: str) -> str:
    """A device line without what all of them begin with; the whole line stands in the file."""
    text = re.sub(r"lxc\.(?:cgroup2\.devices\.|mount\.)(allow|deny|entry)\s*[:=]\s*", r"\1 ", line)
    return text if len(text) <= 48 else text[:45] + "..."


@command.command(name="sync", short_help="heal file and running container; restart only by policy")
@click.argument("ct_ids", metavar="ID...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every container of this host that has, or is declared to have, GPUs.")
@click.option("--dry-run", is_flag=True, help="Show the changes, make none.")
@click.option("--restart", type=click.Choice(["never", "idle", "always"]),
              help="never (default) names what a restart would destroy; idle restarts when that is nothing.")  # fmt: skip
@click.option("--wait-quorum", type=click.IntRange(0, 3600), default=0, metavar="SECONDS",
              help="If there is something to write, wait so long for the cluster's quorum.")  # fmt: skip
@wanted_options(with_profile=True)
@reporting
def sync_(ct_ids: tuple[str, ...], every: bool, dry_run: bool, restart: str | None, wait_quorum: int, profile_path: str | None,
          output: Output, **words: Any) -> int:  # fmt: skip
    """Heal containers: the config file, then the running container by live rules, then (by policy) a restart.

    The file is backed up, replaced in one step under Proxmox VE's own lock, read back and journalled; then every node is
    opened inside again, and CUDA is started. Several containers: one that is refused keeps no other from being healed.
    """
    profile, host = load(profile_path), LiveHost()
    if every == bool(ct_ids):
        raise Refused("name containers, or --all", "hosttune lxc sync", "hosttune lxc sync 200, or hosttune lxc sync --all")
    quorum = Patience(wait_quorum, lambda line: click.echo(line, err=True))
    if len(ct_ids) == 1:
        ct_id = ct_ids[0]
        policy = restart or (profile.containers[ct_id].restart if ct_id in profile.containers else "never")
        wanted = _wanted(host, profile, ct_id, words)
        report = sync.sync(host, ct_id, wanted, policy, dry_run, prove=cuda.starts, quorum=quorum)
        return _told(output, _as_asked(_allowed(report, policy, dry_run), words, profile_path), profile)
    devices = see.device_table_of(host)
    ids = fleet.every(host, devices, profile.containers) if every else dict.fromkeys(ct_ids)
    given = vms.assigned(host)
    orders = {ct_id: _order(host, profile, ct_id, words, restart, given) for ct_id in ids}
    reports = fleet.sync_each(host, orders, dry_run, cuda.starts, quorum, devices)
    reports = [_allowed(report, orders[ct_id].restart, dry_run) for ct_id, report in zip(orders, reports, strict=True)]
    mode = "plan" if dry_run else "apply"
    merged = fleet.merged(reports, "lxc sync", host.uname()[0], mode)
    return _told(output, _as_asked(merged, words, profile_path), profile)


def _told(output: Output, report: Report, profile: Profile) -> int:
    """Print the report, below it how each file is put back without hosttune, and return the exit code."""
    code = output.emit(report, profile)
    if output.format == "text":
        for line in filter(None, report.facts.get("restore", "").split("\n")):
            click.echo("to put it back without hosttune:  " + line)
    return code


def _order(host: Host, profile: Profile, ct_id: str, words: dict[str, Any], restart: str | None,
           given: dict[int, str]) -> fleet.Order:  # fmt: skip
    policy = restart or (profile.containers[ct_id].restart if ct_id in profile.containers else "never")
    return fleet.Order(lambda: _wanted(host, profile, ct_id, words, given), policy)


def _allowed(report: Report, policy: str, dry_run: bool) -> Report:
    """A dry run without the restarts that the policy forbids: they stand in the findings, with all that they destroy."""
    if not dry_run:
        return report
    return replace(report, actions=tuple(action for action in report.actions if fleet.may(action, policy)))


@command.command(name="live", short_help="heal the running container alone, at once")
@click.argument("ct_id", metavar="ID")
@click.option("--dry-run", is_flag=True, help="Show the rule, do not add it.")
@profile_option
@reporting
def live(ct_id: str, dry_run: bool, profile_path: str | None, output: Output) -> int:
    """Give the running container ID the rules it lacks, at once. Not persistent: its file is left alone."""
    profile, host = load(profile_path), LiveHost()
    wanted = _wanted(host, profile, ct_id, {"drop": (), "prune": False, "repair": False})
    report = sync.live(host, ct_id, wanted, dry_run)
    if report.changed and output.format == "text":
        click.echo("not persistent: it ends with the next start; the file is healed by: hosttune lxc sync " + ct_id, err=True)
    return output.emit(report, profile)


@command.command(name="preview", short_help="what sync would make of a copy of a config")
@click.argument("file", type=click.Path(exists=True, dir_okay=False), metavar="FILE")
@click.option("--devices", required=True, type=click.Path(exists=True, dir_okay=False), metavar="DEVICES",
              help="A recording of the host, or a copy of its /proc/devices.")  # fmt: skip
@click.option("--gpu-count", type=click.IntRange(0, 64),
              help="With a /proc/devices text: the host has /dev/nvidia0 to N-1 (default: /dev is unknown).")  # fmt: skip
@click.option(
    "--pve-container", metavar="VERSION", help="With a /proc/devices text: version of the package, such as 5.3.5."
)
@click.option("--required", is_flag=True, help="It shall not start without its GPUs (gpu: required).")
@wanted_options(with_profile=False)
@reporting
def preview(file: str, devices: str, gpu_count: int | None, pve_container: str | None, required: bool, output: Output,
            **words: Any) -> int:  # fmt: skip
    """What sync would make of a copy of a config, anywhere: the new file on stdout, findings on stderr.

    With -o json or junit the report holds both (`facts.file`). DEVICES from a recording also tells NUMA nodes, PCI addresses
    and UUIDs. Exit code: 0 nothing to do, 1 something to do or to warn of, 2 refused.
    """
    with Path(file).open("rb") as copy:
        data = copy.read(store.PMXCFS_FILE_LIMIT + 1)
    if len(data) > store.PMXCFS_FILE_LIMIT:
        raise Refused("no container config is larger than %d bytes" % store.PMXCFS_FILE_LIMIT, file)
    if b"\0" in data:
        raise Refused("this is not a container config: it holds NUL bytes", file)
    host, table = _table(devices, gpu_count, pve_container)
    report, new = sync.preview(data, file, _previewed(host, table, words, required), table, "container")
    report = _as_asked(report, words)
    if output.format == "text":
        sys.stdout.buffer.write(new)
        sys.stdout.buffer.flush()
        output.emit(replace(report, steps=()), err=True)
    else:
        output.emit(report)
    return sync.code(report)


def _previewed(host: Host | None, table: DeviceTable, words: dict[str, Any], required: bool) -> Wanted:
    """What the words mean on a recorded host, or (minors alone) on a list of device numbers."""
    declared = _declared(Profile(), "", words)
    if host is not None and declared is not None:
        wanted = outlook.wanted_of(host, declared, words["drop"], words["prune"])
        return replace(wanted, required=required, repair=words["repair"])
    gpus, cpus = words["gpus"], words["cpus"] or ""
    if gpus not in (None, "all") and not re.fullmatch(r"\d+(,\d+)*", gpus):
        raise Refused("%s can be told from a recording only" % gpus, "--gpus", "name minors (0,1), or record the host: "
                      "hosttune doctor --record FILE")
    if cpus == "numa":
        raise Refused("the NUMA node of its GPUs can be told from a recording only", "--cpus numa", "name the CPUs: --cpus 0-15")
    chosen = () if gpus is None else None if gpus == "all" else tuple(sorted({int(n) for n in gpus.split(",")}))
    dri = tuple(path for path, _ in table.below("/dev/dri")) if words["dri"] else ()
    return Wanted(chosen, required, words["form"] or needs.KEEP, bool(words["caps"]), words["drop"], words["prune"], dri,
                  "" if cpus == "any" else cpus, repair=words["repair"])  # fmt: skip


def _table(path: str, gpu_count: int | None, pve_container: str | None) -> tuple[Host | None, DeviceTable]:
    """The host, where it was recorded, and its devices."""
    text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    if text.lstrip().startswith("{"):
        return _recorded(path, text)
    if "Character devices:" not in text:
        raise Refused("neither a recording nor a copy of /proc/devices", path, "cat /proc/devices > FILE on the host")
    version = tuple(int(n) for n in re.findall(r"\d+", pve_container)) if pve_container else None
    bare = device_table(text)
    if gpu_count is None:
        return None, device_table(text, pve_container=version)
    nodes = {"/dev/nvidia%d" % n: Node("char", 195, n) for n in range(gpu_count)}
    nodes["/dev/nvidiactl"] = Node("char", 195, 255)
    uvm = bare.major("nvidia-uvm")
    if uvm is not None:
        nodes.update({"/dev/nvidia-uvm": Node("char", uvm, 0), "/dev/nvidia-uvm-tools": Node("char", uvm, 1)})
    return None, device_table(text, nodes, version)


def _recorded(path: str, text: str) -> tuple[Host, DeviceTable]:
    from ..core.recording.replay import load as machines
    from ..data import machine

    try:
        hosts = machines(json.loads(text), machine)
    except (ValueError, RecursionError) as e:
        raise Refused("this is not JSON: %s" % getattr(e, "msg", e), "%s:%s" % (path, getattr(e, "lineno", 1)))
    if "host" not in hosts:
        raise Refused('the recording has no machine "host"', path)
    return hosts["host"], see.device_table_of(hosts["host"])
