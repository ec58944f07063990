# SPDX-License-Identifier: Apache-2.0
"""Container configs with what the real parser and writer of Proxmox VE 7, 8 and 9 made of each, and one host for all."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Iterator, NamedTuple

from hosttune.core.machine.devices import DeviceTable, Node, device_table

CASES = Path(__file__).parent.parent / "cases" / "lxc"

PROC_DEVICES = """\
Character devices:
  1 mem
  5 /dev/tty
 10 misc
195 nvidia
195 nvidiactl
195 nvidia-modeset
226 drm
234 megaraid_sas_ioctl
236 nvidia-caps
237 ipmidev
238 watchdog
508 nvme
509 hidraw
511 nvidia-uvm

Block devices:
  8 sd
239 blkext
259 blkext
"""

NODES = {
    "/dev/nvidia0": Node("char", 195, 0), "/dev/nvidia1": Node("char", 195, 1), "/dev/nvidiactl": Node("char", 195, 255),
    "/dev/nvidia-modeset": Node("char", 195, 254), "/dev/nvidia-uvm": Node("char", 511, 0),
    "/dev/nvidia-uvm-tools": Node("char", 511, 1), "/dev/nvidia-caps": Node("dir"),
    "/dev/nvidia-caps/nvidia-cap1": Node("char", 236, 1, 0o400), "/dev/nvidia-caps/nvidia-cap2": Node("char", 236, 2, 0o444),
    "/dev/dri": Node("dir"), "/dev/dri/card0": Node("char", 226, 0), "/dev/dri/renderD128": Node("char", 226, 128),
}


def a_host() -> DeviceTable:
    """The host of section 8: uvm is 511 now, and other drivers took 234, 237, 238, 508 and 509."""
    return device_table(PROC_DEVICES, NODES, (6, 1, 10))


class Written(NamedTuple):
    """One input, and what one version of Proxmox VE wrote and warned of."""

    name: str
    data: bytes
    pve: int
    out: bytes
    warnings: tuple[str, ...]


def real(name: str) -> bytes:
    """A config by the start of its name: real("02")."""
    (path,) = CASES.glob(name + "*.conf")
    return path.read_bytes()


def inputs() -> dict[str, bytes]:
    """Every input once: 8 from people, 10 made by hand, 200 generated."""
    found = {path.stem: path.read_bytes() for path in sorted(CASES.glob("*.conf"))}
    for line in (CASES / "generated.jsonl").read_text().splitlines():
        row = json.loads(line)
        found["generated-%d" % row["id"]] = base64.b64decode(row["input"])
    return found


def written() -> Iterator[Written]:
    """Every input with every output that there is for it."""
    for path in sorted(CASES.glob("*.conf")):
        for pve in (7, 8, 9):
            warn = path.with_suffix(".pve%d.warn" % pve)
            yield Written(path.stem, path.read_bytes(), pve, path.with_suffix(".pve%d.out" % pve).read_bytes(),
                          tuple(warn.read_text().splitlines()) if warn.exists() else ())
    for line in (CASES / "generated.jsonl").read_text().splitlines():
        row = json.loads(line)
        for pve in (8, 9):
            answer = row["pve%d" % pve]
            yield Written("generated-%d" % row["id"], base64.b64decode(row["input"]), pve,
                          base64.b64decode(answer["output"]), tuple(answer["warnings"]))
