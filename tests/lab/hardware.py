# SPDX-License-Identifier: Apache-2.0
"""Questions to a guest's PCI registers and driver, with the tools that a person would use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lab.machine import Machine

GPUS = tuple(f"0000:{number}1:00.0" for number in range(1, 9))
DEVCTL = 0x68
"""Device Control of every function of labhw, in configuration space."""

_LINE = re.compile(
    r"(?P<serial>\d+) \d+ (?P<bdf>\S+) reg=(?P<reg>\w+) size=(?P<size>\d) "
    r"val=(?P<value>\w+) old=(?P<old>\w+) pid=\d+ comm=(?P<by>.*)"
)


@dataclass(frozen=True)
class Write:
    """One write to configuration space, as /proc/labhw_writes tells it. `value` as written, `old` as it was before."""

    serial: int
    bdf: str
    register: int
    size: int
    value: int
    old: int
    by: str


def writes(machine: Machine, after: int = 0) -> list[Write]:
    """Every write with a higher serial number, oldest first; the kernel's own are among them."""
    found = [_LINE.fullmatch(line) for line in machine.read("/proc/labhw_writes").splitlines()]
    all_writes = []
    for m in filter(None, found):
        register, value, old = (int(m[key], 16) for key in ("reg", "value", "old"))
        all_writes.append(Write(int(m["serial"]), "0000:" + m["bdf"], register, int(m["size"]), value, old, m["by"]))
    assert len(all_writes) == len(found), "a line of /proc/labhw_writes was not understood"
    return [write for write in all_writes if write.serial > after]


def last_serial(machine: Machine) -> int:
    return max((write.serial for write in writes(machine)), default=0)


def device_control(machine: Machine, bdf: str) -> str:
    """Four hexadecimal digits."""
    return machine.run("setpci", "-s", bdf, "CAP_EXP+8.w", check=True).stdout.strip()


def device_controls(machine: Machine) -> set[str]:
    """Of all GPUs, in one question."""
    return set(machine.run("setpci", "-d", "10de:", "CAP_EXP+8.w", check=True).stdout.split())


def majors(machine: Machine) -> dict[str, int]:
    """Name -> major of the character devices; a name that has several keeps the last."""
    text = machine.read("/proc/devices").split("Block devices:")[0]
    return {
        words[1]: int(words[0]) for words in map(str.split, text.splitlines()) if len(words) == 2 and words[0].isdigit()
    }


def node(machine: Machine, path: str) -> str:
    """`511:0 666`, in decimal and octal; empty where there is no such node."""
    done = machine.run("python3", "-c", "import os,sys;s=os.stat(sys.argv[1]);"
                       "print('%d:%d %o' % (os.major(s.st_rdev), os.minor(s.st_rdev), s.st_mode & 0o777))", path)  # fmt: skip
    return done.stdout.strip()
