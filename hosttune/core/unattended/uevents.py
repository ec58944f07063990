# SPDX-License-Identifier: Apache-2.0
"""The kernel's own announcements: a device came, a driver was bound, a module was loaded. From a netlink socket of the standard
library, so that the one file on a target needs no package (docs/adr/0014).

Format: lib/kobject_uevent.c, "ACTION@DEVPATH" and then KEY=VALUE texts, each ended by a zero byte. What comes from another
sender than the kernel is thrown away.
"""

from __future__ import annotations

import errno
import socket
from typing import Dict, List, Mapping

Event = Mapping[str, str]

KOBJECT_UEVENT = 15
"""NETLINK_KOBJECT_UEVENT of include/uapi/linux/netlink.h. Group 1 is the kernel, group 2 udev, which comes later."""
LOST: Event = {"ACTION": "lost", "SUBSYSTEM": "hosttune"}
"""In place of events that the socket had no room for: whoever waits must look for himself."""


class Uevents:
    """An open ear: `drain` gives what was announced since it was opened, also while nobody waited."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, KOBJECT_UEVENT)
        self._socket.setblocking(False)
        self._socket.bind((0, 1))

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def fileno(self) -> int:
        """For select(2)."""
        return self._socket.fileno()

    def drain(self) -> List[Event]:
        """All messages that are there by now."""
        found: List[Event] = []
        while True:
            try:
                data, (sender, _) = self._socket.recvfrom(65536)
            except BlockingIOError:
                return found
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise
                found.append(LOST)
                continue
            if sender == 0:
                found.append(parse(data))


def parse(data: bytes) -> Dict[str, str]:
    """{"ACTION": "bind", "SUBSYSTEM": "pci", "PCI_SLOT_NAME": "0000:11:00.0", ...}; {} for what is no such message."""
    rows = (row.partition("=") for row in data.decode("utf-8", "replace").split("\0")[1:])
    return {key: value for key, equals, value in rows if equals}
