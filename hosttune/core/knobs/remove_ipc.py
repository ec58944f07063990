# SPDX-License-Identifier: Apache-2.0
"""logind's RemoveIPC: when the last session of a normal user ends, all that user's files in /dev/shm are deleted.

Root and system users are spared, and so are hosttune's own models. An engine that runs as a normal user loses the shared
memory of NCCL when somebody who logged in as that user logs out. In force once systemd-logind is started anew.
Source: logind.conf(5).
"""

from __future__ import annotations

from ..door.host import Host, list_or_empty
from ..model import OPT_IN
from .shape_kept import one_of
from .shape_systemd import systemd_knob

FIRST_NORMAL_USER = 1000
SHM = "/dev/shm"


def in_danger(host: Host) -> str:
    """How many files of normal users lie in /dev/shm, for the evidence."""
    owners = []
    for name in list_or_empty(host, SHM):
        try:
            owners.append(host.lstat("%s/%s" % (SHM, name)).uid)
        except OSError:
            continue  # gone since
    normal = [uid for uid in owners if FIRST_NORMAL_USER <= uid < 65534]
    return "%s: %d files of user %s" % (SHM, len(normal), ", ".join(map(str, sorted(set(normal))))) if normal else ""


REMOVE_IPC = systemd_knob(
    id="HT112",
    name="remove-ipc",
    file="logind.conf",
    section="Login",
    key="RemoveIPC",
    want="no",
    default="yes",
    check=one_of("yes", "no"),
    where=in_danger,
    recommend=OPT_IN,
    why="a logout must not delete the shared memory of an engine that runs as that user",
    cost="the engine dies, or hangs, minutes or days after its start, when somebody logs out",
    evidence="logind.conf(5): on by default; an engine that runs as a system user is safe without this",
)
