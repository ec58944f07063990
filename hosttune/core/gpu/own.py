# SPDX-License-Identifier: Apache-2.0
"""The GPUs that are this host's own to read and write, and the PCIe ports above them, for the knobs that keep a setting there.

A GPU that belongs to a virtual machine is a skip; what cannot be read is an error; a write waits while the GPU computes.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Sequence, Tuple

from ..door.host import Host, errname, read_or_none
from ..machine import container
from ..machine.devices import UVM, device_table
from ..model import Reading, Refused, natural
from ..pci import bus
from ..pci.express import Unreadable
from . import gpus

LOCKDOWN = "/sys/kernel/security/lockdown"
NO_PORT = "no PCIe port above it can be seen (a virtual machine?)"
One = Callable[[Host, str], Reading]
"""(host, bdf) -> what stands there. May raise Unreadable and OSError."""


def each(host: Host, one: One) -> Dict[str, Reading]:
    """{bdf: Reading} of every GPU function."""
    assigned = bus.vm_assigned(host)
    return {gpu.bdf: _unless_owned(host, gpu, assigned, one) for gpu in bus.gpus(host)}


def ports(host: Host, one: One) -> Dict[str, Reading]:
    """{bdf: Reading} of every port above a GPU of this host, once; a GPU that has none, or is not this host's, is a skip."""
    assigned = bus.vm_assigned(host)
    found: Dict[str, Reading] = {}
    for gpu in bus.gpus(host):
        owner = bus.owner(gpu, assigned)
        above = [] if owner else bus.ports_above(host, gpu.bdf)
        if not above:
            found[gpu.bdf] = Reading(skip=owner or NO_PORT)
        for port in above:
            if port not in found:
                found[port] = guarded(host, port, one)
    return _sorted(found)


def with_ports(host: Host, one: One) -> Dict[str, Reading]:
    """{bdf: Reading} of every GPU function and every port above one."""
    return _sorted(dict(ports(host, one), **each(host, one)))


def _sorted(found: Dict[str, Reading]) -> Dict[str, Reading]:
    return {bdf: found[bdf] for bdf in sorted(found, key=natural)}


def _unless_owned(host: Host, gpu: bus.Gpu, assigned: Dict[str, str], one: One) -> Reading:
    owner = bus.owner(gpu, assigned)
    return Reading(skip=owner) if owner else guarded(host, gpu.bdf, one)


def guarded(host: Host, bdf: str, one: One) -> Reading:
    """What `one` reads of one function, its exceptions as an error: one sick GPU hides no other."""
    try:
        return one(host, bdf)
    except Unreadable as e:
        return Reading(error=str(e))
    except OSError as e:
        return Reading(error="could not be read: %s: %s" % (e.filename or bdf, errname(e)))


def reader(one: One) -> One:
    """For Knob.read_one: `one`, which then raises neither."""
    return lambda host, bdf: guarded(host, bdf, one)


def skip(host: Host) -> str:
    """Not in a container, and not without a GPU."""
    inside = container.inside(host)
    if inside:
        return "set on the host, not inside a container (%s)" % inside
    return "" if bus.gpus(host) else "no NVIDIA GPU on the PCI bus"


def refuse_write(host: Host, bdfs: Sequence[str], knob: str) -> None:
    """Refused while config space must not or cannot be written: kernel lockdown, or a process that computes on these GPUs."""
    lockdown = read_or_none(host, LOCKDOWN) or ""
    if "[" in lockdown and "[none]" not in lockdown:
        raise Refused(
            "kernel lockdown (Secure Boot) refuses writes to PCI config space: %s" % lockdown.strip(),
            LOCKDOWN,
            "cat %s  # the firmware's setup turns Secure Boot off; or leave it as it is" % LOCKDOWN,
        )
    for bdf in bdfs:
        defer_while_computing(host, bdf, knob)


def defer_while_computing(host: Host, bdf: str, knob: str) -> None:
    """Refused while a process computes on this GPU."""
    busy = computing(host, bdf)
    if busy:
        named = ", ".join("%s %d" % (comm, pid) for pid, comm in busy[:5])
        raise Refused(
            "deferred: compute processes use this GPU (%s)" % named, bdf, "hosttune apply %s  # once they are stopped" % knob
        )


def computing(host: Host, bdf: str) -> List[Tuple[int, str]]:
    """Processes that compute on this GPU: they hold /dev/nvidia-uvm (NVML clients never do) and this GPU's node.

    When the GPU's minor cannot be told, every CUDA process counts.
    """
    uvm = device_table(host.read("/proc/devices")).major(UVM)
    if uvm is None:
        return []
    cuda = host.holders("%d:*" % uvm)
    information = read_or_none(host, "%s/%s/information" % (gpus.FOLDER, bdf)) if cuda else None
    minor = re.search(r"^Device Minor:\s*(\d+)", information or "", re.MULTILINE)
    if not minor:
        return cuda
    here = {pid for pid, _ in host.holders("195:" + minor.group(1))}
    return [(pid, comm) for pid, comm in cuda if pid in here]
