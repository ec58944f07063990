# SPDX-License-Identifier: Apache-2.0
"""What the kernel has counted of PCIe errors since the device was found: aer_dev_correctable, _nonfatal and _fatal in sysfs.

Documentation/PCI/pcieaer-howto.rst. Lines of name and count, then a total. Absent where the firmware keeps error reporting to
itself, and for devices without the capability.
"""

from __future__ import annotations

from typing import Dict, Optional

from ..door.host import Host, read_or_none
from . import bus

KINDS = ("fatal", "nonfatal", "correctable")


def counts(host: Host, bdf: str) -> Optional[Dict[str, Dict[str, int]]]:
    """{"correctable": {"BadTLP": 12}, ...} of one function, without zeros and totals; None where nothing is counted."""
    found = {}
    for kind in KINDS:
        text = read_or_none(host, "%s/%s/aer_dev_%s" % (bus.DEVICES, bdf, kind))
        if text is None:
            return None
        pairs = (line.rsplit(None, 1) for line in text.splitlines() if not line.startswith("TOTAL_"))
        found[kind] = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit() and int(pair[1])}
    return found
