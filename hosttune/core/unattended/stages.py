# SPDX-License-Identifier: Apache-2.0
"""What each unit of a boot does, and the timer's recheck."""

from __future__ import annotations

from typing import Callable, Dict, List

from ..door.host import Host
from ..gpu import gpus
from ..model import Refused, Report
from ..pci import bus
from ..wanted.profile import Profile
from .keeping import Say, askable, containers, declared, knobs, lines, wrong


def run(host: Host, stage: str, say: Say) -> int:
    """One unit's work: "knobs", "devices" or "models". Exit code 0 when all is as wanted, 1 when something is not,
    2 for a bad profile.

    `say` gets each line for the journal of the machine.
    """
    if stage not in STAGES:
        raise Refused("no such stage: %s" % stage, "boot", "one of %s" % ", ".join(sorted([*STAGES, WATCH])))
    profile = declared(host, say)
    if profile is None:
        return 0
    reports = STAGES[stage](host, profile, say)
    for report in reports:
        for line in lines(report, profile.mode == "plan" or stage == RECHECK):
            say(line)
    count = sum(len(wrong(report)) for report in reports)
    say("%s: %s" % (stage, "%d not as wanted" % count if count else "all is as wanted"))
    return 1 if count else 0


def _settings(host: Host, profile: Profile, say: Say) -> List[Report]:
    return knobs(host, profile, which=lambda knob: not knob.after_driver)


def _devices(host: Host, profile: Profile, say: Say) -> List[Report]:
    if profile.mode != "plan" and bus.gpus(host):
        _make_nodes(host, say)
    # Before the driver is there, asking it would load it, and what it is told would be lost with the first program's end.
    return [*knobs(host, profile, which=lambda knob: knob.after_driver), *containers(host, profile, say)]


def _models(host: Host, profile: Profile, say: Say) -> List[Report]:
    from ..stage import add, source
    from ..stage import declared as models

    if not profile.models:
        say("no models are declared")
    # A unit has root's home and nothing of anybody's environment: a cache elsewhere the profile names (`cache` of the model).
    caches = source.hub_caches({}, "/root")
    reports = []
    for name, spec in models.sources(profile).items():
        try:
            reports.append(models.bring(host, profile, name, spec, caches, "never", profile.mode == "plan"))
        except (Refused, OSError) as e:
            reports.append(Report("boot models", findings=(add.refused(name, e),)))
    return reports


def _recheck(host: Host, profile: Profile, say: Say) -> List[Report]:
    return [*knobs(host, profile, dry=True, which=askable(host)), *containers(host, profile, say, dry=True)]


CONTROL_MINOR = 255
"""nvidiactl's minor: -c=0 makes /dev/nvidia0 and nothing else."""


def _make_nodes(host: Host, say: Say) -> None:
    """Load the modules and make every node. nvidia-modprobe takes one kind of node a call: -c=N a GPU (255: nvidiactl),
    -u -c=0 nvidia-uvm and nvidia-uvm-tools. A driver that is not there is said, and containers are gone through anyway."""
    for module in ("nvidia", "nvidia-uvm"):
        ran = host.execute(["modprobe", module], 60)
        if ran.rc:
            say("modprobe %s: %s" % (module, (ran.err.strip().splitlines() or ["exit code %d" % ran.rc])[-1]))
            return
    count = max(gpus.minors(host).values(), default=-1) + 1
    calls = [["nvidia-modprobe", "-c=%d" % minor] for minor in (CONTROL_MINOR, *range(count))]
    calls.append(["nvidia-modprobe", "-u", "-c=0"])
    for argv in calls:
        ran = host.execute(argv, 20)
        if ran.rc:
            say("%s: exit code %d%s" % (" ".join(argv), ran.rc, ": not installed" if ran.rc == 127 else ""))
            return


WATCH, RECHECK = "watch", "recheck"
STAGES: Dict[str, Callable[[Host, Profile, Say], List[Report]]] = {
    "knobs": _settings, "devices": _devices, "models": _models, RECHECK: _recheck,
}  # fmt: skip
