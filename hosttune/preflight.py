# SPDX-License-Identifier: Apache-2.0
"""Go or no-go before anything is measured: settings, device nodes and CUDA, idle GPUs, models, engines, room for results.

Seconds, and nothing is changed. Each check is a function; one that cannot be made here is a skip with its reason, and each
no carries its fix. Order: nodes before CUDA before NVML, since the driver's libraries repair nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import nvml
from .core import engine
from .core.catalogue import finding
from .core.doctor import examine
from .core.doctor.survey import Declared
from .core.door.glance import Glance
from .core.door.host import Host, Unrecorded, errname
from .core.gpu import gpus
from .core.lxc import inside
from .core.model import ERROR, FAIL, OK, SKIP, WARN, Finding, Hint, Refused, Report
from .core.pci import bus
from .core.unattended import bound
from .core.wanted.profile import Profile
from .data import machine

RESULTS = "/var/lib/hosttune/results"
RESULTS_ROOM = 256 << 20
"""Bytes: a plan of hundreds of configurations with all their requests is below a tenth of that."""
IDLE_MEMORY = 1 << 30
"""Bytes of GPU memory in use that still count as idle: driver and display take some hundred MB without a process."""


def preflight(host: Host, profile: Profile, engines: tuple[str, ...] = (), results: str = RESULTS) -> Report:
    """The verdict for this machine and these engines (none named: all that are declared). Raises Refused for unknown ones."""
    for name in engines:
        if name not in profile.engines:
            known = ", ".join(sorted(profile.engines)) or "none"
            raise Refused("no such engine: %s (declared: %s)" % (name, known), "engines", "name it under engines: in the profile")
    chosen = engines or tuple(profile.engines)
    found: list[Finding] = []
    for name, check in (
        ("knobs", lambda: knobs(host, profile)),
        ("devices", lambda: devices(host, profile, chosen)),
        ("driver", lambda: knobs(host, profile, driver=True)),
        ("models", lambda: models(host, profile, chosen)),
        ("engines", lambda: serving(host, profile, chosen)),
        ("idle", lambda: idle(host, profile, chosen)),
        ("results", lambda: room(host, results)),
    ):
        found += _told(name, check)
    verdict = "no-go" if any(f.status in (FAIL, ERROR) and not f.ignored for f in found) else "go"
    return Report("preflight", host.uname()[0], {"verdict": verdict}, tuple(found), mode="plan")


def _told(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """A check that could not be made is an error of its own, and keeps no other from being made."""
    try:
        return check()
    except Refused as e:
        return [
            finding("HT903", ERROR, name, e.what, evidence=(e.where,) if e.where else (), hint=Hint(e.way_out, "host"))
        ]
    except (OSError, Unrecorded) as e:
        why = "%s: %s" % (e.filename or name, errname(e)) if isinstance(e, OSError) else str(e)
        return [finding("HT903", ERROR, name, "could not be looked at: " + why)]


def knobs(host: Host, profile: Profile, driver: bool = False) -> list[Finding]:
    """Every declared setting is in force now; driver: those that nvidia-smi is asked for, which may mend nodes."""
    by_name, _ = bound.with_profile(profile)
    if not profile.knobs:
        return []
    wants, look = engine.wants_of((), profile.knobs, by_name), Glance(host)
    asked = {name: want for name, want in wants.items() if bool(by_name[name].starts) is driver}
    return [f for name, want in asked.items() for f in engine.check(by_name[name], look, want)]


def devices(host: Host, profile: Profile, engines: tuple[str, ...]) -> list[Finding]:
    """What the doctor says of the host and of each container that an engine runs in: nodes, cuInit, how many GPUs count."""
    needing = [profile.engines[name] for name in engines if profile.engines[name]["gpus"] != "none"]
    if not bus.gpus(host):
        return [finding("HT360", SKIP, "CUDA", "no NVIDIA GPU on the PCI bus")]
    if engines and not needing:
        return [finding("HT360", SKIP, "CUDA", "no engine uses a GPU")]
    containers = (
        {e["in"][len("ct:") :] for e in needing if e["in"].startswith("ct:")} if engines else set(profile.containers)
    )
    counts = {
        ct: gpus.declared(host, profile.containers[ct].gpus) if ct in profile.containers else None for ct in containers
    }
    recording = examine.examine(host, counts, Declared(gpus=gpus.declared(host, "all")))
    _, findings = examine.judge(recording, machine)
    return [f for f in findings if f.status != SKIP]


def models(host: Host, profile: Profile, engines: tuple[str, ...]) -> list[Finding]:
    """The models of these engines are staged and whole, by their manifests."""
    from .core.stage import declared, manifest, status

    needed = {str(profile.engines[name]["model"]).partition("/")[0] for name in engines}
    wanted = [declared.wanted(host, profile, name) for name in profile.models if not engines or name in needed]
    if not wanted:
        return [finding("HT501", SKIP, "models", "no staged model is needed")]
    names = {one.name for one in wanted}
    found = status.status(host, wanted).findings
    return [f for f in found if manifest.model_of(f.subject) in names or f.status != WARN]


def serving(host: Host, profile: Profile, engines: tuple[str, ...]) -> list[Finding]:
    """Each engine runs, from the declared unit, and answers. One that is not started is a no."""
    from .serve import alive, launch, see, written

    found: list[Finding] = []
    for name in engines:
        try:
            seen = see.see(host, profile, name, health=True)
        except inside.NoPython as e:
            found.append(finding("HT904", ERROR, name, e.what, hint=Hint(e.way_out, e.where)))
            continue
        except Refused as e:
            found.append(see.unseen(name, e))
            continue
        found += [f for f in [*launch.launchable(seen), *written.lint(seen)] if f.status != OK]
        fix = Hint("hosttune unit start %s --wait" % name, "host", "loads the model", "apply")
        found += [
            replace(f, status=FAIL, hint=fix) if f.status == SKIP else f for f in [written.files(seen), *alive.running(seen)]
        ]
    return found


def idle(host: Host, profile: Profile, engines: tuple[str, ...]) -> list[Finding]:
    """No process but the engines' own computes on their GPUs, and no GPU is throttled."""
    if not bus.gpus(host):
        return [finding("HT608", SKIP, "GPUs", "no NVIDIA GPU on the PCI bus")]
    told = nvml.ask()
    if told.why:
        hint = Hint("hosttune doctor", "host", "", "look")
        return [finding("HT608", ERROR, "GPUs", "NVML does not answer: %s" % told.why, hint=hint)]
    return [f for gpu in told.gpus for f in judge_gpu(host, gpu, profile, engines)]


