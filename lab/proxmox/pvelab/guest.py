# SPDX-License-Identifier: Apache-2.0
"""A guest's file on this node: where it lies, its lock, loading it, writing it back as PVE does."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from . import conf
from .conf import Config

PVE = Path("/etc/pve")
LXC = Path("/var/lib/lxc")
LOCKS = Path("/run/lock/lxc")
LOCK_TIMEOUT = 10.0


class Failure(Exception):
    """A message for the caller and the exit status that PVE's tools would end with (errno, or 255)."""

    def __init__(self, message: str, status: int = 255) -> None:
        super().__init__(message)
        self.status = status


def warn(text: str) -> None:
    sys.stderr.write(text + "\n")


def node() -> str:
    return os.uname().nodename.partition(".")[0]


def quorate() -> bool:
    """What .members says; a node that is in no cluster always has quorum."""
    try:
        members = json.loads((PVE / ".members").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(members.get("cluster", {"quorate": 1})["quorate"])


def need_quorum() -> None:
    if not quorate():
        raise Failure("cluster not ready - no quorum?")


def path(vmid: int) -> Path:
    return PVE / "nodes" / node() / "lxc" / f"{vmid}.conf"


def vmids() -> list[int]:
    """The containers of this node."""
    folder = PVE / "nodes" / node() / "lxc"
    return sorted(int(name[:-5]) for name in os.listdir(folder) if re.fullmatch(r"[1-9]\d*\.conf", name))


def load(vmid: int) -> Config:
    """Raises Failure with status 2 for a container that is not on this node."""
    try:
        data = path(vmid).read_bytes()
    except FileNotFoundError:
        raise Failure(f"Configuration file 'nodes/{node()}/lxc/{vmid}.conf' does not exist", errno.ENOENT)
    return conf.parse(data, warn, str(vmid))


def digest(vmid: int) -> str:
    import hashlib

    return hashlib.sha1(path(vmid).read_bytes()).hexdigest()


def save(vmid: int, config: Config) -> None:
    """A temporary name in the same folder, then rename; no fsync, no chmod. Raises Failure with the errno."""
    target = path(vmid)
    temporary = target.with_name(f"{target.name}.tmp.{os.getpid()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(handle, conf.write(config))
        finally:
            os.close(handle)
        os.rename(temporary, target)
    except OSError as refusal:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise Failure(f"unable to open file '{temporary}' - {refusal.strerror}", refusal.errno or 255)


@contextlib.contextmanager
def locked(vmid: int) -> Iterator[None]:
    """Hold the flock of a guest's file. Raises Failure after 10 s."""
    LOCKS.mkdir(parents=True, exist_ok=True)
    name = LOCKS / f"pve-config-{vmid}.lock"
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _take(handle, name)
        yield
    finally:
        os.close(handle)


def _take(handle: int, name: Path) -> None:
    end = time.monotonic() + LOCK_TIMEOUT
    announced = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not announced:
                sys.stderr.write("trying to acquire lock...\n")
                announced = True
            if time.monotonic() > end:
                raise Failure(f"can't lock file '{name}' - got timeout")
            time.sleep(0.1)
        else:
            if announced:
                sys.stderr.write(" OK\n")
            return


def check_lock(config: Config, allow: str = "") -> None:
    """`lock:` in the file: somebody works on this guest."""
    lock = config.get("lock")
    if lock and lock != allow:
        raise Failure(f"CT is locked ({lock})")


def apply_pending(config: Config) -> bool:
    """Move pending values into main, raw lines and notes replaced as a whole. True if there was anything."""
    pending, main = config.pending, config.main
    if pending.empty:
        return False
    for key in re.split(r"[,; ]+", pending.values.pop("delete", "")):
        key = key.lstrip("!")
        if key == "description":
            main.description = ""
        main.values.pop(key, None)
    main.values.update(pending.values)
    if pending.raw:
        main.raw = pending.raw
    if pending.description:
        main.description = pending.description
    config.pending = conf.Section()
    return True


def lxc(tool: str, vmid: int, *argv: str) -> subprocess.CompletedProcess[str]:
    """One of LXC's tools on a container, its output as text."""
    return subprocess.run([tool, "-n", str(vmid), *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True)


def running(vmid: int) -> bool:
    """By LXC's command socket, as PVE asks: quicker than a process each, and `pct list` asks for every guest."""
    # The monitor listens on an abstract socket; /proc/net/unix has it while the container lives.
    wanted = f"@{LXC}/{vmid}/command"
    with open("/proc/net/unix") as sockets:
        return any(line.rstrip("\n").endswith(" " + wanted) for line in sockets)


def volume(value: str, vmid: int) -> Path:
    """Folder on the host behind `rootfs:` or `mp[n]:`: an absolute path, or a folder volume of the storage `local`."""
    name = conf.properties(value, "volume").get("volume", "")
    if name.startswith("/"):
        return Path(name)
    storage, colon, rest = name.partition(":")
    if storage != "local" or not colon or not rest:
        raise Failure(f"storage '{storage}' does not exist")
    return Path("/var/lib/vz/images") / rest
