# SPDX-License-Identifier: Apache-2.0
"""What the calls themselves returned. A code that a fault below explains is a symptom and names it; any other stands.

Which fault gives which code was measured with driver 580, node by node; see docs/findings/HT360.md.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from ..catalogue import finding
from ..doctor.diagnose import diagnose
from ..doctor.survey import CONTROL, UVM_NODE, Machine
from ..model import ERROR, FAIL, FITS, OK, PROVED, SKIP, WARN, Finding, Hint, Probe
from . import build, codes, driver, environment, gpu, libraries, log, mode, module, nodes, permission, unit
from .scene import Machines, below, whole

_NAMES = {
    0: "SUCCESS",
    2: "OUT_OF_MEMORY",
    3: "NOT_INITIALIZED",
    34: "STUB_LIBRARY",
    46: "DEVICE_UNAVAILABLE",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    304: "OPERATING_SYSTEM",
    802: "SYSTEM_NOT_READY",
    803: "SYSTEM_DRIVER_MISMATCH",
    804: "COMPAT_NOT_SUPPORTED_ON_DEVICE",
    805: "MPS_CONNECTION_FAILED",
    999: "UNKNOWN",
}
_DECIDE = {
    2: "ulimit -v; sysctl vm.overcommit_memory   # an address-space limit gives 2 with empty GPUs",
    3: "dmesg | grep devmem_alloc_pagemap   # err -34: load nvidia_uvm with uvm_disable_hmm=1",
    304: "grep Seccomp /proc/self/status   # 2: a seccomp profile refuses a call",
    802: "systemctl status nvidia-fabricmanager",
    804: "ls -d /usr/local/cuda*/compat",
    805: "ls -l ${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control",
    999: "journalctl -k | grep -i -e suspend -e xid   # after a suspend: rmmod nvidia_uvm; modprobe nvidia-uvm",
}
LAYERS_BELOW = (
    unit.PROBE,
    gpu.PROBE,
    build.PROBE,
    module.PROBE,
    nodes.PROBE,
    mode.PROBE,
    permission.PROBE,
    log.PROBE,
    driver.PROBE,
    libraries.PROBE,
    environment.PROBE,
    codes.PROBE,
)
_NODE_IDS = ("HT401", "HT402", "HT403", "HT404", "HT405", "HT406", "HT407", "HT408", "HT409", "HT410", "HT321")


def run(machines: Machines) -> List[Finding]:
    """HT360, HT361, HT362, HT905."""
    machines = whole(machines)
    below_it = [f for f in diagnose(machines, LAYERS_BELOW) if f.status == FAIL or f.because]
    found: List[Finding] = []
    for machine in machines.values():
        faults = [f for f in below_it if f.machine in (machine.key, "host")]
        if not machine.calls:
            found.append(finding("HT360", SKIP, "cuInit", "CUDA was not asked", machine=machine.key))
            continue
        found += [f for f in (_nvml(machine, faults), _cuda(machines, machine, faults), _count(machine, faults)) if f]
        found += _work(machines, machine, faults)
        if not machine.protected:
            found.append(
                finding(
                    "HT905",
                    WARN,
                    "/dev",
                    "CUDA was asked without a read-only /dev: it may have remade nodes; "
                    "what was seen of them is from before",
                    machine=machine.key,
                )
            )
    return found


def _subjects(faults: List[Finding], path: str) -> List[str]:
    return _stand(f for f in faults if f.id in _NODE_IDS and f.subject == path)


def _gpu_nodes(faults: List[Finding]) -> List[str]:
    return _stand(f for f in faults if f.id in _NODE_IDS and f.subject[len("/dev/nvidia") :].isdigit())


def _ids(faults: List[Finding], *ids: str) -> List[str]:
    """Those of the faults, or what caused them: a library that is missing where there is no GPU is no cause."""
    return _stand(f for f in faults if f.id in ids)


def _stand(faults: Iterable[Finding]) -> List[str]:
    """Their ids, or those of what caused them: a symptom names a cause that stands."""
    return [cause for f in faults for cause in f.because or (f.id,)]


def _unique(ids: List[str]) -> Tuple[str, ...]:
    return tuple(dict.fromkeys(ids))


def _told(answer: Any) -> str:
    if isinstance(answer, Mapping):
        return "did not return within %s s" % answer["timeout"] if "timeout" in answer else str(answer.get("error"))
    return "returned %s" % answer


def _nvml(machine: Machine, faults: List[Finding]) -> Optional[Finding]:
    code = machine.calls.get("nvmlInit")
    if code is None:
        return _unrecorded(machine, "HT361", "nvmlInit")
    if code == 0:
        return finding("HT361", OK, "nvmlInit", "nvmlInit returns 0", have="0", machine=machine.key)
    given = _ids(faults, "HT410")
    library = given + _ids(faults, "HT353", "HT356", "HT357", "HT350", "HT301", "HT302", "HT304", *codes.OF_NVML)
    because = _unique(
        library + _subjects(faults, CONTROL) + (_ids(faults, "HT351") if isinstance(code, Mapping) else [])
    )
    return _failed(machine, "HT361", "nvmlInit", code, because, "dmesg | grep NVRM | tail", "", bool(faults))


def _cuda(machines: Machines, machine: Machine, faults: List[Finding]) -> Optional[Finding]:
    code = machine.calls.get("cuInit")
    if code is None:
        return _unrecorded(machine, "HT360", "cuInit")
    if code == 0:
        return finding("HT360", OK, "cuInit", "cuInit returns 0", have="0", machine=machine.key)
    given = _ids(faults, "HT410")
    meant = given + [
        f.id for f in faults if f.status == FAIL and f.id in codes.IDS + codes.OF_NVML and f.machine == machine.key
    ]
    causes: Dict[Any, List[str]] = {
        999: _ids(faults, "HT303", "HT350", *log.IDS) + _subjects(faults, UVM_NODE) or _ids(faults, "HT409"),
        100: _ids(faults, "HT301", "HT302", "HT304", "HT352", *log.IDS)
        + _subjects(faults, CONTROL)
        + _gpu_nodes(faults),
        101: _ids(faults, "HT352"),
        34: _ids(faults, "HT351", "HT354"),
        803: _ids(faults, "HT350"),
    }
    explained = (
        given + _ids(faults, "HT351", "HT356", "HT357") if isinstance(code, Mapping) else causes.get(code, []) + meant
    )
    where = below(machines, machine)
    clean = machine.calls.get("cuInit@clean-env")
    if not explained and clean == 0:
        names = ", ".join(sorted(k for k in machine.env if k.startswith(("CUDA_", "LD_")))) or "the environment"
        return finding(
            "HT360",
            FAIL,
            "cuInit",
            "cuInit %s, and returns 0 in a clean environment: one of %s breaks it" % (_told(code), names),
            have=str(code),
            want="0",
            proof=FITS,
            machine=machine.key,
            decide="env -u LD_LIBRARY_PATH -u LD_PRELOAD -u CUDA_MPS_PIPE_DIRECTORY PROGRAM   # one at a time",
            evidence=("cuInit %s" % _told(code), "cuInit in a clean environment returned 0"),
            hint=Hint("env | grep -e ^CUDA_ -e ^LD_", "the shell or unit that starts the program", "", "look"),
        )
    return _failed(
        machine,
        "HT360",
        "cuInit",
        code,
        _unique(explained),
        _DECIDE.get(code, "strace -f -e openat,ioctl PROGRAM")
        if isinstance(code, int)
        else "strace -f -e openat,ioctl PROGRAM",
        where,
        bool(faults),
    )


def _work(machines: Machines, machine: Machine, faults: List[Finding]) -> List[Finding]:
    """Contexts and a kernel, where they were asked for. Once cuInit fails, they say nothing more."""
    asked = {name: code for name, code in machine.calls.items() if name.startswith(("cuCtxCreate@", "cuLaunch@"))}
    if not asked or machine.calls.get("cuInit") != 0:
        return []
    bad = [(name, code) for name, code in asked.items() if code != 0]
    if not bad:
        told = "contexts on %d GPUs, and a kernel that ran" % sum(name.startswith("cuCtx") for name in asked)
        return [finding("HT360", OK, "contexts", told, machine=machine.key)]
    name, code = bad[0]
    because = _unique([f.id for f in faults if f.status == FAIL and f.id in codes.IDS + log.IDS])
    where = below(machines, machine)
    return [_failed(machine, "HT360", name, code, because, "dmesg | grep -e NVRM -e Xid | tail", where, bool(faults))]


def _failed(
    machine: Machine, id: str, name: str, code: Any, because: Tuple[str, ...], decide: str, where: str, others: bool
) -> Finding:
    word = " (%s)" % _NAMES[code] if name == "cuInit" and isinstance(code, int) and code in _NAMES else ""
    summary = "%s %s%s" % (name, _told(code), word)
    have = str(code) if isinstance(code, int) else _told(code)
    if because:
        return finding(id, SKIP, name, summary, have=have, want="0", because=because, machine=machine.key)
    return finding(
        id,
        FAIL,
        name,
        summary + ("; nothing that is wrong below explains that" if others else "; every layer below looks right"),
        have=have,
        want="0",
        proof=FITS,
        decide=decide,
        evidence=("%s %s" % (name, _told(code)), *("strace: %s" % line for line in machine.around.trace[-2:])),
        hint=Hint(decide.partition("   #")[0], where, "", "look"),
        machine=machine.key,
    )


def _unrecorded(machine: Machine, id: str, name: str) -> Finding:
    return finding("HT903", ERROR, name, "%s was not asked" % name, machine=machine.key)


def _count(machine: Machine, faults: List[Finding]) -> Optional[Finding]:
    if machine.calls.get("cuInit") != 0:
        return None
    count = machine.calls.get("cuDeviceGetCount")
    if not isinstance(count, int):
        return finding(
            "HT903",
            ERROR,
            "cuDeviceGetCount",
            "GPUs could not be counted: %s" % ("not asked" if count is None else _told(count)),
            machine=machine.key,
        )
    want = machine.declared_gpus
    if count and want in (None, count):
        return finding(
            "HT362",
            OK,
            "gpus",
            "CUDA counts %d GPU%s%s" % (count, "" if count == 1 else "s", "" if want is None else ", as declared"),
            have=str(count),
            machine=machine.key,
        )
    hidden = machine.calls.get("cuDeviceGetCount@clean-env")
    value = machine.env.get(environment.VARIABLE)
    because = _unique(_gpu_nodes(faults))
    wanted = str(want if want is not None else "at least 1")
    if because and count < (want or 1):
        return finding(
            "HT362",
            SKIP,
            "gpus",
            "CUDA counts %d GPUs, declared are %s" % (count, wanted),
            have=str(count),
            want=wanted,
            because=because,
            machine=machine.key,
        )
    evidence = ["cuDeviceGetCount: %d" % count]
    tail, proof, decide = "", FITS, "nvidia-smi -L"
    if isinstance(hidden, int) and hidden != count and value is not None:
        tail, proof, decide = "; %s=%s hides %d" % (environment.VARIABLE, value, hidden - count), PROVED, ""
        evidence += ["in a clean environment: %d" % hidden, "%s=%s" % (environment.VARIABLE, value)]
    return finding(
        "HT362",
        FAIL,
        "gpus",
        "CUDA counts %d GPUs, declared are %s%s" % (count, wanted, tail),
        have=str(count),
        want=wanted,
        proof=proof,
        decide=decide,
        evidence=tuple(evidence),
        machine=machine.key,
        hint=Hint("nvidia-smi -L", "here", "", "look"),
    )


PROBE = Probe("cuda", (), run)
