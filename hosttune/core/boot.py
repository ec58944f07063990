# SPDX-License-Identifier: Apache-2.0
"""What hosttune does by itself: systemd units, and what they run. At each boot:

hosttune-knobs    the settings of the profile, before nvidia-persistenced makes the GPUs ready
hosttune-devices  the driver's modules and nodes, the settings that the driver itself keeps, then the device rules of the
                  profile's containers, before Proxmox VE starts guests (pve-guests) or its HA manager does (pve-ha-lrm)
hosttune-stage    the profile's models into memory, which a reboot has emptied; beside the guests' start, since it takes
                  minutes: containers have the (still empty) mount from their start on

and while the machine runs:

hosttune-watch    the settings again, when a GPU comes back, was reset, or its driver is loaded (watch.py)
hosttune-recheck  by a timer: is all still as declared? Writes nothing; what is not stands in the machine's journal, and in
                  `systemctl --failed`

Those of the boot are bounded in time and nothing requires them: a guest's start is ordered after the first two and never
fails with them. The kernel parameter hosttune=off, or a file /etc/hosttune/off, stops them. They do what the profile's `mode`
lets them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from . import engine
from .door.host import Host, digest, read_or_none
from .door.live import LiveHost
from .gpu import gpus
from .knobs import BY_ID, KNOBS, boot_units
from .model import Finding, Knob, Refused, Report
from .pci import bus
from .task import fixes
from .wanted.places import json_lines
from .wanted.profile import PATH, Profile, validate

OFF = "/etc/hosttune/off"
QUORUM_SECONDS = 60
"""How long hosttune-devices waits for /etc/pve to be writable. The unit's own limit is longer."""

Say = Callable[[str], None]


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


def declared(host: Host, say: Say) -> Optional[Profile]:
    """The profile of this machine; None, said why, when hosttune is off or nothing is wanted. Refused for a bad one."""
    if "hosttune=off" in (read_or_none(host, "/proc/cmdline") or "").split() or read_or_none(host, OFF) is not None:
        say("off: by hosttune=off on the kernel command line or by %s; nothing is done" % OFF)
        return None
    text = read_or_none(host, PATH)
    if text is None:
        say("there is no %s: nothing is wanted" % PATH)
        return None
    try:
        data = json.loads(text)
    except ValueError:
        raise Refused("this is not JSON", PATH, "ansible-playbook hosttune.hosttune.site writes it anew") from None
    return validate(data, PATH, KNOBS, json_lines(text, PATH))


def wrong(report: Report) -> List[Finding]:
    """What is not as wanted, or could not be told."""
    return [f for f in report.findings if f.status in ("fail", "error") and not f.ignored]


def lines(report: Report, dry: bool) -> List[str]:
    """For the machine's journal: what was done (dry: would be), and what is wrong with its fix."""
    would = "would change" if dry else "changed"
    told = ["%s %s" % (would, step.target) for step in report.steps]
    told += ["%s: %s" % ("would run" if dry else "ran", " ".join(action.argv)) for action in report.actions]
    return told + fixes(report.findings)


def knobs(
    host: Host,
    profile: Profile,
    dry: bool = False,
    which: Callable[[Knob], bool] = lambda knob: True,
    known: Mapping[str, Knob] = KNOBS,
) -> List[Report]:
    """The settings of the profile, put right unless its mode is plan, or dry."""
    declared = {name: want for name, want in (profile.knobs or {}).items() if name != boot_units.NAME}
    wants = {name: want for name, want in engine.wants_of((), declared, known).items() if which(known[name])}
    done = engine.tune(host, wants, known, BY_ID, dry or profile.mode == "plan")
    return [Report("boot knobs", findings=tuple(done.findings), steps=tuple(done.steps))]


def _devices(host: Host, profile: Profile, say: Say) -> List[Report]:
    if profile.mode != "plan" and bus.gpus(host):
        _make_nodes(host, say)
    # Before the driver is there, asking it would load it, and what it is told would be lost with the first program's end.
    return [*knobs(host, profile, which=lambda knob: knob.after_driver), *containers(host, profile, say)]


