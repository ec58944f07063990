# SPDX-License-Identifier: Apache-2.0
"""KVM or emulation? A /dev/kvm is no promise: some (kvm_pvm in a virtual machine without VMX or SVM) run only kernels made for
them and take minutes for the first page of an ordinary one. So KVM has to boot the lab's kernel once before it is used."""

from __future__ import annotations

import fcntl
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab import LabError, cache

KVM_GET_API_VERSION = 0xAE00
KVM_CREATE_VM = 0xAE01
PROBE_SECONDS = 15
"""An ordinary KVM needs some two seconds until the kernel panics for want of a disk."""


@dataclass(frozen=True)
class Accel:
    """What QEMU runs the guest with; `patience` multiplies the time limits of every wait."""

    name: str
    options: tuple[str, ...]
    why: str
    patience: float


def emulation(why: str) -> Accel:
    return Accel("tcg", ("-accel", "tcg,thread=multi", "-cpu", "max"), why, 1.0)


KVM = Accel("kvm", ("-accel", "kvm", "-cpu", "host"), "/dev/kvm runs ordinary kernels", 0.5)


def choose(kernel: Path) -> Accel:
    """KVM if it boots `kernel`, else emulation with the reason. HOSTTUNE_LAB_ACCEL=tcg|kvm decides without a look."""
    wish = os.environ.get("HOSTTUNE_LAB_ACCEL", "")
    if wish == "kvm":
        return KVM
    if wish == "tcg":
        return emulation("HOSTTUNE_LAB_ACCEL asks for it")
    if wish:
        raise LabError("HOSTTUNE_LAB_ACCEL is '%s': it can be tcg or kvm" % wish)
    obstacle = _obstacle(Path("/dev/kvm"), Path("/proc/cpuinfo"))
    if obstacle is None and not _boots(kernel):
        obstacle = "/dev/kvm did not boot an ordinary kernel within %d s" % PROBE_SECONDS
    return KVM if obstacle is None else emulation(obstacle)


def _obstacle(device: Path, cpuinfo: Path) -> str | None:
    """Why KVM cannot be used, as far as it can be told without booting anything."""
    if os.uname().machine != "x86_64":
        return "this machine is no x86-64"
    try:
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as e:
        return "%s: %s" % (device, e.strerror)
    try:
        if fcntl.ioctl(fd, KVM_GET_API_VERSION) != 12:
            return "%s speaks another API version than 12" % device
        os.close(fcntl.ioctl(fd, KVM_CREATE_VM))
    except OSError as e:
        return "%s makes no virtual machine: %s" % (device, e.strerror)
    finally:
        os.close(fd)
    flags = next((line.split() for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), [])
    if not {"vmx", "svm"} & set(flags):
        return "%s is there, but without VMX or SVM it runs no ordinary kernel" % device
    return None


def _boots(kernel: Path) -> bool:
    """Boot it without a disk: it panics, and panic=-1 with -no-reboot ends QEMU. Remembered until this machine boots again."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    proof = cache() / ("kvm-works-%s" % boot)
    if proof.exists():
        return True
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-M", "q35", *KVM.options, "-m", "512", "-display", "none",
        "-no-reboot", "-kernel", str(kernel), "-append", "panic=-1 quiet",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode == 0:
        proof.touch()
    return done.returncode == 0
