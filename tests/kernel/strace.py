# SPDX-License-Identifier: Apache-2.0
"""A process killed by strace before one of its system calls: the kernel's own order of things, and no clock."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHANGING = "flock,mkdir,chmod,fchmod,fchown,openat,write,pwrite64,ftruncate,fsync,rename,renameat2,unlink,unlinkat"
"""What changes a file system, what asks that a change lasts, and the locks. Between two such calls the disk stays as it is:
a kill before each of them is a kill anywhere."""


@dataclass(frozen=True)
class Call:
    """The `count`-th call of that name which is about that path; `text` is how strace prints it."""

    name: str
    path: str
    count: int
    text: str


def calls(argv: Sequence[str], log: Path, first: str, last: str) -> list[Call]:
    """Run a command to its good end and list the calls that change something, from the first one with `first` in it to the
    last with `last` in it, of the process that made them."""
    done = subprocess.run(["strace", "-f", "-y", "--seccomp-bpf", "-o", str(log), "-e", f"trace={CHANGING}", *argv],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [re.match(r"(\d+) +((\w+)\(.*)", line) for line in log.read_text(errors="replace").splitlines()]
    rows = [(match[1], match[3], match[2]) for match in found if match]
    pid = next(pid for pid, _, text in rows if first in text)
    own = [(name, text) for who, name, text in rows if who == pid]
    begin = next(index for index, (_, text) in enumerate(own) if first in text)
    end = max(index for index, (_, text) in enumerate(own) if last in text)
    out = []
    for index in range(begin, end + 1):
        name, text = own[index]
        if (name != "openat" or "O_CREAT" in text) and _paths(text):  # a pipe or a socket is no file
            path = _paths(text)[0]
            out.append(Call(name, path, sum(name == other and path in _paths(line) for other, line in own[: index + 1]), text))
    return out


def kill_before(call: Call, argv: Sequence[str], log: Path) -> None:
    """Run the command again and kill it as it is about to make that call. Raises AssertionError if that was another one."""
    kill = f"inject={call.name}:signal=SIGKILL:when={call.count}"  # not with --seccomp-bpf: strace 6.1 then sends no signal
    done = subprocess.run(["strace", "-f", "-y", "-P", call.path, "-o", str(log), "-e", f"trace={call.name}", "-e", kill, *argv],
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == -signal.SIGKILL, (call, done.returncode, done.stderr)
    lines = [line for line in log.read_text(errors="replace").splitlines() if f" {call.name}(" in line]
    assert _paths(call.text) == _paths(lines[-1]), (call, lines[-1])


def _paths(text: str) -> list[str]:
    """The paths in a call: of names, and of descriptors as -y shows them."""
    before = text.partition(") = ")[0]
    return [name or descriptor for name, descriptor in re.findall(r'"(/[^"]*)"|\d<(/[^>]*)>', before)]