def containers(host: Host, profile: Profile, say: Say, dry: bool = False) -> List[Report]:
    """The device rules of the profile's containers, put right without a restart unless its mode is plan, or dry."""
    from .lxc import fleet, outlook, patience, vms  # the other stages start without them

    given = vms.assigned(host) if profile.containers else {}
    orders = {
        ct_id: fleet.Order(functools.partial(outlook.wanted_of, host, one, given=given))
        for ct_id, one in profile.containers.items()
    }
    # Only what is stale is written, and only then the quorum is waited for.
    quorum = patience.Patience(QUORUM_SECONDS, say)
    return fleet.sync_each(host, orders, dry or profile.mode == "plan", quorum=quorum)


def _models(host: Host, profile: Profile, say: Say) -> List[Report]:
    from .stage import add, declared, source

    if not profile.models:
        say("no models are declared")
    # A unit has root's home and nothing of anybody's environment: a cache elsewhere is named by its directory.
    caches = source.hub_caches({}, "/root")
    reports = []
    for name, spec in declared.sources(profile).items():
        try:
            reports.append(declared.bring(host, profile, name, spec, caches, "never", profile.mode == "plan"))
        except (Refused, OSError) as e:
            reports.append(Report("boot models", findings=(add.refused(name, e),)))
    return reports


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


def _settings(host: Host, profile: Profile, say: Say) -> List[Report]:
    return knobs(host, profile, which=lambda knob: not knob.after_driver)


def askable(host: Host) -> Callable[[Knob], bool]:
    """Which knobs may be asked now: those that ask the driver only where it is loaded, since to ask it would load it."""
    loaded = read_or_none(host, "/proc/driver/nvidia/version") is not None
    return lambda knob: loaded or not (knob.after_driver or knob.starts)


def _recheck(host: Host, profile: Profile, say: Say) -> List[Report]:
    return [*knobs(host, profile, dry=True, which=askable(host)), *containers(host, profile, say, dry=True)]


WATCH, RECHECK = "watch", "recheck"
STAGES: Dict[str, Callable[[Host, Profile, Say], List[Report]]] = {
    "knobs": _settings, "devices": _devices, "models": _models, RECHECK: _recheck,
}  # fmt: skip


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # to whoever watches the boot, and before a time limit may end this process


def main(words: Sequence[str]) -> int:
    """What a unit starts: one stage, told to the journal line by line."""
    try:
        if words and words[0] == WATCH:
            return watching(LiveHost(), _tell)
        return run(LiveHost(), words[0] if words else "", _tell)
    except Refused as e:
        sys.stderr.write("%s\n" % e)
        return 2


def watching(host: Host, say: Say) -> int:
    """The watch on this machine's kernel, until it is ended from outside."""
    from . import ears, inotify, uevents, watch

    files = None
    try:
        files = inotify.GpuFiles(say)
    except OSError as e:
        say(inotify.deaf(e))

    def listen(forget: bool) -> FrozenSet[str]:
        if files is None:
            return frozenset()
        if forget:
            files.drain()
        with contextlib.suppress(OSError):  # a function that goes away while it is looked at: its event comes
            return files.listen(gpu.bdf for gpu in bus.gpus(host))
        return frozenset()

    ear = ears.Ears(uevents.Uevents(), files)
    try:
        return watch.watch(host, say, lambda seconds: ear.wait(seconds, watch.wakes), listen)
    finally:
        ear.close()


def with_profile(profile: Profile) -> Tuple[Dict[str, Knob], Dict[str, Knob]]:
    """The knobs by name and by id, the boot units bound to this profile and this code. Without a profile: as they are."""
    from . import corezip
    from .stage import source

    if not profile.plain:
        return KNOBS, BY_ID
    text = json.dumps(profile.plain, indent=1, sort_keys=True) + "\n"
    # hf: is no reason to wait: at boot it means the cache on this machine, and nothing is fetched.
    far = any(source.ssh_of(str(model["source"])) for model in profile.models.values())
    bound = boot_units.bound(text, "sha256:" + digest(corezip.archive()), far)
    return dict(KNOBS, **{bound.name: bound}), dict(BY_ID, **{bound.id: bound})
