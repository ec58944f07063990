# SPDX-License-Identifier: Apache-2.0
"""The last system calls of a cuInit that fails, as strace tells them."""

from __future__ import annotations

import json
import re
from typing import Tuple

from ..door import child
from ..door.host import Host, Ran

_RUN = "import io,json,sys;ops,text=json.load(sys.stdin);sys.stdin=io.StringIO(ops);exec(compile(text,'child','exec'))"
COMMAND = ("strace", "-f", "-qq", "-e", "trace=openat,ioctl,mmap", "-o", "/dev/stderr", "python3", "-I", "-c", _RUN)
_OF_DRIVER = re.compile(r"/dev/nvidia|ioctl\(|mmap\(")
_PID = re.compile(r"^\[?(pid )?\s*\d+\]?\s+")


def kept(ran: Ran) -> Ran:
    """What the trace printed, without calls that are about something else: they name files of whoever runs this."""
    lines = [line for line in ran.err.split("\n") if " = -1 E" in line and _OF_DRIVER.search(line)]
    return Ran(ran.rc, "", "".join(line[:240] + "\n" for line in lines[-3:]), ran.timeout)


def failed(host: Host) -> Tuple[str, ...]:
    """cuInit once more, under strace, with /dev read-only as always. Nothing where strace is not installed."""
    ops = json.dumps([{"op": "protect"}, {"op": "call", "name": "cuInit"}])
    ran = host.run(COMMAND, 60, json.dumps([ops, child.source()]).encode())
    return tuple(_PID.sub("", line)[:200] for line in kept(ran).err.splitlines())
