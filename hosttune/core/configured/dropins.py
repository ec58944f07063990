# SPDX-License-Identifier: Apache-2.0
"""Folders of small files that systemd's tools read as one list: the folder that is named first wins a file's name, and the
names decide the order. sysctl.d(5), tmpfiles.d(5), udev(7), logind.conf(5) all say so; a file of no bytes, or a link to
/dev/null, masks its name in the later folders."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

from ..door.host import Host, list_or_empty, read_or_none

LIBRARIES = ("/usr/local/lib", "/usr/lib", "/lib")


def folders(name: str) -> Tuple[str, ...]:
    """The folders of "sysctl.d" and its like, the strongest first. /lib is /usr/lib today, and was not always."""
    return tuple("%s/%s" % (root, name) for root in ("/etc", "/run", *LIBRARIES))


def files(host: Host, places: Sequence[str], suffix: str = ".conf") -> List[str]:
    """The paths that count, in the order of their names."""
    by_name: Dict[str, str] = {}
    for folder in places:
        for name in list_or_empty(host, folder):
            if name.endswith(suffix):
                by_name.setdefault(name, "%s/%s" % (folder, name))
    return [by_name[name] for name in sorted(by_name)]


def lines(host: Host, path: str, comments: str = "#;", about: str = "") -> List[Tuple[int, str]]:
    """(number, text without the ends' blanks) of each line that says something; with `about`, a regular expression, of those
    that it is found in. None of a file that is not there. Raises OSError for one that may not be read."""
    text = read_or_none(host, path) or ""
    if about and not re.search(about, text, re.MULTILINE):
        return []  # most files are about something else: a host has a hundred of them, and each knob looks
    numbered = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [
        (n, line) for n, line in numbered if line and line[0] not in comments and (not about or re.search(about, line))
    ]


def basename(path: str) -> str:
    """The file's name, by which these lists are ordered."""
    return path.rpartition("/")[2]
