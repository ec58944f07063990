# SPDX-License-Identifier: Apache-2.0
"""A Proxmox VE host on paper, from the few lines in which a case differs from it: PCI functions, and answers to lay over it.

Its kernel, memory and CPUs are those of tests/cases/knobs_host/base.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hosttune.core.recording.merge import merge
from tests.kernel.pci_tree import ABSENT, PciFunction, port, recorded

PARAMS = """\
ModifyDeviceFiles: 1
InitializeSystemMemoryAllocations: 1
EnableMSI: 1
RmProfilingAdminOnly: 1
DynamicPowerManagement: 3
EnablePCIERelaxedOrderingMode: 0
EnableResizableBar: 0
RegistryDwords: ""
"""
"""Of /proc/driver/nvidia/params, what the tests need."""
ROOTS = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
UNITS = [f"{root}/systemd/system" for root in ROOTS]
FOLDERS = [f"{root}/{name}" for name in ("modprobe.d", "udev/rules.d") for root in ROOTS]

BELOW = json.loads((Path(__file__).parents[1] / "cases" / "knobs_host" / "base.json").read_text())
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
        "/sys/module/pcie_aspm/parameters/policy": "default [performance] powersave powersupersave\n",
        "/etc/tmpfiles.d/hosttune-pcie-aspm.conf": ABSENT,
        **{
            f"/etc/modprobe.d/hosttune-nvidia-{name}.conf": ABSENT
            for name in ("hmm", "resizable-bar", "relaxed-ordering", "dynamic-power")
        },
        "/proc/driver/nvidia/params": PARAMS,
        "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
        "/run/nvidia-persistenced/nvidia-persistenced.pid": "812\n",
        "/proc/812/cmdline": "/usr/bin/nvidia-persistenced\0--user\0nvpd\0",
    },
    "dirs": {
        "/etc/pve/qemu-server": [],
        "/run/systemd": ["system"],
        **dict.fromkeys((*UNITS, *FOLDERS), []),
        "/usr/lib/systemd/system": ["nvidia-persistenced.service"],
        "/etc/systemd/system": ["multi-user.target.wants"],
        "/etc/systemd/system/multi-user.target.wants": ["nvidia-persistenced.service"],
    },
    "links": {"/proc/self/ns/pid": "pid:[4026531836]"},
    "holders": {"511:*": []},
}


def machine(pci: Sequence[Mapping[str, Any]], over: Mapping[str, Any]) -> dict[str, Any]:
    """The host with these PCI functions (rows of PciFunction's own words; "port": true for a port) and `over` on top."""
    functions = [_function(dict(row)) for row in pci]
    untold = {f"/proc/driver/nvidia/gpus/{function.bdf}/power": ABSENT for function in functions}
    whole = merge(BELOW, HOST)
    for part in ({"files": untold}, recorded(functions), over):
        whole = merge(whole, part)
    return whole


def _function(row: dict[str, Any]) -> PciFunction:
    """JSON has no hexadecimal numbers: registers are written as texts, "0x293f"."""
    words: dict[str, Any] = {
        key: int(value, 16) if str(value).startswith("0x") else value for key, value in row.items()
    }
    return port(**words) if words.pop("port", False) else PciFunction(**words)
