# SPDX-License-Identifier: Apache-2.0
"""What a kernel module will be loaded with: the `options` lines of modprobe.d(5), then MODULE.PARAMETER=VALUE on the kernel
command line, which comes last (measured with kmod 30). The last value of a parameter counts. A module in the initramfs is
loaded with the copy of these files that is in there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Union

from ..door.host import Host
from . import cmdline, modprobe


@dataclass(frozen=True)
class Option:
    """One parameter and its value; where it stands, "/etc/modprobe.d/nvidia.conf:3" or the kernel command line."""

    parameter: str
    value: str
    where: str

    @property
    def path(self) -> str:
        return self.where.rpartition(":")[0] or self.where


def options(host: Host, module: str) -> List[Option]:
    """Everything that this machine says of a module's parameters, in the order in which it counts."""
    name_of = modprobe.plain(module)
    found = []
    for line in modprobe.lines(host):
        if line.words[:2] == ("options", name_of):
            found += [_option(word, line.place) for word in line.words[2:]]
    for word in cmdline.words(host):
        name, dot, rest = word.partition(".")
        if dot and modprobe.plain(name) == name_of:
            found.append(_option(rest, cmdline.NOW))
    return found


def deciding(host: Host, module: str, parameter: str) -> Optional[Option]:
    """The option that counts for one parameter, None where nothing sets it."""
    found = [option for option in options(host, module) if option.parameter == parameter]
    return found[-1] if found else None


def _option(word: str, where: str) -> Option:
    parameter, _, value = word.partition("=")
    return Option(parameter, value.replace('"', ""), where)


def same(one: str, other: str) -> bool:
    """Whether two texts are one value to a module: 0x1 is 1, Y is 1."""
    return _number(one) == _number(other)


def _number(text: str) -> Union[int, str]:
    word = {"Y": "1", "y": "1", "N": "0", "n": "0"}.get(text, text)
    try:
        return int(word, 0)
    except ValueError:
        return word
