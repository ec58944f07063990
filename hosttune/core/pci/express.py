# SPDX-License-Identifier: Apache-2.0
"""Registers of PCI config space: the PCI Express capability, Access Control Services, and the masked write to either.

Offsets and masks: include/uapi/linux/pci_regs.h. A capability is found by walking its list, never by an absolute offset:
Device Control lies at 0x68, 0x80 or 0x48 depending on the GPU's generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ..door.host import Host
from .bus import DEVICES

CAPABILITY_LIST = 0x34
CAP_ID_EXPRESS = 0x10
EXTENDED = 0x100
ECAP_ID_ACS = 0x000D
MAX_READ_REQUEST = 0x7000
"""Bits 14:12 of Device Control. Bit 15 starts a function level reset on an endpoint: it must never be in the mask."""
ACS_REDIRECT = 0x002C
"""Of ACS Control: P2P request redirect (bit 2), completion redirect (3), egress control (5). Source validation and the
rest stay as they are: they keep no traffic between two GPUs from being switched below the root complex."""


class Unreadable(Exception):
    """Config space could not be told; the text says why. Never the same as "there is no such register"."""


def config(host: Host, bdf: str, size: int = 256) -> bytes:
    """The first `size` bytes of a function's config space. Raises Unreadable, OSError."""
    path = "%s/%s/config" % (DEVICES, bdf)
    data = host.read_bytes(path, size)
    if len(data) < min(size, 256):
        raise Unreadable("config space ends after %d bytes: run it as root (%s)" % (len(data), path))
    if data[:4] == b"\xff\xff\xff\xff":
        raise Unreadable("it does not answer: its config space reads as ones (%s); it fell off the bus" % path)
    if len(data) < size:
        raise Unreadable("extended config space is not shown: the kernel has no MMCONFIG access to it (%s)" % path)
    return data


@dataclass(frozen=True)
class Express:
    """The PCI Express capability of a function: its registers as they are, and their fields. Sizes in bytes."""

    flags: int
    device_capabilities: int
    device_control: int

    @property
    def max_read_request(self) -> int:
        """0 for the two reserved codes."""
        return _size(self.device_control >> 12 & 7)

    @property
    def max_payload(self) -> int:
        """0 for the two reserved codes."""
        return _size(self.device_control >> 5 & 7)

    @property
    def max_payload_text(self) -> str:
        """As a person reads it."""
        return str(self.max_payload or "a reserved code")

    @property
    def max_payload_supported(self) -> int:
        """0 for the two reserved codes."""
        return _size(self.device_capabilities & 7)

    @property
    def relaxed_ordering(self) -> bool:
        """Whether the function may mark its requests as relaxed (bit 4)."""
        return bool(self.device_control & 0x0010)

    @property
    def extended_tags(self) -> bool:
        """Whether it uses 8-bit tags (bit 8): 256 requests in flight instead of 32."""
        return bool(self.device_control & 0x0100)

    @property
    def extended_tags_supported(self) -> bool:
        """Whether it can (Device Capabilities bit 5)."""
        return bool(self.device_capabilities & 0x0020)


def _size(code: int) -> int:
    return 128 << code if code < 6 else 0


def express(space: bytes) -> Optional[Express]:
    """The PCI Express capability in these 256 bytes of config space, None if the function has none."""
    if not space[0x06] & 0x10:  # Status bit 4: there is a capability list
        return None
    at, seen = space[CAPABILITY_LIST] & 0xFC, set()
    while at and at not in seen and at + 10 <= len(space):
        seen.add(at)
        if space[at] == CAP_ID_EXPRESS:
            return Express(_number(space, at + 2, 2), _number(space, at + 4, 4), _number(space, at + 8, 2))
        at = space[at + 1] & 0xFC
    return None


@dataclass(frozen=True)
class Acs:
    """Access Control Services of a port: what it can control, and what it does."""

    capabilities: int
    control: int

    @property
    def redirects(self) -> str:
        """What of the traffic between its neighbours it sends up to the root complex: "request+completion", "off"."""
        named = ((0x04, "request"), (0x08, "completion"), (0x20, "egress"))
        return "+".join(word for bit, word in named if self.control & bit) or "off"


def acs(space: bytes) -> Optional[Acs]:
    """The ACS capability in these 4096 bytes of config space, None if the function has none."""
    at, seen = EXTENDED, set()
    while at >= EXTENDED and at not in seen and at + 8 <= len(space):
        seen.add(at)
        header = _number(space, at, 4)
        if header & 0xFFFF == ECAP_ID_ACS:
            return Acs(_number(space, at + 4, 2), _number(space, at + 6, 2))
        at = header >> 20 & 0xFFC
    return None


def _number(space: bytes, at: int, size: int) -> int:
    return int.from_bytes(space[at : at + size], "little")


def setpci(bdf: str, register: str, value: int, mask: int) -> Tuple[str, ...]:
    """A masked 16-bit write. A 32-bit one to Device Control would clear Device Status, whose bits are cleared by writing 1.

    setpci exits 0 even when the kernel refuses the write: only reading back tells.
    """
    return ("setpci", "-s", bdf, "%s.w=%04x:%04x" % (register, value, mask))


def set_max_read_request(bdf: str, size: int) -> Tuple[str, ...]:
    """setpci for a MaxReadReq of so many bytes."""
    return setpci(bdf, "CAP_EXP+8", ((size // 128).bit_length() - 1) << 12, MAX_READ_REQUEST)
