# SPDX-License-Identifier: Apache-2.0
"""What lxc-info, lxc-config and dpkg-query would say of this very machine, read where they read it: no process is started for it.
None where that cannot tell, and then the tool is asked; so it is of a recording, which holds what the tools said.
"""

from __future__ import annotations

import contextlib
import re
from typing import Optional

from ..door.host import Host, list_or_empty, read_or_none
from ..door.live import LiveHost

CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
"""Of version 2, of both side by side, and of systemd's own hierarchy of version 1."""
MONITORS = ("lxc.monitor/%s", "lxc.monitor.%s")
"""Where a container's monitor is kept, by Proxmox VE (lxc.cgroup.dir.monitor) and by LXC. Only root puts a process there."""
LXC_CONF, LXC_CONFIGS = "/etc/lxc/lxc.conf", "/etc/lxc"
DPKG = "/var/lib/dpkg"


def init_pid(host: Host, folder: str, ct_id: str) -> Optional[int]:
    """Process id of a running container's init: that child of its monitor which is number 1 of a PID namespace below. folder:
    LXC's path, by which two containers of one name are told apart."""
    if not isinstance(host, LiveHost):
        return None
    files = ["%s/%s/cgroup.procs" % (top, name % ct_id) for top in CGROUPS for name in MONITORS]
    for pid in (pid for path in files for pid in _read(host, path).split()):
        if _monitors(_read(host, "/proc/%s/cmdline" % pid), folder, ct_id):
            for child in _read(host, "/proc/%s/task/%s/children" % (pid, pid)).split():
                if re.search(r"^NSpid:\s+\d+\s(.*\s)?1$", _read(host, "/proc/%s/status" % child), re.MULTILINE):
                    return int(child)
    return None


def _monitors(cmdline: str, folder: str, ct_id: str) -> bool:
    """Whether a process with these words is this container's monitor. In the background it calls itself so
    (src/lxc/lxccontainer.c); Proxmox VE keeps `lxc-start -F -n 200` in the foreground, where no other path is named."""
    words = cmdline.rstrip("\0").split("\0")
    if words == ["[lxc monitor] %s %s" % (folder, ct_id)]:
        return True
    return words[0].rpartition("/")[2] == "lxc-start" and words[1:] == ["-F", "-n", ct_id] and folder == "/var/lib/lxc"


def _read(host: Host, path: str) -> str:
    with contextlib.suppress(OSError):  # not there, or it has ended
        return host.read(path)
    return ""


def lxc_folder(host: Host, usual: str) -> Optional[str]:
    """LXC's path. One that is configured in /etc, as distributions build it, has its containers in `usual`, unless lxc.conf says
    otherwise; a user has a file of his own."""
    if not isinstance(host, LiveHost) or host.who().uid or not list_or_empty(host, LXC_CONFIGS):
        return None
    return None if "lxcpath" in (read_or_none(host, LXC_CONF) or "") else usual


def version(host: Host, package: str) -> Optional[str]:
    """The version of a package of Debian, "" for one that is not installed."""
    if not isinstance(host, LiveHost) or list_or_empty(host, DPKG + "/updates"):
        return None
    text = read_or_none(host, DPKG + "/status")
    if text is None:
        return None
    paragraph = re.search(r"^Package: %s\n(?:\S.*\n| .*\n)*" % re.escape(package), text, re.MULTILINE)
    said = re.search(r"^Version: (.*)$", paragraph.group(), re.MULTILINE) if paragraph else None
    return said.group(1) if said else ""
