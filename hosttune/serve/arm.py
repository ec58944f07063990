# SPDX-License-Identifier: Apache-2.0
"""A declared engine as an arm of a benchmark: started for it, proved to be the same throughout, gone afterwards, and what ran
in its place before brought back. The protocol is bench/target.py's Arm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from .. import nvml
from ..bench.target import Target
from ..core.door.host import Host
from ..core.lxc import inside
from ..core.model import FAIL, Refused, Report
from ..core.place import place_of
from ..core.wanted.profile import Profile
from . import alive, command, declare, launch, see, start
from .devices import devices
from .unit import render
from .wait import wait

IDENTITY = ("MainPID", "InvocationID", "NRestarts")
IDLE_MEMORY = 1 << 30
"""Bytes of a GPU's memory in use that are no leftover: driver and display take some hundred MB without a process."""


def url(host: Host, engine: declare.Engine) -> str:
    """Where this host reaches the engine. Refused when it listens on the loopback of a network that is not the host's."""
    address = engine.address
    if engine.ct_id and not _shares_network(host, engine.ct_id):
        where = "engines.%s.listen" % engine.name
        if engine.listen.startswith("127.") or engine.listen == "::1":
            raise Refused("it listens on %s inside %s, where the host does not reach it" % (engine.listen, engine.place), where,
                          'listen: "0.0.0.0", or measure from inside its network: nsenter -n -t $(lxc-info -n %s -pH) -- '
                          "hosttune bench run PLAN --url http://127.0.0.1:%d" % (engine.ct_id, engine.port))  # fmt: skip
        if engine.listen in ("0.0.0.0", "::"):
            address = _ip(host, engine.ct_id, where)
    return "http://%s:%d" % ("[%s]" % address if ":" in address else address, engine.port)


def _shares_network(host: Host, ct_id: str) -> bool:
    pid = host.run(["lxc-info", "-n", ct_id, "-p", "-H"]).out.strip()
    try:
        return pid.isdigit() and host.readlink("/proc/%s/ns/net" % pid) == host.readlink("/proc/self/ns/net")
    except OSError:
        return False


def _ip(host: Host, ct_id: str, where: str) -> str:
    found = host.run([*inside.enter(host, ct_id), "hostname", "-I"]).out.split()
    if not found:
        raise Refused("ct:%s has no address" % ct_id, where, "give the container a network interface")
    return found[0]


def mark(host: Host, profile: Profile, name: str) -> str:
    """The digest of an engine as it is declared, 16 hex digits. The engine itself is not asked."""
    declared = declare.engine(profile, name)
    return render(declared, devices(host, declared, profile)).mark


def target(host: Host, profile: Profile, name: str) -> Target:
    """The running engine as a benchmark addresses it. The facts are what must be equal for two results to be compared.

    Refused when it runs from another unit than the declared one: its figures would be filed under what it is not.
    """
    seen = see.see(host, profile, name)
    _refuse_older(seen)
    e = seen.engine
    facts = {"engine": e.kind, "model": e.model, "tp": str(e.tp), "gpus": e.gpus,
             "args": json.dumps(dict(e.args), sort_keys=True)}  # fmt: skip
    facts |= {key: value for key, value in seen.rendered.environment.items() if key.startswith(("NCCL_", "CUDA_"))}
    return Target(url(host, e), command.served_name(e), facts, identity(host, e))


def identity(host: Host, engine: declare.Engine) -> Callable[[], Mapping[str, str]]:
    """Asks for what changes whenever the engine is started anew."""
    place = place_of(host, engine.place)

    def ask() -> Mapping[str, str]:
        show = place.ask("look", unit=engine.unit)["show"]
        return {key: str(show.get(key, "")) for key in IDENTITY}

    return ask


@dataclass
class EngineArm:
    """An engine of the profile that the benchmark starts. One that runs already is measured, and left running."""

    name: str
    host: Host
    profile: Profile
    engine: str
    tell: Callable[[str], None] = lambda line: None
    _ours: bool = field(default=False, init=False)
    _stopped: list[str] = field(default_factory=list, init=False)
    _xids: frozenset[str] = field(default=frozenset(), init=False)

    def start(self) -> Target:
        """Make it serve. What is in its way (engines of the profile, on its port or its GPUs) is stopped first."""
        seen = see.see(self.host, self.profile, self.engine)
        self._xids = xids(self.host)
        if not seen.runs:
            for other in self._in_the_way(seen):
                _must(start.stop(self.host, self.profile, other))
                self._stopped.append(other)
            self._ours = True
            _must(start.start(self.host, self.profile, self.engine))
        _refuse_older(seen)
        _must(wait(self.host, self.profile, self.engine, tell=self.tell))
        return target(self.host, self.profile, self.engine)

    def stop(self) -> None:
        """Stop it, if start started it."""
        if self._ours:
            self._ours = False
            _must(start.stop(self.host, self.profile, self.engine))

    def leftovers(self) -> tuple[str, ...]:
        """After stop: processes on its GPUs, GPU memory that nobody owns, Xids that are new since start."""
        seen = see.see(self.host, self.profile, self.engine)
        if seen.runs:
            return ()  # it ran before, and goes on
        left = ["%s %d still computes on its GPUs" % (comm, pid) for pid, comm in launch.busy_gpus(self.host, seen.devices.bdfs)]
        for gpu in nvml.ask().gpus:
            if gpu.bdf in seen.devices.bdfs and not gpu.processes and gpu.used > IDLE_MEMORY:
                left.append("GPU %s: %.1f GiB in use by no process" % (gpu.bdf, gpu.used / 2**30))
        return (*left, *sorted(xids(self.host) - self._xids))

    def restore(self) -> None:
        """Start again what was stopped for it, the last one first. It is not waited for."""
        while self._stopped:
            _must(start.start(self.host, self.profile, self._stopped.pop()))

    def _in_the_way(self, seen: see.Seen) -> list[str]:
        found = []
        for other in self.profile.engines:
            if other == self.engine:
                continue
            with suppress(Refused):  # one that cannot be looked at cannot be stopped; a port that it holds is told by start
                theirs = see.see(self.host, self.profile, other)
                same_port = theirs.place.machine == seen.place.machine and theirs.engine.port == seen.engine.port
                if theirs.runs and (same_port or set(theirs.devices.bdfs) & set(seen.devices.bdfs)):
                    found.append(other)
        return found


def _refuse_older(seen: see.Seen) -> None:
    name = seen.engine.name
    if alive.pending(seen):
        way_out = "hosttune unit restart %s --wait" % name
        raise Refused("it runs with an older unit than the declared one", "engine " + name, way_out)


def xids(host: Host) -> frozenset[str]:
    """The kernel's lines about GPU errors since the boot; none when they may not be read."""
    return frozenset(line.strip() for line in host.run(["dmesg"]).out.splitlines() if "NVRM: Xid" in line)


def _must(report: Report) -> None:
    """Raise the first failure of a report."""
    f = next((f for f in report.findings if f.status == FAIL), None)
    if f is not None:
        told = "; ".join([f.summary, *f.evidence])
        raise Refused(told, "engine " + f.subject, f.hint.command)
