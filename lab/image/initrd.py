# SPDX-License-Identifier: Apache-2.0
"""The smallest initrd that finds the lab's disk: busybox and the virtio modules. Debian's own is ten times as large, and
unpacking it is what takes longest in an emulated boot."""

from __future__ import annotations

import gzip
import io
import subprocess
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("virtio_pci", "virtio_blk")
INIT = """\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
{insmod}
until [ -b /dev/vda ]; do /bin/busybox sleep 0.1; done
/bin/busybox mount -t ext4 -o rw /dev/vda /root || exec /bin/busybox sh
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /sbin/init
"""


def write(path: Path, root: Path, kernel: str) -> None:
    """Write the initrd for this kernel, with files from the guest's root."""
    modules = list(_modules(root, kernel))
    files = {f"modules/{module.name}": (0o100644, module.read_bytes()) for module in modules}
    lines = "\n".join(f"/bin/busybox insmod /modules/{module.name}" for module in modules)
    files["init"] = (0o100755, INIT.format(insmod=lines).encode())
    files["bin/busybox"] = (0o100755, (root / "bin" / "busybox").read_bytes())
    folders = dict.fromkeys(("bin", "dev", "modules", "root"), (0o040755, b""))
    path.write_bytes(gzip.compress(_cpio({**folders, **files}), 6))


def _modules(root: Path, kernel: str) -> Iterator[Path]:
    """In the order in which they have to be loaded."""
    seen = []
    for name in NEEDED:
        command = ["modprobe", "--dirname", str(root), "--set-version", kernel, "--show-depends", name]
        for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
            words = line.split()
            if words[0] == "insmod" and words[1] not in seen:
                seen.append(words[1])
                yield Path(words[1])


def _cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """The kernel's "newc" format: a header of thirteen hexadecimal numbers, the name and the data, each padded to four bytes."""
    out = io.BytesIO()
    for number, (name, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], start=1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        out.write(b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0")
        out.write(b"\0" * (-out.tell() % 4) + data)
        out.write(b"\0" * (-out.tell() % 4))
    return out.getvalue()
