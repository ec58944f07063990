# SPDX-License-Identifier: Apache-2.0
"""PCIe MaxReadReq of each GPU function: Device Control bits 14:12, written by a masked setpci, read back.

It governs reads that the GPU issues itself (host-to-device DMA, NCCL's shared-memory transport). The register is lost at
every reboot and after a driver-internal GPU reset. setpci exits 0 even when the kernel refuses the write, so only the
read-back counts.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

from .. import container, pci
from ..devices import UVM, device_table
from ..host import Host, read_or_none
from ..model import Knob, Reading, Refused, Step

SIZES = ("128", "256", "512", "1024", "2048", "4096")
LOCKDOWN = "/sys/kernel/security/lockdown"


def read(host: Host) -> Dict[str, Reading]:
    """{bdf: size in bytes} of each NVIDIA GPU function. A GPU that belongs to a virtual machine is a skip."""
    assigned = pci.vm_assigned(host)
    return {gpu.bdf: _one(host, gpu, assigned) for gpu in pci.gpus(host)}


def _one(host: Host, gpu: pci.Gpu, assigned: Dict[str, str]) -> Reading:
    if gpu.driver == "vfio-pci":
        return Reading(skip="bound to vfio-pci: it belongs to a virtual machine")
    if pci.device_of(gpu.bdf) in assigned:
        return Reading(skip="belongs to a virtual machine (%s)" % assigned[pci.device_of(gpu.bdf)])
    path = "%s/%s/config" % (pci.DEVICES, gpu.bdf)
    try:
        size = pci.max_read_request(host.read_bytes(path, 256))
    except pci.ShortConfig:
        return Reading(error="config space ends after 64 bytes: run it as root (%s)" % path)
    if size is None:
        return Reading(skip="has no PCI Express capability")
    return Reading(str(size) if size else "a reserved code")


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """The masked write. Refused where it would be unsafe or cannot work; deferred while the GPU computes."""
    _refuse_policy(host)
    busy = computing(host, subject)
    if busy:
        raise Refused(
            "deferred: compute processes use this GPU (%s)"
            % ", ".join("%s %d" % (comm, pid) for pid, comm in busy[:5]),
            subject,
            "stop them, then: hosttune apply pcie-max-read-request",
        )
    undo = pci.setpci_max_read_request(subject, int(have)) if have in SIZES else ()
    return Step(
        ID, subject, "run", "%s MaxReadReq" % subject, have, want, pci.setpci_max_read_request(subject, int(want)), undo
    )


def _refuse_policy(host: Host) -> None:
    kernel = read_or_none(host, "/boot/config-" + host.uname()[1]) or ""
    if "pcie_bus_perf" in (read_or_none(host, "/proc/cmdline") or "") or "CONFIG_PCIE_BUS_PERFORMANCE=y" in kernel:
        raise Refused(
            "the kernel runs with pci=pcie_bus_perf, under which MaxReadReq must not exceed MaxPayload",
            "/proc/cmdline",
            "take pcie_bus_perf off the kernel command line, or leave MaxReadReq alone",
        )
    lockdown = read_or_none(host, LOCKDOWN) or ""
    if "[" in lockdown and "[none]" not in lockdown:
        raise Refused(
            "kernel lockdown (Secure Boot) refuses writes to PCI config space: %s" % lockdown.strip(),
            LOCKDOWN,
            "turn Secure Boot off, or leave MaxReadReq alone",
        )


def computing(host: Host, bdf: str) -> List[Tuple[int, str]]:
    """Processes that compute on this GPU: they hold /dev/nvidia-uvm (NVML clients never do) and this GPU's node.

    The minor is read from /proc/driver/nvidia/gpus/BDF/information; when that cannot be told, every CUDA process counts.
    """
    uvm = device_table(host.read("/proc/devices")).major(UVM)
    if uvm is None:
        return []
    cuda = host.holders("%d:*" % uvm)
    information = read_or_none(host, "/proc/driver/nvidia/gpus/%s/information" % bdf) if cuda else None
    minor = next(
        (line.split(":")[1].strip() for line in (information or "").splitlines() if line.startswith("Device Minor")), ""
    )
    if not minor.isdigit():
        return cuda
    mine = {pid for pid, _ in host.holders("195:%s" % minor)}
    return [(pid, comm) for pid, comm in cuda if pid in mine]


def skip(host: Host) -> str:
    """Not in a container, and not without a GPU."""
    inside = container.inside(host)
    if inside:
        return "set on the host, not inside a container (%s)" % inside
    return "" if pci.gpus(host) else "no NVIDIA GPU on the PCI bus"


def check(want: str) -> str:
    """A power of two from 128 to 4096."""
    return "" if want in SIZES else "%s is none of %s" % (want, ", ".join(SIZES))


ID = "HT201"
PCIE_MAX_READ_REQUEST = Knob(
    id=ID,
    name="pcie-max-read-request",
    title="MaxReadReq",
    want="4096",
    read=read,
    step=step,
    check=check,
    skip=skip,
    why="larger read requests mean fewer requests for the same host-to-device copy; measure it on your host before you credit it",
)
