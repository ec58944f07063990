# SPDX-License-Identifier: Apache-2.0
"""Does the sandbox of a unit, or what a process has loaded, keep its program from the GPUs? Asked by --service and --pid."""

from __future__ import annotations

from typing import List

from ..catalogue import finding
from ..model import FAIL, FITS, OK, PROVED, WARN, Finding, Hint, Probe
from ..survey import CONTROL, UVM_NODE, Machine
from .scene import Machines

_NAMES = ("char-nvidia", "char-nvidiactl", "char-nvidia-frontend", "char-nvidia-uvm", "/dev/nvidia")


def run(machines: Machines) -> List[Finding]:
    """HT365, HT366, HT369."""
    return [f for machine in machines.values() if machine.process for f in _sandbox(machine) + _limits(machine)]


def _sandbox(machine: Machine) -> List[Finding]:
    process = machine.process
    if process is None or not process.unit:
        return []
    settings, path = process.settings, process.settings.get("FragmentPath") or process.unit
    allowed = settings.get("DeviceAllow", "")
    if settings.get("PrivateDevices") == "yes":
        gone = [node.path for node in machine.nodes.values() if node.errno == "ENOENT"]
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
    strict = settings.get("DevicePolicy") in ("closed", "strict") or bool(allowed)
    lacking = [
        name
        for name, path_ in (("char-nvidiactl", CONTROL), ("char-nvidia-uvm", UVM_NODE))
        if name not in allowed and path_ not in allowed
    ]
    if strict and lacking:
        refused = [node.path for node in machine.nodes.values() if node.access == "EPERM"]
        seen = ("inside it %s: EPERM" % refused[0],) if refused else ()
        have = "DeviceAllow=%s" % (allowed or "none, DevicePolicy=%s" % settings.get("DevicePolicy"))
        return [
            _refuses(
                machine,
                "its device list lacks %s" % " and ".join(lacking),
                "DeviceAllow=char-nvidia rw, char-nvidiactl rw, char-nvidia-uvm rw",
                path,
                ("systemctl show %s: %s" % (process.unit, have), *seen),
                bool(seen),
            )
        ]
    told = "%s: its sandbox keeps no GPU from it" % process.unit
    return [finding("HT369", OK, process.unit, told, machine=machine.key)]


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
        decide="" if proved else "systemctl start %s; hosttune doctor --service %s" % (name, name),
        evidence=(*evidence, path),
        machine=machine.key,
        hint=Hint(
            "systemctl edit %s   # [Service] %s" % (name, want.replace(", ", ", DeviceAllow=")),
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
                decide="the same program with ASAN_OPTIONS=protect_shadow_gap=0",
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
                    "LimitAS=infinity   # in its unit; in a shell: ulimit -v unlimited",
                    "the shell or unit that starts it",
                    "it has to start anew",
                    "reconfigure",
                ),
            )
        )
    return found


PROBE = Probe("unit", (), run)
