# SPDX-License-Identifier: Apache-2.0
"""A machine's fingerprint, taken inside it: every file of the root file system, every value of /proc/sys, what settings stand for
in /sys, and the configuration space of every PCI function. Two of them are equal when nothing was left behind.

Small trees by their contents, the packages' by size and time, since an emulated machine would hash for minutes. It runs with the
guest's own Python, from standard input.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import stat

CONTENTS = ("/etc", "/usr/local", "/usr/lib/systemd", "/boot", "/root", "/opt", "/var/spool")
LEFT_OUT = ("/etc/pve", "/var/lib/hosttune", "/var/lib/lxc", "/var/log", "/var/tmp", "/tmp", "/var/lib/systemd/random-seed",
            "/var/lib/systemd/timers", "/var/cache")  # fmt: skip
"""hosttune's journal and backups; a cluster file system of its own; containers, logs and clocks that move by themselves."""
MOVES = re.compile(
    r"/proc/sys/(kernel/(random|ns_last_pid|pty|keys|tainted|sched_domain)|fs/(dentry-state|inode-|file-nr|aio-nr|quota|binfmt_misc)|"
    r"net/netfilter/nf_conntrack_count|net/ipv[46]/.*/(stat|flush|base_reachable_time$|retrans_time$)|"
    r"vm/(stat_refresh|compact_memory|drop_caches)|debug/|dev/cdrom)"
)
SYS = ("kernel/mm/transparent_hugepage/*", "kernel/mm/hugepages/*/nr_hugepages", "module/*/parameters/*",
       "devices/system/cpu/cpufreq/*/*", "devices/system/cpu/cpu*/cpuidle/*/disable", "devices/system/cpu/smt/control",
       "bus/pci/devices/*/power/control", "bus/pci/devices/*/link/*", "block/*/queue/scheduler")  # fmt: skip


def files(top: str = "/") -> "dict[str, str]":
    """{path: mode, owner, and what tells one text from another} of the root file system."""
    found, device = {}, os.lstat(top).st_dev
    for folder, folders, names in os.walk(top):
        folders[:] = [d for d in folders if not _left_out(os.path.join(folder, d), device)]
        for path in (os.path.join(folder, name) for name in names):
            if not _left_out(path, device):
                found[path] = _file(path)
    return found


def _left_out(path: str, device: int) -> bool:
    return path.startswith(LEFT_OUT) or os.lstat(path).st_dev != device


def _file(path: str) -> str:
    st = os.lstat(path)
    if stat.S_ISLNK(st.st_mode):
        text = os.readlink(path)
    elif stat.S_ISREG(st.st_mode) and path.startswith(CONTENTS):
        with open(path, "rb") as file:
            text = hashlib.sha256(file.read()).hexdigest()
    else:
        text = "%d %d" % (st.st_size, st.st_mtime_ns)
    return "%o %d:%d %s" % (st.st_mode, st.st_uid, st.st_gid, text)


def values() -> "dict[str, str]":
    """{file: its text} of /proc/sys and /sys, and {config: its digest}."""
    found = {}
    for folder, _, names in os.walk("/proc/sys"):
        found.update({path: _text(path) for path in (os.path.join(folder, n) for n in names) if not MOVES.match(path)})
    for pattern in SYS:
        found.update({path: _text(path) for path in glob.glob("/sys/" + pattern) if os.path.isfile(path)})
    for path in glob.glob("/sys/bus/pci/devices/*/config"):
        with open(path, "rb") as file:
            found[path] = hashlib.sha256(file.read()).hexdigest()
    return found


def _text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError as e:
        return "errno %d" % (e.errno or 0)


if __name__ == "__main__":
    print(json.dumps({**files(), **values()}))
