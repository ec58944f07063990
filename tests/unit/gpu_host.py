# SPDX-License-Identifier: Apache-2.0
"""A Proxmox VE host on paper, from the few lines in which a case differs from it: PCI functions, and answers to lay over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hosttune.core.recording import merge
from tests.kernel.pci_tree import ABSENT, PciFunction, port, recorded

HOST: dict[str, Any] = {
    "uname": "pve1 6.14.11-4-pve x86_64",
    "uid": 0,
    "caps": "1ffffffffff",
    "files": {
        "/run/systemd/container": ABSENT,
        "/.dockerenv": ABSENT,
        "/run/.containerenv": ABSENT,
        "/proc/1/environ": "HOME=/\0TERM=linux\0",
        "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.14.11-4-pve root=/dev/mapper/pve-root ro quiet\n",
        "/proc/devices": "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n259 blkext\n",
        "/boot/config-6.14.11-4-pve": "CONFIG_PCIE_BUS_DEFAULT=y\n# CONFIG_PCIE_BUS_PERFORMANCE is not set\n",
        "/sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
        "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f": ABSENT,
        "/etc/pve/mapping/pci.cfg": ABSENT,
    },
    "dirs": {"/etc/pve/qemu-server": []},
    "links": {"/proc/self/ns/pid": "pid:[4026531836]"},
    "holders": {"511:*": []},
}


def machine(pci: Sequence[Mapping[str, Any]], over: Mapping[str, Any]) -> dict[str, Any]:
    """The host with these PCI functions (rows of PciFunction's own words; "port": true for a port) and `over` on top."""
    functions = [_function(dict(row)) for row in pci]
    return merge(merge(HOST, recorded(functions)), over)


def _function(row: dict[str, Any]) -> PciFunction:
    """JSON has no hexadecimal numbers: registers are written as texts, "0x293f"."""
    words: dict[str, Any] = {key: int(value, 16) if str(value).startswith("0x") else value for key, value in row.items()}
    return port(**words) if words.pop("port", False) else PciFunction(**words)
