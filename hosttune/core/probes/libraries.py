# SPDX-License-Identifier: Apache-2.0
"""Do the driver's libraries load, and are they of one version with the loaded module?"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

from ..catalogue import finding
from ..doctor.survey import LIBRARIES, Machine
from ..model import FAIL, FITS, OK, PROVED, SKIP, WARN, Finding, Hint, Probe
from . import given
from .code import without
from .scene import Machines, host_of, whole

_IDS = {"libcuda.so.1": "HT351", "libnvidia-ml.so.1": "HT353"}
_BROKEN = {"file too short": "HT356", "invalid ELF header": "HT356", "wrong ELF class": "HT357"}
"""The loader's own words."""
_MISMATCH = {"libcuda.so.1": ("cuInit", (803,)), "libnvidia-ml.so.1": ("nvmlInit", (18,))}


def run(machines: Machines) -> List[Finding]:
    """HT350, HT351, HT353, HT354, HT356, HT357."""
    machines = whole(machines)
    return [f for machine in machines.values() for f in _judge_all(machines, machine)]


def _judge_all(machines: Machines, machine: Machine) -> List[Finding]:
    if not machine.calls:
        return [
            finding(
                "HT351",
                SKIP,
                "libraries",
                "libraries are not loaded from outside this container: `hosttune doctor` inside asks them",
                machine=machine.key,
            )
        ]
    judged = [f for f in (_judge(machines, machine, name) for name in LIBRARIES) if f]
    if not judged:
        return [
            finding(
                "HT350",
                OK,
                "libraries",
                "libcuda and libnvidia-ml load, and are of the module's version (%s)" % (machine.module or "not known"),
                machine=machine.key,
            )
        ]
    return judged


def _judge(machines: Machines, machine: Machine, name: str) -> Optional[Finding]:
    answer = machine.calls.get("dlopen:" + name)
    if not isinstance(answer, Mapping):
        return None  # not recorded: the report says so in one line
    if "error" in answer:
        return _missing(machines, machine, name, str(answer["error"]))
    if "timeout" in answer:
        return _missing(machines, machine, name, "loading it did not return within %s s" % answer["timeout"])
    path, version = str(answer.get("path", "")), str(answer.get("version", ""))
    if "/stubs/" in path:
        return finding(
            "HT354",
            FAIL,
            name,
            "%s is the toolkit's stub (%s), which only links" % (name, path),
            have=path,
            want="the driver's own",
            proof=PROVED,
            evidence=("%s -> %s" % (name, path),),
            machine=machine.key,
            hint=without(machine, path.rpartition("/")[0]),
        )
    if machine.module and version and version != machine.module:
        return _mismatch(machines, machine, name, path, version, answer)
    return None


def _missing(machines: Machines, machine: Machine, name: str, why: str) -> Finding:
    inside = machine.kind != "host"
    if given.nothing(machines, machine):
        return finding(
            _IDS[name], SKIP, name, "%s does not load: %s" % (name, why), because=("HT410",), machine=machine.key
        )
    fix = (
        "--gpus all"
        if machine.kind in ("docker", "podman")
        else "the driver's user-space package, version %s" % (machine.module or "of the module")
    )
    broken = next((id for words, id in _BROKEN.items() if words in why), "")
    if broken:
        return finding(
            broken,
            FAIL,
            name,
            "%s does not load: %s" % (name, why),
            have="broken",
            want="loads",
            proof=PROVED,
            evidence=("dlopen(%s): %s" % (name, why),),
            machine=machine.key,
            hint=Hint(
                "ls -lL $(ldconfig -p | awk '/%s/ { print $NF }')" % name.partition(".so")[0],
                "this container" if inside else "host",
                "take away the one that is %s, then ldconfig" % ("empty" if broken == "HT356" else "32-bit"),
                "look",
            ),
        )
    return finding(
        _IDS[name],
        FAIL,
        name,
        "%s does not load: %s" % (name, why),
        have="absent",
        want="loads",
        proof=PROVED,
        evidence=("dlopen(%s): %s" % (name, why),),
        machine=machine.key,
        hint=Hint(
            "ldconfig -p | grep %s" % name.partition(".")[0],
            "this container" if inside else "host",
            "what is missing: %s" % fix,
            "look",
        ),
    )


def _mismatch(machines: Machines, machine: Machine, name: str, path: str, version: str, answer: Mapping[str, Any]) -> Finding:
    call, codes = _MISMATCH[name]
    code = machine.calls.get(call)
    compat = "/compat" in path
    if code == 0:
        return finding(
            "HT350",
            OK if compat else WARN,
            name,
            "%s is %s, the loaded module is %s, and %s returns 0 all the same" % (name, version, machine.module, call),
            have=version,
            want=str(machine.module),
            machine=machine.key,
        )
    inside = machine.kind != "host"
    host = host_of(machines)
    below_it = host.calls.get("dlopen:" + name) if inside and host is not None else None
    if isinstance(below_it, Mapping) and below_it.get("version") == version:
        told = "%s is version %s, as on the host, whose module is %s" % (name, version, machine.module)
        return finding("HT350", SKIP, name, told, have=version, because=("HT350",), machine=machine.key)
    hint = Hint(
        "apt-get install --reinstall libcuda1 libnvidia-ml1   # of version %s" % machine.module,
        "this container",
        "no kernel module is installed inside (--no-kernel-modules for the .run file)",
        "reconfigure",
    )
    if not inside:
        hint = Hint(
            "systemctl reboot",
            "host",
            "everything on this host ends; the boot loads the module that is installed. Unloading all nvidia modules and loading "
            "them again does the same, once no GPU program runs",
            "reboot",
        )
    return finding(
        "HT350",
        FAIL,
        name,
        "%s is version %s, the loaded nvidia module is %s" % (name, version, machine.module),
        have=version,
        want=str(machine.module),
        proof=PROVED if code in codes else FITS,
        decide="" if code in codes else "cat /proc/driver/nvidia/version && readlink -f %s" % path,
        evidence=(
            "%s -> %s" % (name, path),
            "the loaded module says %s" % machine.module,
            "%s returned %s" % (call, code),
        ),
        hint=hint,
        machine=machine.key,
    )


PROBE = Probe("libraries", ("module",), run)