def judge_gpu(host: Host, gpu: nvml.Gpu, profile: Profile, engines: tuple[str, ...]) -> list[Finding]:
    """One GPU: whose processes compute on it, memory that nobody owns, and what slows it down."""
    strangers = []
    for pid, used in gpu.processes:
        unit = unit_of(host, pid)
        if unit not in ["hosttune-%s.service" % name for name in engines]:
            words = "%s %d" % (_comm(host, pid), pid) + ("" if used is None else ", %.1f GiB" % (used / 2**30))
            strangers.append(words + (" (%s)" % unit if unit else ""))
    if strangers:
        hint = Hint("ps -fp %s" % " ".join(str(pid) for pid, _ in gpu.processes), "host", "stop them, then try again", "look")
        summary = "other processes compute on it: %s" % "; ".join(strangers[:3])
        return [finding("HT608", FAIL, gpu.bdf, summary, have=str(len(strangers)), want="0", hint=hint)]
    if not gpu.processes and gpu.used > IDLE_MEMORY:
        summary = "%.1f GiB of its memory are in use, by no process that can be seen" % (gpu.used / 2**30)
        hint = Hint("fuser -v /dev/nvidia*", "host", "a worker that outlived its engine? stop it", "look")
        return [finding("HT608", FAIL, gpu.bdf, summary, hint=hint)]
    slow = [why for why in gpu.throttled if why != "power cap"]
    if slow:
        hint = Hint("nvidia-smi -q -d PERFORMANCE", "host", "", "look")
        return [finding("HT608", WARN, gpu.bdf, "it is throttled: %s" % ", ".join(slow), hint=hint)]
    return [finding("HT608", OK, gpu.bdf, "idle" if not gpu.processes else "only its engine computes on it")]


def unit_of(host: Host, pid: int) -> str:
    """The systemd unit that a process belongs to, also one inside a container; "" when it cannot be told."""
    try:
        path = host.read("/proc/%d/cgroup" % pid).strip().rpartition("::")[2]
    except OSError:
        return ""
    return next((part for part in reversed(path.split("/")) if part.endswith(".service")), "")


def _comm(host: Host, pid: int) -> str:
    try:
        return host.read("/proc/%d/comm" % pid).strip()
    except OSError:
        return "a process"


def room(host: Host, results: str) -> list[Finding]:
    """HT609: the file system of the results has room. The folder need not be there yet."""
    path = results
    while path != "/":
        try:
            space = host.statvfs(path)
            break
        except FileNotFoundError:
            path = path.rpartition("/")[0] or "/"
    else:
        space = host.statvfs("/")
    have, want = "%d MiB" % (space.free >> 20), "%d MiB" % (RESULTS_ROOM >> 20)
    if space.free < RESULTS_ROOM:
        hint = Hint("df -h %s" % path, "host", "", "look")
        return [finding("HT609", FAIL, results, "%s are free, %s wanted" % (have, want), have=have, want=want, hint=hint)]
    return [finding("HT609", OK, results, "%s are free" % have, have=have)]
