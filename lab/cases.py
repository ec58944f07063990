# SPDX-License-Identifier: Apache-2.0
"""Ways in which hosts like this one have broken, each as commands for the guest: `make lab-break CASE=name`."""

from __future__ import annotations

from dataclasses import dataclass

from lab import LabError
from lab.machine import Machine

UVM_MAJOR = "awk '$2 == \"nvidia-uvm\" { print $1 }' /proc/devices"
IN_MODULES = "cd /lib/modules/$(uname -r)"


@dataclass(frozen=True)
class Case:
    """`commands` are run in the guest by a shell, one after the other; then, if `reboot`, it reboots.

    broken: what to tell a person about the state that this leaves.
    """

    broken: str
    commands: tuple[str, ...] = ()
    reboot: bool = False


CASES = {
    "founding": Case(
        "the host has rebooted: nvidia-uvm has another major than container 200 allows, MaxReadReq is 512, NUMA balancing on",
        reboot=True,
    ),
    "moved-live": Case(
        "nvidia-uvm was reloaded under the running container 200, which still holds the node with the old number",
        ("modprobe -r nvidia-uvm", "modprobe nvidia-uvm major=510", "udevadm settle"),
    ),
    "no-nodes": Case(
        "no rule makes device nodes any more: after this reboot nothing has asked for /dev/nvidia*",
        ("rm -f /etc/udev/rules.d/70-nvidia.rules",),
        reboot=True,
    ),
    "no-module": Case(
        "a new kernel came without the driver's modules",
        (f"{IN_MODULES} && mkdir -p /root/away && mv extra/nvidia*.ko /root/away/ && depmod -a",),
        reboot=True,
    ),
    "mismatch": Case(
        "the kernel module is of another version than the libraries",
        ("echo 595.71.05 >/sys/module/nvidia/parameters/version",),
    ),
    "sick-gpu": Case("GPU 2 answers EIO to whoever opens it", ("echo 4 >/sys/module/nvidia/parameters/sick",)),
    "link-x8": Case(
        "the link of GPU 3, 0000:41:00.0, runs with 8 lanes of 16",
        ("echo 16,16,16,8 >/sys/module/labhw/parameters/cur_width",),
    ),
    "gpu-gone": Case(
        "GPU 3, 0000:41:00.0, has been removed from the bus", ("echo 1 >/sys/bus/pci/devices/0000:41:00.0/remove",)
    ),
    "fell-off": Case(
        "GPU 3, 0000:41:00.0, has fallen off the bus: every read of it gives ones",
        ("echo 8 >/sys/module/labhw/parameters/gone",),
    ),
    "no-quorum": Case("/etc/pve refuses changes: the node has lost its cluster", ("lab-pve quorum off",)),
}


def apply(name: str, machine: Machine) -> Case:
    """Break the guest that way. LabError for a name that there is not, or when a command fails."""
    if name not in CASES:
        width = max(map(len, CASES))
        known = "\n".join(f"  {key:{width}}  {case.broken}" for key, case in CASES.items())
        raise LabError(
            "%s; these are there:\n%s" % (f"no case is called '{name}'" if name else "which case? CASE=name", known)
        )
    case = CASES[name]
    for command in case.commands:
        machine.run("sh", "-ec", command, check=True)
    if case.reboot:
        machine.reboot()
        machine.settle()
    return case
