# SPDX-License-Identifier: Apache-2.0
"""Codes that a limit or the kernel itself gives: address space, HMM, shared addressing, a filter of system calls."""

from __future__ import annotations

import re
from typing import Optional

from ..doctor import surroundings as near
from ..doctor.survey import Machine
from ..model import Finding, Hint
from .code import ANEW, OWN, cause, said


def limits(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    """Measured: an address space of 4 GB gives 2 on a GPU of 141 GB, 20 GB gives 0."""
    found = re.search(r"^Max address space\s+(\S+)", machine.around.files.get(near.LIMITS, ""), re.MULTILINE)
    if found and found.group(1) != "unlimited":
        return cause(
            "HT365",
            machine,
            "address space",
            "this process may have %s bytes of address space; CUDA reserves more" % found.group(1),
            found.group(1),
            "unlimited",
            ("%s: Max address space %s" % (near.LIMITS, found.group(1)), said(name, code)),
            Hint("ulimit -v unlimited   # in a unit: LimitAS=infinity", OWN, ANEW, "reconfigure"),
            "prlimit --as=unlimited PROGRAM",
        )
    if machine.around.files.get(near.OVERCOMMIT, "").strip() == "2":
        return cause(
            "HT365",
            machine,
            "vm.overcommit_memory",
            "the kernel promises no more memory than it has; CUDA reserves more",
            "2",
            "0",
            ("%s: 2" % near.OVERCOMMIT, said(name, code)),
            Hint("sysctl -w vm.overcommit_memory=0", where, "nothing is restarted; until the next boot", "apply"),
            "grep -i commit /proc/meminfo   # CommitLimit beside Committed_AS",
        )
    return None


def hmm(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    lines = [
        line
        for line in machine.around.log or ()
        if re.search(r"devmem_alloc_pagemap|request_free_mem_region\(\) err -34", line)
    ]
    on = machine.around.files.get(near.HMM, "").strip() == "N"
    if not on or machine.around.arch == "aarch64":
        return None
    evidence = ["kernel log: %s" % lines[-1].strip()[:200]] if lines else []
    return cause(
        "HT323",
        machine,
        "nvidia-uvm",
        "it asks the kernel for address space of its own (HMM) and gets none",
        "N",
        "Y",
        (*evidence, "%s: N" % near.HMM, said(name, code)),
        Hint(
            "echo 'options nvidia_uvm uvm_disable_hmm=1' > /etc/modprobe.d/nvidia-uvm-hmm.conf && rmmod nvidia_uvm && "
            "modprobe nvidia-uvm",
            where,
            "every CUDA program has to end first",
            "apply",
        ),
        "" if lines else "dmesg | grep -e devmem_alloc_pagemap -e request_free_mem_region",
    )


def sva(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    if machine.around.arch != "aarch64":
        return None
    return cause(
        "HT324",
        machine,
        "kernel",
        "on this machine CUDA needs a kernel with shared virtual addressing",
        machine.around.release,
        "CONFIG_ARM_SMMU_V3_SVA=y",
        (said(name, code), "machine: aarch64"),
        Hint(
            "grep ARM_SMMU_V3_SVA /boot/config-%s" % machine.around.release,
            where,
            "another kernel needs a reboot",
            "look",
        ),
        "nvidia-smi -q | grep -i 'addressing mode'   # None: that is it",
    )


_UNFILTERED = {
    "docker": "docker run --security-opt seccomp=unconfined --gpus all IMAGE   # for one try",
    "podman": "podman run --security-opt seccomp=unconfined --device nvidia.com/gpu=all IMAGE   # for one try",
    "kubernetes": "kubectl explain pod.spec.securityContext.seccompProfile   # type: Unconfined, for one try",
    "lxc": "grep -rn seccomp /etc/pve/lxc/CTID.conf /usr/share/lxc/config/common.conf",
}


def seccomp(machine: Machine, name: str, code: int, where: str) -> Optional[Finding]:
    if not re.search(r"^Seccomp:\s*2", machine.around.files.get(near.STATUS, ""), re.MULTILINE):
        return None
    return cause(
        "HT368",
        machine,
        "seccomp",
        "a filter of system calls is on this process, and CUDA meets an error of the operating system",
        "2",
        "0",
        ("%s: Seccomp 2" % near.STATUS, said(name, code)),
        Hint(
            _UNFILTERED.get(machine.kind, "systemctl show -p SystemCallFilter UNIT   # the unit that this runs in"),
            where,
            "the program, or its container, starts anew",
            "reconfigure" if machine.kind in ("docker", "podman") else "look",
        ),
        "strace -f -e openat,ioctl,mmap PROGRAM   # which call does it refuse?",
    )
