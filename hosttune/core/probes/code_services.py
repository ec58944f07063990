# SPDX-License-Identifier: Apache-2.0
"""Codes that something around the driver gives: fabric manager, MPS, another libcuda, a preloaded library, a suspend."""

from __future__ import annotations

import re
import shlex
from typing import Optional

from ..doctor import surroundings as near
from ..doctor.survey import Machine
from ..model import Finding, Hint
from .code import ANEW, OWN, cause, said, without


def fabric(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    """Only where there is an NVSwitch: elsewhere the service fails, and is no cause."""
    # The service runs beside the driver: what a container's own systemd says of it is about another machine.
    state = machine.around.commands.get(near.FABRIC, "") if machine.kind == "host" else ""
    if not machine.around.nvswitches:
        return cause(
            "HT327",
            machine,
            "GPUs",
            "they are not set ready, and there is no NVSwitch that a fabric manager would wait for",
            "not ready",
            "ready",
            (said(name, code), "/sys/bus/pci/devices: no NVIDIA bridge of class 0680"),
            Hint(
                "nvidia-smi conf-compute -grs   # not ready, in a confidential virtual machine: attest first, then -srs 1",
                where,
                "",
                "look",
            ),
            "nvidia-smi conf-compute -grs; nvidia-smi -q | grep -i -A3 fabric",
        )
    active = "ActiveState=active" in state
    seen = (
        said(name, code),
        "%s: an NVSwitch" % machine.around.nvswitches[0],
        "nvidia-fabricmanager: %s" % (" ".join(state.split()) or "not to be seen"),
    )
    if not active and state:
        missing = "LoadState=not-found" in state
        fix = "apt install nvidia-fabricmanager-%s && " % (machine.module or "VERSION").split(".")[0] if missing else ""
        return cause(
            "HT326",
            machine,
            "fabric manager",
            "this host has NVSwitches and %s" % ("no fabric manager" if missing else "its fabric manager does not run"),
            "not installed" if missing else "not active",
            "active",
            seen,
            Hint(
                fix + "systemctl enable --now nvidia-fabricmanager",
                where,
                "nothing is restarted; its version must be the driver's",
                "apply",
            ),
        )
    return cause(
        "HT326",
        machine,
        "fabric manager",
        "this host has NVSwitches, and the fabric is not ready",
        "not ready",
        "ready",
        seen,
        Hint("journalctl -u nvidia-fabricmanager -n 30", where, "", "look"),
        "nv-fabricmanager -v beside %s" % (machine.module or "the driver's version"),
    )


def mps(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    pipe = machine.env.get("CUDA_MPS_PIPE_DIRECTORY", "")
    if not pipe:
        return None
    return cause(
        "HT367",
        machine,
        "CUDA_MPS_PIPE_DIRECTORY",
        "no MPS daemon answers in %s" % pipe,
        pipe,
        "unset, or a daemon of this user",
        ("CUDA_MPS_PIPE_DIRECTORY=%s" % pipe, said(name, code)),
        Hint("unset CUDA_MPS_PIPE_DIRECTORY", OWN, ANEW, "reconfigure"),
        "ls -l %s/control; ps -o user,args -C nvidia-cuda-mps-control" % shlex.quote(pipe),
    )


def compat(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    library = machine.calls.get("dlopen:libcuda.so.1")
    path = str(library.get("path", "")) if isinstance(library, dict) else ""
    if "/compat" not in path:
        return None
    return cause(
        "HT355",
        machine,
        "libcuda.so.1",
        "%s is the forward-compatibility library, which works on data centre GPUs only" % path,
        path,
        "the driver's own",
        ("libcuda.so.1 -> %s" % path, said(name, code)),
        without(machine, path.rpartition("/")[0]),
    )


_OF_GPUS = re.compile(r"gpu|cuda|nvidia|hami", re.IGNORECASE)


def preload(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    text = re.sub(r"#.*", "", machine.around.files.get(near.PRELOAD, ""))
    named = sorted(re.findall(r"[^\s:]+", text), key=lambda path: not _OF_GPUS.search(path))
    if not named:
        return None
    return cause(
        "HT358",
        machine,
        named[0],
        "%s is loaded into every program before CUDA" % named[0],
        named[0],
        "not preloaded",
        ("%s: %s" % (near.PRELOAD, named[0]), said(name, code)),
        Hint(
            "mv %s %s.off" % (near.PRELOAD, near.PRELOAD),
            "where this program runs",
            "other programs may need it: move it back then",
            "reconfigure",
        ),
        "%s   # and try again" % ("mv %s %s.off" % (near.PRELOAD, near.PRELOAD)),
    )


def suspend(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    times = machine.around.files.get(near.SUSPENDS, "").strip()
    if not times.isdigit() or times == "0":
        return None
    users = machine.around.files.get(near.UVM_USERS, "").strip()
    kept = re.search(r"PreserveVideoMemoryAllocations:\s*(\d)", machine.around.files.get(near.PARAMS, ""))
    evidence = ["%s: %s since the boot" % (near.SUSPENDS, times)]
    evidence += ["%s: PreserveVideoMemoryAllocations %s" % (near.PARAMS, kept.group(1))] if kept else []
    busy = (
        "%s users hold nvidia-uvm: stop them first (fuser -v /dev/nvidia-uvm)" % users
        if users.isdigit() and int(users)
        else ""
    )
    return cause(
        "HT322",
        machine,
        "nvidia-uvm",
        "the machine slept since its boot, and nvidia-uvm does not survive that",
        "suspended",
        "reloaded",
        (said(name, code), *evidence),
        Hint("rmmod nvidia_uvm && modprobe nvidia-uvm", where, busy or "no CUDA program may run", "apply"),
        "rmmod nvidia_uvm && modprobe nvidia-uvm   # if CUDA starts afterwards, that was it",
    )
