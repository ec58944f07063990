# SPDX-License-Identifier: Apache-2.0
"""The private mount namespace that all tests in tests/kernel run in.

`enter()` moves this very process into it, once, so plain `pytest tests/kernel` as root is enough. What is private there:

- /sys/fs/cgroup is a pure cgroup v2 tree, also on a machine that boots with v1 or hybrid cgroups;
- /dev is a tmpfs with the machine's own nodes, less any of NVIDIA's: nodes can be made and removed;
- /var/lib/lxc is empty: containers of the tests need no `-P`, and the machine's own cannot be met;
- /run/hosttune-tests is a tmpfs for scratch files, open to any user (an unprivileged container has to walk through it).

Every mount goes away with the last process in the namespace; nothing is visible outside.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import stat
import subprocess
from pathlib import Path

CLONE_NEWNS = 0x00020000
CAP_SYS_ADMIN = 21
SCRATCH = Path("/run/hosttune-tests")
CGROUPS = Path("/sys/fs/cgroup")
LXC_PATH = Path("/var/lib/lxc")

_serial = itertools.count()
_machine: list[int] = []
"""Descriptor of the mount namespace that this process came from, once it has left it."""


def obstacle() -> str | None:
    """Why the namespace cannot be had here, or None."""
    if os.geteuid() != 0:
        return "root is needed for mount namespaces, containers and device programs: run as root"
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    if not int(effective.split()[1], 16) >> CAP_SYS_ADMIN & 1:
        return "CAP_SYS_ADMIN is missing: this is a confined root (a container?), mounts are refused"
    return None


def enter() -> None:
    """Move this process into the namespace, once. Raises OSError or CalledProcessError with the refused step."""
    if _machine:
        return
    machine = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare(CLONE_NEWNS): {os.strerror(number)}")
    mount("--make-rprivate", "/")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755", "hosttune-tests", str(SCRATCH))
    _pure_cgroup2()
    _private_dev()
    _uncovered_proc_and_sys()
    LXC_PATH.mkdir(parents=True, exist_ok=True)
    mount("--bind", str(scratch("lxc")), str(LXC_PATH))
    _machine.append(machine)  # last: a step that was refused is refused again, not taken for done


def outside(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the machine's own mount namespace: only to show that nothing of the tests is seen there."""
    namespace = f"--mount=/proc/{os.getpid()}/fd/{_machine[0]}"
    return subprocess.run(["nsenter", namespace, "--", *argv], capture_output=True, text=True)


def mount(*argv: str) -> None:
    """mount(8) with these arguments. Raises CalledProcessError."""
    subprocess.run(["mount", *argv], check=True, stdin=subprocess.DEVNULL)


def unmount(target: str | os.PathLike[str]) -> None:
    """Detach a mount, even one in use: its users keep it until they end."""
    subprocess.run(["umount", "--lazy", os.fspath(target)], check=True, stdin=subprocess.DEVNULL)


def scratch(name: str) -> Path:
    """A new, empty folder (mode 0755) in the namespace's own tmpfs."""
    made = SCRATCH / f"{next(_serial):03d}-{name}"
    made.mkdir(mode=0o755)
    return made


def _pure_cgroup2() -> None:
    if (CGROUPS / "cgroup.controllers").exists():
        return
    unmount(CGROUPS)
    mount("-t", "cgroup2", "none", str(CGROUPS))


def _uncovered_proc_and_sys() -> None:
    # The kernel lets a user namespace mount proc or sysfs only if its mount namespace has one that no other mount covers in
    # part (mount_too_revealing in fs/namespace.c). The faked files cover /proc and /sys, so an unprivileged container would
    # not start: these two stay whole.
    for kind in ("proc", "sysfs"):
        mount("-t", kind, kind, str(scratch(kind)))


def _private_dev() -> None:
    # A tmpfs, as devtmpfs is one: link counts and removal behave as on a host (an overlay would have its own inodes).
    made = scratch("dev")
    mount("-t", "tmpfs", "-o", "mode=755,nosuid", "hosttune-dev", str(made))
    for name in sorted(os.listdir("/dev")):
        if not name.startswith("nvidia"):
            _clone_entry(Path("/dev", name), made / name)
    mount("--rbind", str(made), "/dev")


def _clone_entry(source: Path, target: Path) -> None:
    seen = source.lstat()
    if stat.S_ISLNK(seen.st_mode):
        target.symlink_to(os.readlink(source))
    elif stat.S_ISDIR(seen.st_mode):
        target.mkdir()
        mount("--rbind", str(source), str(target))
    elif stat.S_ISCHR(seen.st_mode) or stat.S_ISBLK(seen.st_mode):
        os.mknod(target, seen.st_mode, seen.st_rdev)
        os.chown(target, seen.st_uid, seen.st_gid)
        os.chmod(target, stat.S_IMODE(seen.st_mode))
