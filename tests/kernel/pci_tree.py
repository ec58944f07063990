# SPDX-License-Identifier: Apache-2.0
"""A /sys/bus/pci of plain files that the real lspci and setpci work on, registers included.

`config` is the function's whole 4096-byte config space. A plain file takes every bit that is written, as Device Control of
a real GPU does, so a masked write lands and an unmasked one does its damage. What no plain file can play is a register that
does not keep what was written.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CAPABILITY = 0x60
"""Offset of the PCI Express capability in NVIDIA's GPUs (measured)."""
DEVICE_CONTROL = CAPABILITY + 8
GENERATIONS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
NO_RESOURCE = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"


@dataclass(frozen=True)
class PciFunction:
    """One function; by default an RTX PRO 6000 Blackwell Server Edition bound to nvidia, MaxReadReq 512, MaxPayload 256.

    `devctl` 0x293f: bits 14:12 MaxReadReq (2 = 512 bytes), 7:5 MaxPayload (1 = 256), the rest error reporting, relaxed
    ordering, extended tags, no snoop. `generation` and `width` are what the link can do, `now_*` what it does.
    """

    bdf: str
    vendor: int = 0x10DE
    device: int = 0x2BB5
    class_code: int = 0x030200
    devctl: int = 0x293F
    generation: int = 5
    width: int = 16
    now_generation: int = 5
    now_width: int = 16
    numa_node: int = 0
    local_cpulist: str = "0"
    driver: str | None = "nvidia"
    readable: int = 4096
    """Bytes of `config` that a read returns; sysfs gives 64 to a caller without CAP_SYS_ADMIN."""

    def config(self) -> bytes:
        space = bytearray(4096)
        struct.pack_into("<HHHH", space, 0x00, self.vendor, self.device, 0x0406, 0x0010)  # status: has capabilities
        struct.pack_into("<I", space, 0x08, self.class_code << 8 | 0xA1)
        struct.pack_into("<HH", space, 0x2C, 0x10DE, 0x204E)
        space[0x34] = CAPABILITY
        space[0x3D] = 1  # interrupt pin A
        link_now = self.now_generation | self.now_width << 4 | 0x1000
        struct.pack_into(
            "<BBHIHHIHH", space, CAPABILITY, 0x10, 0, 0x0002, 0x10008022, self.devctl, 0,
            self.generation | self.width << 4, 0x0040, link_now,
        )  # fmt: skip
        struct.pack_into("<I", space, CAPABILITY + 0x2C, (2 << self.generation) - 2)  # Link Capabilities 2: speeds
        struct.pack_into("<H", space, CAPABILITY + 0x30, self.generation)  # Link Control 2: target speed
        struct.pack_into("<I", space, 0x100, 0x00020001)  # an extended capability (AER), so that 4096 bytes are real
        return bytes(space[: self.readable])

    def files(self) -> dict[str, str]:
        """The text attributes, as the kernel prints them."""
        return {
            "vendor": f"0x{self.vendor:04x}\n",
            "device": f"0x{self.device:04x}\n",
            "class": f"0x{self.class_code:06x}\n",
            "revision": "0xa1\n",
            "subsystem_vendor": "0x10de\n",
            "subsystem_device": "0x204e\n",
            "irq": "16\n",
            "resource": NO_RESOURCE * 13,
            "enable": "1\n",
            "numa_node": f"{self.numa_node}\n",
            "local_cpulist": f"{self.local_cpulist}\n",
            "current_link_speed": f"{GENERATIONS[self.now_generation]} GT/s PCIe\n",
            "current_link_width": f"{self.now_width}\n",
            "max_link_speed": f"{GENERATIONS[self.generation]} GT/s PCIe\n",
            "max_link_width": f"{self.width}\n",
        }


def write_bus(root: Path, functions: Sequence[PciFunction]) -> None:
    """Fill `root`, the equivalent of /sys/bus/pci: devices/, drivers/, slots/."""
    for name in ("devices", "drivers", "slots"):
        (root / name).mkdir(exist_ok=True)
    for function in functions:
        folder = root / "devices" / function.bdf
        folder.mkdir()
        for name, text in function.files().items():
            (folder / name).write_text(text)
        (folder / "config").write_bytes(function.config())
        if function.driver is not None:
            driver = root / "drivers" / function.driver
            driver.mkdir(exist_ok=True)
            (folder / "driver").symlink_to(f"../../drivers/{function.driver}")
            (driver / function.bdf).symlink_to(f"../../devices/{function.bdf}")
