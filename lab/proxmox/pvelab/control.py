# SPDX-License-Identifier: Apache-2.0
"""`lab-pve`: what a lab can do to its cluster. Kept over reboots."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path("/var/lib/hosttune-lab/pmxcfs")
SWITCHES = {"quorum": ("no-quorum", "off"), "io-error": ("io-error", "on"), "cluster": ("cluster", "on")}
"""Name of the switch: the file that exists while it is in the position named second."""
USAGE = """\
usage: lab-pve quorum on|off       off: /etc/pve refuses changes with EACCES (the node is then in a cluster)
       lab-pve io-error on|off     on: changes fail with EIO, as with a full disk under the database
       lab-pve cluster on|off      on: .members lists a second node and says quorate
       lab-pve status
"""


def main(argv: list[str]) -> int:
    if argv == ["status"]:
        for name, (file, when) in SWITCHES.items():
            other = "off" if when == "on" else "on"
            print(f"{name}: {when if (FOLDER / file).exists() else other}")
        return 0
    if len(argv) != 2 or argv[0] not in SWITCHES or argv[1] not in ("on", "off"):
        sys.stderr.write(USAGE)
        return 2
    file, when = SWITCHES[argv[0]]
    FOLDER.mkdir(parents=True, exist_ok=True)
    if argv[1] == when:
        (FOLDER / file).touch()
    else:
        (FOLDER / file).unlink(missing_ok=True)
    return 0
