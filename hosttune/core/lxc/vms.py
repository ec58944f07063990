# SPDX-License-Identifier: Apache-2.0
"""GPUs that belong to virtual machines: hosttune gives them to no container."""

from __future__ import annotations

import errno
from typing import Dict

from ..door.host import Host
from ..gpu import gpus
from ..pci import bus


def assigned(host: Host) -> Dict[int, str]:
    """{GPU number: "file:line"} of those that the nvidia driver has and that a virtual machine of this node is given.

    One that is bound to vfio-pci has no number. Empty where /etc/pve cannot be read: who cannot, edits nothing there.
    """
    try:
        given = bus.vm_assigned(host)
        numbers = gpus.minors(host) if given else {}
    except OSError as e:
        if e.errno not in (errno.EACCES, errno.ENOENT):
            raise
        return {}
    return {minor: given[bus.device_of(bdf)] for bdf, minor in numbers.items() if bus.device_of(bdf) in given}
