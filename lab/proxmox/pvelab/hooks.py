# SPDX-License-Identifier: Apache-2.0
"""The three steps that Proxmox hangs into every start and end of a container. LXC starts them with LXC_NAME in the environment.

A container that Proxmox does not know (no file in /etc/pve) is left alone.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from . import conf, guest, lxcconfig
from .guest import Failure, warn

PASSED = "passthrough"
"""Folder below /var/lib/lxc/ID: a tmpfs with the nodes of dev[n], in the monitor's mount namespace."""
LIST = "passthrough.list"
PMXCFS = Path("/run/pve/pmxcfs.pid")


def _vmid() -> int | None:
    name = os.environ.get("LXC_NAME", "")
    return int(name) if name.isdecimal() and guest.path(int(name)).exists() else None


def prestart() -> int:
    """Mount the root and mp[n], make the nodes of dev[n]. A refusal stops the start."""
    try:
        vmid = _vmid()
        if vmid is None:
            return 0
        guest.need_quorum()
        config = guest.load(vmid)
        guest.check_lock(config, allow="mounted")
        _remove_cgroups(vmid)
        _mounts(vmid, config)
        _nodes(vmid, config)
    except (Failure, OSError, subprocess.CalledProcessError) as refusal:
        warn(str(refusal))
        return 1
    return 0


def _remove_cgroups(vmid: int) -> None:
    """What a killed container left; LXC would not start over it and not say why."""
    for top in (Path(f"/sys/fs/cgroup/lxc/{vmid}"), Path(f"/sys/fs/cgroup/lxc.monitor/{vmid}")):
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)


def _mount(*argv: str) -> None:
    subprocess.run(["mount", *argv], check=True, stdin=subprocess.DEVNULL)


def _mounts(vmid: int, config: conf.Config) -> None:
    root = guest.LXC / str(vmid) / "rootfs"
    # After a reboot from inside, the monitor's namespace still has the mounts of the time before.
    for old in (root, guest.LXC / str(vmid) / PASSED):
        subprocess.run(["umount", "--recursive", "--quiet", str(old)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    source = guest.volume(config.get("rootfs"), vmid)
    if not source.is_dir():
        raise Failure(f"volume '{source}' does not exist")
    _mount("--bind", str(source), str(root))
    for key in sorted(key for key in config.main.values if key.startswith("mp") and key[2:].isdecimal()):
        given = conf.properties(config.get(key), "volume")
        source = guest.volume(config.get(key), vmid)
        if str(source).startswith("/dev/"):
            raise Failure(f"{key}: '{source}' is taken for a block device, and is none")
        target = root / given.get("mp", "").lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        _mount("--bind", str(source), str(target))
        if given.get("ro") == "1":
            _mount("-o", "bind,remount,ro", str(target))


def _nodes(vmid: int, config: conf.Config) -> None:
    folder = guest.LXC / str(vmid)
    listed = folder / LIST
    listed.unlink(missing_ok=True)
    wanted = lxcconfig.devices(config)
    if not wanted:
        return
    made = folder / PASSED
    made.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "size=8k,mode=755", "none", str(made))
    for device in wanted:
        seen = lxcconfig.node_of(device.path)
        path = made / device.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFMT(seen.st_mode), seen.st_rdev)  # EEXIST for a path that is named twice
        os.chown(path, config.shift + device.uid, config.shift + device.gid)
        os.chmod(path, device.mode)
    listed.write_text("".join(device.path + "\n" for device in wanted))


def autodev() -> int:
    """Bind the nodes into the container's /dev. Runs as the container's root, after LXC's own mount entries: a path that one
    of those has made already is EEXIST, and no container."""
    folder = guest.LXC / os.environ.get("LXC_NAME", "")
    root = Path(os.environ.get("LXC_ROOTFS_MOUNT", "/"))
    try:
        wanted = (folder / LIST).read_text().splitlines()
    except FileNotFoundError:
        return 0
    try:
        for path in wanted:
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(target, stat.S_IFREG)
            _mount("--bind", str(folder / PASSED / path.lstrip("/")), str(target))
    except (OSError, subprocess.CalledProcessError) as refusal:
        warn(f"mknod failed: {refusal}" if isinstance(refusal, OSError) else str(refusal))
        return 1
    return 0


def poststop() -> int:
    """Apply pending changes, without the lock, as PVE does it.

    After a reboot from inside, the LXC config is made anew and the container started in full, since LXC's monitor would go on
    with what it once read; status 1 tells LXC to end. A dev[n] without its node leaves the container down.
    """
    again = os.environ.get("LXC_TARGET") == "reboot"
    try:
        vmid = _vmid()
        if vmid is None:
            return 0
        config = guest.load(vmid)
        if guest.apply_pending(config):
            guest.save(vmid, config)
        if again:
            lxcconfig.update(vmid, config)
            _start_again(vmid)
    except (Failure, OSError) as refusal:
        warn(str(refusal))
        return 1
    return int(again)


def _start_again(vmid: int) -> None:
    """From outside the monitor's mount namespace, in which this hook runs: pmxcfs lives in the host's."""
    program = "import sys; sys.path.insert(0, '/usr/lib/hosttune-lab'); from pvelab.power import again; again(int(sys.argv[1]))"
    outside = f"--mount=/proc/{int(PMXCFS.read_text())}/ns/mnt"
    argv = ["nsenter", outside, "--", "/usr/bin/python3", "-I", "-c", program, str(vmid)]
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
