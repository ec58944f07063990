# SPDX-License-Identifier: Apache-2.0
"""What hosttune does by itself at each boot: three systemd units, and what they run.

hosttune-knobs    the settings of the profile, before nvidia-persistenced makes the GPUs ready
hosttune-devices  the driver's modules and nodes, then the device rules of the profile's containers, before Proxmox VE
                  starts guests (pve-guests) or its HA manager does (pve-ha-lrm)
hosttune-stage    the profile's models into memory, which a reboot has emptied; beside the guests' start, since it takes
                  minutes: containers have the (still empty) mount from their start on

All are bounded in time and nothing requires them: a guest's start is ordered after the first two and never fails with
them. The kernel parameter hosttune=off, or a file /etc/hosttune/off, stops them. They do what the profile's `mode` lets them.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Callable, Dict, List, Sequence, Tuple

from . import engine, gpus, pci
from .host import Host, digest, errname, read_or_none
from .knobs import BY_ID, KNOBS, boot_units
from .live import LiveHost
from .model import Knob, Refused, Report
from .profile import PATH, Profile, validate
from .task import fixes

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
        raise Refused("no such stage: %s" % stage, "boot", "one of %s" % ", ".join(sorted(STAGES)))
    if "hosttune=off" in (read_or_none(host, "/proc/cmdline") or "").split() or read_or_none(host, OFF) is not None:
        say("off: by hosttune=off on the kernel command line or by %s; nothing is done" % OFF)
        return 0
    text = read_or_none(host, PATH)
    if text is None:
        say("there is no %s: nothing is wanted" % PATH)
        return 0
    try:
        profile = validate(json.loads(text), PATH, tuple(KNOBS))
    except ValueError:
        raise Refused("this is not JSON", PATH, "ansible-playbook hosttune.hosttune.site writes it anew") from None
    reports = STAGES[stage](host, profile, say)
    for report in reports:
        for line in _lines(report, profile.mode == "plan"):
            say(line)
    wrong = [f for report in reports for f in report.findings if f.status in ("fail", "error") and not f.ignored]
    say("%s: %s" % (stage, "%d not as wanted" % len(wrong) if wrong else "all is as wanted"))
    return 1 if wrong else 0


def _lines(report: Report, dry: bool) -> List[str]:
    would = "would change" if dry else "changed"
    told = ["%s %s" % (would, step.target) for step in report.steps]
    told += ["%s: %s" % ("would run" if dry else "ran", " ".join(action.argv)) for action in report.actions]
    return told + fixes(report.findings)


def _knobs(host: Host, profile: Profile, say: Say) -> List[Report]:
    wants = engine.wants_of((), {k: v for k, v in (profile.knobs or {}).items() if k != boot_units.NAME}, KNOBS)
    done = engine.tune(host, wants, KNOBS, BY_ID, profile.mode == "plan")
    return [Report("boot knobs", findings=tuple(done.findings), steps=tuple(done.steps))]


def _devices(host: Host, profile: Profile, say: Say) -> List[Report]:
    from .lxc import outlook, store, sync  # the other stage starts without them

    dry = profile.mode == "plan"
    if not dry and pci.gpus(host):
        _make_nodes(host, say)
    if profile.containers and not dry:
        _wait_for_quorum(host, say, lambda: store.has_quorum(host))
    reports = []
    for ct_id, declared in profile.containers.items():
        try:
            wanted = outlook.wanted_of(host, declared)
            reports.append(sync.sync(host, ct_id, wanted, "never", dry))
        except Refused as e:
            reports.append(Report("boot devices", findings=(sync.refused(ct_id, e),)))
        except OSError as e:
            where = Refused("%s: %s" % (errname(e), e.strerror), str(e.filename or ""))
            reports.append(Report("boot devices", findings=(sync.refused(ct_id, where),)))
    return reports


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


def _make_nodes(host: Host, say: Say) -> None:
    """Load the modules and make every node. nvidia-modprobe takes one kind of node a call: -c=N GPUs and nvidiactl,
    -u -c=0 nvidia-uvm and nvidia-uvm-tools. A driver that is not there is said, and containers are gone through anyway."""
    for module in ("nvidia", "nvidia-uvm"):
        ran = host.execute(["modprobe", module], 60)
        if ran.rc:
            say("modprobe %s: %s" % (module, (ran.err.strip().splitlines() or ["exit code %d" % ran.rc])[-1]))
            return
    count = max(gpus.minors(host).values(), default=-1) + 1
    calls = [["nvidia-modprobe", "-c=%d" % minor] for minor in range(count)] + [["nvidia-modprobe", "-u", "-c=0"]]
    for argv in calls:
        ran = host.execute(argv, 20)
        if ran.rc:
            say("%s: exit code %d%s" % (" ".join(argv), ran.rc, ": not installed" if ran.rc == 127 else ""))
            return


def _wait_for_quorum(host: Host, say: Say, has_quorum: Callable[[], bool]) -> None:
    """Without quorum /etc/pve cannot be written: wait, but not for ever; what then is refused is said by the sync."""
    limit = host.clock() + QUORUM_SECONDS
    told = False
    while not has_quorum() and host.clock() < limit:
        if not told:
            say("no quorum: waiting up to %d s" % QUORUM_SECONDS)
            told = True
        time.sleep(1)


STAGES: Dict[str, Callable[[Host, Profile, Say], List[Report]]] = {
    "knobs": _knobs, "devices": _devices, "models": _models,
}  # fmt: skip


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # to whoever watches the boot, and before a time limit may end this process


def main(words: Sequence[str]) -> int:
    """What a unit starts: one stage, told to the journal line by line."""
    try:
        return run(LiveHost(), words[0] if words else "", _tell)
    except Refused as e:
        sys.stderr.write("%s\n" % e)
        return 2


def with_profile(profile: Profile) -> Tuple[Dict[str, Knob], Dict[str, Knob]]:
    """The knobs by name and by id, the boot units bound to this profile and this code. Without a profile: as they are."""
    from . import corezip

    if not profile.plain:
        return KNOBS, BY_ID
    text = json.dumps(profile.plain, indent=1, sort_keys=True) + "\n"
    bound = boot_units.bound(text, "sha256:" + digest(corezip.archive()))
    return dict(KNOBS, **{bound.name: bound}), dict(BY_ID, **{bound.id: bound})
