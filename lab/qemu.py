# SPDX-License-Identifier: Apache-2.0
"""The command line of the lab's QEMU: two sockets, two NUMA nodes, a disk that can be snapshotted, no way out of the machine."""

from __future__ import annotations

from pathlib import Path

from lab.accel import Accel
from lab.image.build import Image

COMMAND_LINE = (
    "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off nokaslr norandmaps apparmor=0 selinux=0 quiet"
)
"""norandmaps: QEMU's emulation keeps what it has translated by virtual address. With the same addresses in each process, a
program that was run before starts in half the time."""


def command(
    image: Image, folder: Path, port: int, accel: Accel, extra: str = "", snapshot: str | None = None
) -> list[str]:
    """One run of the guest that lives in `folder`, until it is switched off or resets itself (-no-reboot).

    A reset inside the same QEMU would take ten times as long as a fresh one under emulation. QMP is on standard input and
    output, for the supervisor. port: where ssh answers on loopback; extra: words for the kernel's command line; snapshot:
    what to resume in place of a boot.
    """
    memory = [
        word
        for node in (0, 1)
        for word in (
            "-object", f"memory-backend-ram,id=memory{node},size=2G",
            "-numa", f"node,nodeid={node},cpus={node},memdev=memory{node}",
        )
    ]  # fmt: skip
    return [
        "qemu-system-x86_64", "-name", f"hosttune-lab,process={folder.name}", "-nodefaults", "-no-user-config", "-M", "q35",
        *accel.options, "-smp", "2,sockets=2,cores=1", "-m", "4G", *memory,
        "-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", f"{COMMAND_LINE} {extra}".strip(),
        "-drive", f"file={folder}/disk.qcow2,if=none,id=disk,format=qcow2,cache=unsafe", "-device", "virtio-blk-pci,drive=disk",
        # restrict: the guest reaches neither this machine nor anything beyond it; only ssh comes in
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22",
        "-device", "virtio-net-pci,netdev=net,romfile=",
        # a device whose Device Control register takes no MaxReadReq, as every one that QEMU emulates
        "-device", "pcie-root-port,id=downstream,chassis=1,slot=1", "-device", "virtio-rng-pci,bus=downstream",
        "-display", "none", "-chardev", f"file,id=console,path={folder}/console.log,append=on", "-serial", "chardev:console",
        "-monitor", f"unix:{folder}/monitor,server=on,wait=off", "-qmp", "stdio", "-no-reboot",
        *(["-loadvm", snapshot] if snapshot else []),
    ]  # fmt: skip
