# SPDX-License-Identifier: Apache-2.0
"""What a kernel module will be loaded with: the `options` lines of modprobe.d(5), then MODULE.PARAMETER=VALUE on the kernel
command line, which comes last (measured with kmod 30). The last value of a parameter counts. A module in the initramfs is
loaded with the copy of these files that is in there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple, Union

from . import cmdline, dropins
from .host import Host, read_or_none

FOLDERS = dropins.folders("modprobe.d")


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
    found = []
    for path in dropins.files(host, FOLDERS):
        for number, words in _lines(read_or_none(host, path) or ""):
            if words[0] == "options" and len(words) > 2 and _plain(words[1]) == _plain(module):
                found += [_option(word, "%s:%d" % (path, number)) for word in words[2:]]
    for word in cmdline.words(host):
        name, dot, rest = word.partition(".")
        if dot and _plain(name) == _plain(module):
            found.append(_option(rest, cmdline.NOW))
    return found


def deciding(host: Host, module: str, parameter: str) -> Optional[Option]:
    """The option that counts for one parameter, None where nothing sets it."""
    found = [option for option in options(host, module) if option.parameter == parameter]
    return found[-1] if found else None


def _lines(text: str) -> List[Tuple[int, List[str]]]:
    """(number, words) of each line that says something; a backslash at the end joins lines."""
    found, joined, start = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        words = re.findall(r'(?:"[^"]*"|\S)+', joined)
        if words and not words[0].startswith("#"):
            found.append((start, words))
        joined, start = "", 0
    return found


def _option(word: str, where: str) -> Option:
    parameter, _, value = word.partition("=")
    return Option(parameter, value.replace('"', ""), where)


def _plain(name: str) -> str:
    return name.replace("-", "_")


def same(one: str, other: str) -> bool:
    """Whether two texts are one value to a module: 0x1 is 1, Y is 1."""
    return _number(one) == _number(other)


def _number(text: str) -> Union[int, str]:
    word = {"Y": "1", "y": "1", "N": "0", "n": "0"}.get(text, text)
    try:
        return int(word, 0)
    except ValueError:
        return word
