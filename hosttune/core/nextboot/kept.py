# SPDX-License-Identifier: Apache-2.0
"""What of a file goes into a recording: units, cron tables and boot menus hold others' command lines, tokens and passwords.

The lines keep their numbers; of a line only what is judged is left.
"""

from __future__ import annotations

import re
from typing import Callable

_SCRIPTS = re.compile(r"(/etc|/usr/lib|/lib|/run)/(systemd/system|cron\.d|rc\.local)\b|/var/spool/cron/")
_RULES = re.compile(r"/(udev/rules|tmpfiles)\.d/")
_OWN = re.compile(r"/hosttune-[\w-]+\.service\Z")
_MENU = re.compile(r"/grub2?/grub\.cfg\Z")
_WHOLE = re.compile(r"\s*(\[|(Before|After|DeviceAllow|DevicePolicy|PrivateDevices)\s*=)")
_PIECE = re.compile(
    r"nvidia-modprobe(?:\s+-[-\w]+(?:=?\s*\d+)?)*|mknod\s+(?:-m\s*\S+\s+)?/dev/nvidia\S*\s+c\s+\d+\s+\d+|/dev/char/\d+:\d+"
)
_PASSWORD = re.compile(r"\s*(password|set superusers)")


def kept(path: str, text: str) -> str:
    """The text of a file as it is recorded."""
    if _OWN.search(path):
        return text
    if _MENU.search(path):
        return _lines(text, lambda line: "" if _PASSWORD.match(line) else line)
    if _RULES.search(path):
        return _lines(text, lambda line: line if "nvidia" in line else "")
    return _lines(text, _of_script) if _SCRIPTS.match(path) else text


def _lines(text: str, keep: Callable[[str], str]) -> str:
    return "".join(keep(line.rstrip("\n")) + line[len(line.rstrip("\n")) :] for line in text.splitlines(True))


def _of_script(line: str) -> str:
    if line.lstrip().startswith(("#", ";")):
        return ""
    if _WHOLE.match(line):
        return line
    pieces = _PIECE.findall(line)
    name = re.match(r"\s*(Exec\w+\s*=)", line)
    return (name.group(1) if name and pieces else "") + "; ".join(pieces)
