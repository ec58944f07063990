# SPDX-License-Identifier: Apache-2.0
"""/var/lib/lxc/ID/config, made anew at each start (and after `pct set` of a stopped guest): what PVE's update_lxc_config does.

Order of the device rules: includes, then dev[n], then raw lines in the file's order.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from . import conf
from .conf import Config
from .guest import LXC, Failure

SHARE = "/usr/share/lxc/config"


def devices(config: Config) -> list[conf.Device]:
    """The dev[n] entries; like PVE's start, by pattern and not by schema (dev999 is used). Raises Failure."""
    found = []
    for key in sorted(key for key in config.main.values if re.fullmatch(r"dev\d+", key)):
        try:
            found.append(conf.device(config.get(key)))
        except ValueError as refusal:
            raise Failure(str(refusal))
    return found


def node_of(path: str) -> os.stat_result:
    """The device behind a path, links followed. Raises Failure in PVE's words."""
    try:
        seen = os.stat(path)
    except OSError as refusal:
        if refusal.errno == errno.ENOENT:
            raise Failure(f"Device {path} does not exist", errno.ENOENT)
        raise Failure(f"Error accessing device {path}: {refusal.strerror}", refusal.errno or 255)
    if not (stat.S_ISCHR(seen.st_mode) or stat.S_ISBLK(seen.st_mode)):
        raise Failure(f"{path} is not a device")
    return seen


def _controllers() -> list[str]:
    try:
        return Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    except OSError:
        return []


def text(vmid: int, config: Config) -> str:
    """The whole config. Raises Failure: a dev[n] without a node, no rootfs, no arch, a bad net[n]."""
    folder = LXC / str(vmid)
    for key in ("arch", "ostype"):
        if not config.get(key):
            raise Failure(f"missing '{key}' - internal error")
    lines = [
        "lxc.cgroup.relative = 0",
        f"lxc.cgroup.dir.monitor = lxc.monitor/{vmid}",
        f"lxc.cgroup.dir.container = lxc/{vmid}",
        "lxc.cgroup.dir.container.inner = ns",
        f"lxc.arch = {config.get('arch')}",
        f"lxc.include = {SHARE}/common.conf",
    ]
    if config.unprivileged:
        lines += [f"lxc.include = {SHARE}/userns.conf"]
    lines += ["lxc.apparmor.profile = unconfined"]
    if config.unprivileged:
        lines += ["lxc.mount.auto = sys:mixed"]
    for device in devices(config):
        seen = node_of(device.path)
        kind = "b" if stat.S_ISBLK(seen.st_mode) else "c"
        number = f"{kind} {os.major(seen.st_rdev)}:{os.minor(seen.st_rdev)}"
        lines += [f"lxc.cgroup2.devices.allow = {number} {'r' if device.deny_write else 'rw'}"]
        if device.deny_write:
            lines += [f"lxc.cgroup2.devices.deny = {number} w"]
    lines += ["lxc.monitor.unshare = 1"]
    if config.unprivileged and not config.custom_idmap:
        lines += ["lxc.idmap = u 0 100000 65536", "lxc.idmap = g 0 100000 65536"]
    lines += ["lxc.tty.max = 2", "lxc.environment = TERM=linux", f"lxc.uts.name = {config.get('hostname') or f'CT{vmid}'}"]
    if "memory" in _controllers():
        memory = int(config.get("memory") or 512) * 1024 * 1024
        lines += [f"lxc.cgroup2.memory.max = {memory}", f"lxc.cgroup2.memory.high = {memory * 99 // 100}",
                  f"lxc.cgroup2.memory.swap.max = {int(config.get('swap') or 0) * 1024 * 1024}"]  # fmt: skip
    if not config.get("rootfs"):
        raise Failure("missing 'rootfs' configuration")
    lines += [f"lxc.rootfs.path = {folder}/rootfs"]
    for key in sorted(key for key in config.main.values if re.fullmatch(r"net\d+", key)):
        lines += _net(vmid, int(key[3:]), conf.properties(config.get(key)))
    lines += [f"{key} = {value}" for key, value in config.main.raw]
    return "".join(line + "\n" for line in lines)


def _net(vmid: int, index: int, given: dict[str, str]) -> list[str]:
    prefix = f"lxc.net.{index}"
    lines = [f"{prefix}.type = veth", f"{prefix}.veth.pair = veth{vmid}i{index}", f"{prefix}.name = {given.get('name', 'eth0')}",
             f"{prefix}.flags = up"]  # fmt: skip
    if bridge := given.get("bridge"):
        if not Path(f"/sys/class/net/{bridge}").exists():
            raise Failure(f"bridge '{bridge}' does not exist")
        lines += [f"{prefix}.link = {bridge}"]
    if hwaddr := given.get("hwaddr"):
        lines += [f"{prefix}.hwaddr = {hwaddr}"]
    if re.fullmatch(r"[\d.]+/\d+", given.get("ip", "")):
        lines += [f"{prefix}.ipv4.address = {given['ip']}"]
        if gateway := given.get("gw"):
            lines += [f"{prefix}.ipv4.gateway = {gateway}"]
    return lines


def update(vmid: int, config: Config) -> None:
    """Write it. Raises Failure before anything is written."""
    made = text(vmid, config)
    folder = LXC / str(vmid)
    (folder / "rootfs").mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # the autodev hook of an unprivileged container walks through here
    temporary = folder / f"config.tmp.{os.getpid()}"
    temporary.write_bytes(made.encode("latin-1"))
    temporary.rename(folder / "config")
