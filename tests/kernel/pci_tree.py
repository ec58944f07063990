# SPDX-License-Identifier: Apache-2.0
"""A /sys/bus/pci of plain files that the real lspci and setpci work on, registers included; or the same as a recording tells it.

`config` is the function's whole 4096-byte config space. A plain file takes every bit that is written, as Device Control of
a real GPU does, so a masked write lands and an unmasked one does its damage. What no plain file can play is a register that
does not keep what was written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPABILITY = 0x60
"""Offset of the PCI Express capability in NVIDIA's GPUs (measured)."""
DEVICE_CONTROL = CAPABILITY + 8
GENERATIONS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
NO_RESOURCE = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
DEVICES = "/sys/bus/pci/devices"
ENDPOINT, ROOT_PORT, UPSTREAM_PORT, DOWNSTREAM_PORT = 0, 4, 5, 6
"""Types of PCI Express functions, as the capability's flags hold them."""
ABSENT = {"errno": "ENOENT"}
AER = ("correctable", "fatal", "nonfatal")


@dataclass(frozen=True)
class PciFunction:
    """One function; by default an RTX PRO 6000 Blackwell Server Edition bound to nvidia, MaxReadReq 512, MaxPayload 256.

    `devctl` 0x293f: bits 14:12 MaxReadReq (2 = 512 bytes), 7:5 MaxPayload (1 = 256), the rest error reporting, relaxed
    ordering, extended tags, no snoop. `generation` and `width` are what the link can do, `now_*` what it does. `devcap`:
    bits 2:0 the largest MaxPayload (2 = 512), bit 5 extended tags.

    below: the ports above it from the root port down, "0000:40:01.1/0000:41:00.0". acs: its ACS Control, None without that
    capability. group: its IOMMU group and how that is treated, "7 identity". errors: {"correctable": {"BadTLP": 3}}, None
    where the kernel counts none. bar1: bytes; resize: bit mask of sizes that are offered, in MiB. aspm: {"l1_aspm": "1"}.
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
    kind: int = ENDPOINT
    below: str = ""
    devcap: int = 0x10008022
    acs: int | None = None
    group: str = ""
    errors: Mapping[str, Mapping[str, int]] | None = field(default_factory=dict)
    bar1: int = 128 << 30
    resize: int | None = None
    power_control: str = "on"
    aspm: Mapping[str, str] = field(default_factory=dict)
    physfn: str = ""

    def config(self) -> bytes:
        space = bytearray(4096)
        struct.pack_into("<HHHH", space, 0x00, self.vendor, self.device, 0x0406, 0x0010)  # status: has capabilities
        struct.pack_into("<I", space, 0x08, self.class_code << 8 | 0xA1)
        struct.pack_into("<HH", space, 0x2C, 0x10DE, 0x204E)
        space[0x34] = CAPABILITY
        space[0x3D] = 1  # interrupt pin A
        space[0x0E] = 0 if self.kind == ENDPOINT else 1  # a bridge's header
        link_now = self.now_generation | self.now_width << 4 | 0x1000
        struct.pack_into(
            "<BBHIHHIHH", space, CAPABILITY, 0x10, 0, 0x0002 | self.kind << 4, self.devcap, self.devctl, 0,
            self.generation | self.width << 4, 0x0040, link_now,
        )  # fmt: skip
        struct.pack_into("<I", space, CAPABILITY + 0x2C, (2 << self.generation) - 2)  # Link Capabilities 2: speeds
        struct.pack_into("<H", space, CAPABILITY + 0x30, self.generation)  # Link Control 2: target speed
        aer = 0x0001 | 2 << 16  # an extended capability, so that 4096 bytes are real
        struct.pack_into("<I", space, 0x100, aer | (0x148 << 20 if self.acs is not None else 0))
        if self.acs is not None:
            struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x001F, self.acs)
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
            "resource": self._resource(),
            "enable": "1\n",
            "numa_node": f"{self.numa_node}\n",
            "local_cpulist": f"{self.local_cpulist}\n",
            "current_link_speed": f"{GENERATIONS[self.now_generation]} GT/s PCIe\n",
            "current_link_width": f"{self.now_width}\n",
            "max_link_speed": f"{GENERATIONS[self.generation]} GT/s PCIe\n",
            "max_link_width": f"{self.width}\n",
            "power/control": f"{self.power_control}\n",
            **{f"link/{name}": f"{value}\n" for name, value in self.aspm.items()},
            **({} if self.resize is None else {"resource1_resize": f"{self.resize:016x}\n"}),
            **(
                {}
                if self.errors is None
                else {f"aer_dev_{kind}": _counts(kind, self.errors.get(kind, {})) for kind in AER}
            ),
        }

    def _resource(self) -> str:
        if self.kind != ENDPOINT:
            return NO_RESOURCE * 13
        registers, window = 0x90000000, 0x4000000000
        lines = [
            f"0x{registers:016x} 0x{registers + (64 << 20) - 1:016x} 0x0000000000040200\n",
            f"0x{window:016x} 0x{window + self.bar1 - 1:016x} 0x000000000014220c\n",
        ]
        return "".join(lines) + NO_RESOURCE * 11

    def place(self) -> str:
        """Where it lies below /sys/devices: "pci0000:40/0000:40:01.1/0000:41:00.0"."""
        way = [part for part in self.below.split("/") if part] + [self.bdf]
        return "/".join([f"pci{way[0][:7]}", *way])


def _counts(kind: str, errors: Mapping[str, int]) -> str:
    """As the kernel prints them (drivers/pci/pcie/aer.c), shortened: names, then a total."""
    counts = {"BadTLP" if kind == "correctable" else "DLP": 0, **errors}
    total = {"correctable": "COR", "fatal": "FATAL", "nonfatal": "NONFATAL"}[kind]
    return (
        "".join(f"{name} {count}\n" for name, count in counts.items()) + f"TOTAL_ERR_{total} {sum(errors.values())}\n"
    )


def port(bdf: str, **more: Any) -> PciFunction:
    """A port of a switch or a root port (`kind`): ACS that redirects requests and completions, MaxPayload 256."""
    given: dict[str, Any] = {
        "vendor": 0x1022,
        "device": 0x14AB,
        "class_code": 0x060400,
        "driver": "pcieport",
        "kind": ROOT_PORT,
    }
    return PciFunction(bdf, **{**given, "devctl": 0x2937, "acs": 0x001D, **more})


def write_bus(root: Path, functions: Sequence[PciFunction]) -> None:
    """Fill `root`, the equivalent of /sys/bus/pci: devices/, drivers/, slots/, and tree/, which plays /sys/devices."""
    for name in ("devices", "drivers", "slots"):
        (root / name).mkdir(exist_ok=True)
    for function in functions:
        folder = root / "tree" / function.place()
        folder.mkdir(parents=True)
        _link(root / "devices" / function.bdf, folder)
        for name, text in function.files().items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        (folder / "config").write_bytes(function.config())
        if function.driver is not None:
            driver = root / "drivers" / function.driver
            driver.mkdir(exist_ok=True)
            _link(folder / "driver", driver)
            _link(driver / function.bdf, folder)


def _link(path: Path, target: Path) -> None:
    path.symlink_to(os.path.relpath(target, path.parent))


def recorded(functions: Sequence[PciFunction]) -> dict[str, Any]:
    """`files`, `dirs` and `links` of a recording of this bus, and what is not there as absent."""
    files: dict[str, Any] = {}
    dirs: dict[str, Any] = {DEVICES: [function.bdf for function in functions]}
    links: dict[str, Any] = {}
    for function in functions:
        base = f"{DEVICES}/{function.bdf}"
        for name in ("resource1_resize", *(f"aer_dev_{kind}" for kind in AER)):
            files[f"{base}/{name}"] = ABSENT
        files.update({f"{base}/{name}": text for name, text in function.files().items()})
        files[f"{base}/config"] = {"hex": function.config().hex()}
        dirs[f"{base}/link"] = list(function.aspm) or ABSENT
        links[base] = f"../../../devices/{function.place()}"
        links[f"{base}/driver"] = f"../../../bus/pci/drivers/{function.driver}" if function.driver else ABSENT
        links[f"{base}/physfn"] = f"../{function.physfn}" if function.physfn else ABSENT
        group, _, how = function.group.partition(" ")
        links[f"{base}/iommu_group"] = f"../../../kernel/iommu_groups/{group}" if group else ABSENT
        if group:
            files[f"/sys/kernel/iommu_groups/{group}/type"] = f"{how}\n" if how else ABSENT
    return {"files": files, "dirs": dirs, "links": links}
