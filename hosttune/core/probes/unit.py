# SPDX-License-Identifier: Apache-2.0
"""Does the sandbox of a unit, or what a process has loaded, keep its program from the GPUs? Asked by --service and --pid."""

from __future__ import annotations

import shlex
from fnmatch import fnmatchcase as fnmatch
from typing import List

from ..catalogue import finding
from ..doctor.survey import CONTROL, EYES, UVM_NODE, UVM_TOOLS, Machine
from ..model import ERROR, FAIL, FITS, OK, PROVED, WARN, Finding, Hint, Probe
from .scene import Machines


def run(machines: Machines) -> List[Finding]:
    """HT365, HT366, HT369; HT903 for a process that could not be looked at."""
    unseen = [
        finding("HT903", ERROR, EYES, "it could not be looked at: %s" % machine.unknown(EYES), machine=machine.key)
        for machine in machines.values()
        if machine.unknown(EYES)
    ]
    return unseen + [
        f for machine in machines.values() if machine.process for f in _sandbox(machine) + _limits(machine)
    ]


def _sandbox(machine: Machine) -> List[Finding]:
    process = machine.process
    if process is None or not process.unit:
        return []
    settings, path = process.settings, process.settings.get("FragmentPath") or process.unit
    allowed = settings.get("DeviceAllow", "")
    needed = [node for node in machine.nodes.values() if node.path != UVM_TOOLS]
    if process.pid and needed and all(node.access == "ok" for node in needed):
        return [_well(machine)]  # whatever its settings say: it has them
    if settings.get("PrivateDevices") == "yes":
        gone = [node.path for node in needed if node.errno == "ENOENT"]
        seen = ("inside it %s: ENOENT" % gone[0],) if process.pid and gone else ()
        return [
            _refuses(
                machine,
                "PrivateDevices=yes gives it a /dev without GPUs",
                "PrivateDevices=no",
                path,
                ("systemctl show %s: PrivateDevices=yes" % process.unit, *seen),
                bool(seen),
            )
        ]
    lacking = _lacking(machine, allowed)
    if lacking and (allowed or settings.get("DevicePolicy") in ("closed", "strict")):
        refused = [node.path for node in needed if node.access == "EPERM"]
        seen = ("inside it %s: EPERM" % refused[0],) if process.pid and refused else ()
        have = "DeviceAllow=%s" % (allowed or "none, DevicePolicy=%s" % settings.get("DevicePolicy"))
        return [
            _refuses(
                machine,
                "its device list lacks %s" % " and ".join(lacking),
                "DeviceAllow=char-nvidia rw, char-nvidia-uvm rw",
                path,
                ("systemctl show %s: %s" % (process.unit, have), *seen),
                bool(seen),
            )
        ]
    return [_well(machine)]


def _well(machine: Machine) -> Finding:
    name = machine.process.unit if machine.process else ""
    return finding("HT369", OK, name, "%s: its sandbox keeps no GPU from it" % name, machine=machine.key)


def _lacking(machine: Machine, allowed: str) -> List[str]:
    """The nodes that a unit's list opens neither by path nor by the name of their driver. systemd looks a name (or pattern) up
    in /proc/devices and lets the whole major through: char-nvidia opens nvidiactl too, which has the same one."""
    entries = [entry.split() for entry in allowed.split(",")]
    open_ = [entry[0] for entry in entries if entry and (len(entry) < 2 or {"r", "w"} <= set(entry[1]))]
    out = []
    for path in (CONTROL, UVM_NODE):
        major = machine.number_of(path).partition(":")[0]
        names = machine.owners.get(major, ()) or (path[len("/dev/") :],)
        if path not in open_ and not any(fnmatch("char-" + name, entry) for name in names for entry in open_):
            out.append(path)
    return out


def _refuses(machine: Machine, what: str, want: str, path: str, evidence: "tuple[str, ...]", proved: bool) -> Finding:
    process = machine.process
    name = process.unit if process else ""
    return finding(
        "HT369",
        FAIL,
        name,
        "%s: %s" % (name, what),
        have=evidence[0].partition(": ")[2],
        want=want,
        proof=PROVED if proved else FITS,
        decide="" if proved else "hosttune doctor --service %s   # while it runs" % shlex.quote(name),
        evidence=(*evidence, path),
        machine=machine.key,
        hint=Hint(
            "systemctl edit %s   # [Service] %s" % (shlex.quote(name), want.replace(", ", " and DeviceAllow=")),
            "where the unit is",
            "systemctl restart %s ends what it runs" % name,
            "reconfigure",
        ),
    )


def _limits(machine: Machine) -> List[Finding]:
    process = machine.process
    if process is None or not process.pid:
        return []
    found = []
    subject = "%s %d" % (process.comm, process.pid)
    asan = next((path for path in process.mapped if "asan" in path), "")
    if asan:
        found.append(
            finding(
                "HT366",
                WARN,
                subject,
                "%s is built with AddressSanitizer: cuInit gives 2 in it" % subject,
                have=asan,
                want="ASAN_OPTIONS=protect_shadow_gap=0",
                proof=FITS,
                decide="env ASAN_OPTIONS=protect_shadow_gap=0 PROGRAM",
                evidence=("/proc/%d/maps: %s" % (process.pid, asan),),
                machine=machine.key,
                hint=Hint(
                    "export ASAN_OPTIONS=protect_shadow_gap=0",
                    "the shell or unit that starts it",
                    "it has to start anew",
                    "reconfigure",
                ),
            )
        )
    if process.limit != "unlimited":
        found.append(
            finding(
                "HT365",
                WARN,
                subject,
                "%s may have %s bytes of address space; CUDA reserves more than the GPU's memory"
                % (subject, process.limit),
                have=process.limit,
                want="unlimited",
                proof=FITS,
                decide="prlimit --as=unlimited PROGRAM",
                evidence=("/proc/%d/limits: Max address space %s" % (process.pid, process.limit),),
                machine=machine.key,
                hint=Hint(
                    "prlimit --as=unlimited --pid %d   # lasting: LimitAS=infinity in its unit, or ulimit -v in its shell"
                    % process.pid,
                    "the shell or unit that starts it",
                    "it has to start anew",
                    "reconfigure",
                ),
            )
        )
    return found


PROBE = Probe("unit", (), run)
