# SPDX-License-Identifier: Apache-2.0
"""Where a container's config is, and whether it may be written: Proxmox VE's /etc/pve (pmxcfs), or plain LXC's folder."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from ..door.host import Host, bytes_or_none, list_or_empty, read_or_none
from ..model import Refused
from . import firsthand
from .document import LXC, PVE, Document, parse
from .includes import follow

PVE_FOLDER = "/etc/pve/lxc"
LXC_FOLDER = "/var/lib/lxc"
PMXCFS_FILE_LIMIT = 1 << 20
"""pmxcfs refuses a larger file (EFBIG) and leaves what was written so far."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


@dataclass(frozen=True)
class Config:
    """A container's config as it is now. `lock` is the file whose flock(2) Proxmox VE's own tools take while they write,
    "" for plain LXC, which has none for its config. `folder` is what `-P` of LXC's tools must name."""

    id: str
    path: str
    data: bytes
    document: Document
    lock: str = ""
    folder: str = LXC_FOLDER

    @property
    def subject(self) -> str:
        """The container as findings name it."""
        return "ct:" + self.id

    @property
    def tool_options(self) -> Tuple[str, ...]:
        """What LXC's tools need to find it."""
        return ("-n", self.id) + (() if self.folder == LXC_FOLDER else ("-P", self.folder))


def find(host: Host, ct_id: str, version: Optional[Tuple[int, ...]] = None) -> Config:
    """The config of container `ct_id` on this host. Refused for an unknown one, one on another node, a virtual machine.

    version: that of pve-container where it is known already, () where it is known not to be there; else dpkg is asked.
    """
    if not _ID.match(ct_id):
        raise Refused("%r is no container id or name" % ct_id, "container", "use the vmid (200) or the LXC name")
    path = "%s/%s.conf" % (PVE_FOLDER, ct_id)
    data = bytes_or_none(host, path)
    if data is not None:
        document = parse(data, PVE, pve_major(pve_container(host) if version is None else version), path)
        return Config(ct_id, path, data, follow(host, document), "/run/lock/lxc/pve-config-%s.lock" % ct_id)
    nodes = list_or_empty(host, "/etc/pve/nodes")
    for node in nodes:
        elsewhere = "/etc/pve/nodes/%s/lxc/%s.conf" % (node, ct_id)
        if bytes_or_none(host, elsewhere) is not None:
            raise Refused("container %s is on node %s" % (ct_id, node), elsewhere,
                          "run hosttune there (the lock that guards the file is that node's): ssh %s hosttune lxc show %s"
                          % (node, ct_id))
        machine = "/etc/pve/nodes/%s/qemu-server/%s.conf" % (node, ct_id)
        if bytes_or_none(host, machine) is not None:
            raise Refused("%s is a virtual machine, not a container" % ct_id, machine, "qm config %s" % ct_id)
    folder = lxc_folder(host)
    path = "%s/%s/config" % (folder, ct_id)
    data = None if nodes and ct_id.isdigit() else bytes_or_none(host, path)  # there it is made anew at each start
    if data is None:
        known = ", ".join(known_ids(host)) or "none"
        if host.who().uid != 0:
            known += "; only root sees root's: sudo hosttune ..."
        look = "%s   # containers here: %s" % ("pct list" if nodes else "lxc-ls", known)
        raise Refused("there is no container %s" % ct_id, PVE_FOLDER if nodes else folder, look)
    return Config(ct_id, path, data, follow(host, parse(data, LXC, path=path)), folder=folder)


def known_ids(host: Host) -> Tuple[str, ...]:
    """The containers of this host."""
    if list_or_empty(host, "/etc/pve/nodes"):
        names = [name[:-len(".conf")] for name in list_or_empty(host, PVE_FOLDER) if re.match(r"\d+\.conf\Z", name)]
        return tuple(sorted(names, key=int))
    folder = lxc_folder(host)
    return tuple(name for name in list_or_empty(host, folder) if read_or_none(host, "%s/%s/config" % (folder, name)) is not None)


def lxc_folder(host: Host) -> str:
    """Where plain LXC keeps its containers (lxc.lxcpath)."""
    read = firsthand.lxc_folder(host, LXC_FOLDER)
    if read:
        return read
    ran = host.run(["lxc-config", "lxc.lxcpath"])
    return ran.out.strip() if ran.rc == 0 and ran.out.startswith("/") else LXC_FOLDER


def pve_container(host: Host) -> Optional[Tuple[int, ...]]:
    """The version of the pve-container package, None where it is not installed."""
    said = firsthand.version(host, "pve-container")
    if said is None:
        ran = host.run(["dpkg-query", "-W", "-f", "${Version}", "pve-container"])
        said = ran.out if ran.rc == 0 else ""
    numbers = re.findall(r"\d+", said.split("+")[0])
    return tuple(int(number) for number in numbers) or None


def pve_major(version: Optional[Tuple[int, ...]]) -> int:
    """Proxmox VE 7, 8, 9 carry pve-container 4, 5, 6."""
    return min(9, max(7, version[0] + 3)) if version else 9


def refuse_unwritable(host: Host, config: Config, after: bytes) -> None:
    """Refused when this caller cannot write the file now: no root, no quorum, or too large for pmxcfs.

    Without quorum pmxcfs still lets root open the file and fails each write with EACCES; what tells is the owner's
    write bit (stat shows 0440) or `quorate` in .members (there in a cluster only).
    """
    if host.who().uid != 0:
        raise Refused("root is needed to change it", config.path, "sudo hosttune lxc sync %s" % config.id)
    if not config.path.startswith(PVE_FOLDER + "/"):
        return
    if len(after) > PMXCFS_FILE_LIMIT:
        raise Refused("it would grow to %d bytes, and Proxmox VE's limit is %d" % (len(after), PMXCFS_FILE_LIMIT), config.path,
                      "shorten the container's notes")
    if not _is_quorate(host) or not int(host.lstat(config.path).mode, 8) & 0o200:
        raise Refused("this node has no quorum, so /etc/pve is read-only", config.path,
                      "pvecm status   # bring the cluster back first, or wait for it: --wait-quorum 60")


def has_quorum(host: Host) -> bool:
    """Whether /etc/pve takes writes: always where there is no Proxmox VE."""
    if not list_or_empty(host, "/etc/pve/nodes"):
        return True
    writable = int(host.lstat(PVE_FOLDER).mode, 8) & 0o200 or host.lstat(PVE_FOLDER).type == "link"
    return bool(writable) and _is_quorate(host)


def _is_quorate(host: Host) -> bool:
    try:
        members = json.loads(read_or_none(host, "/etc/pve/.members") or "{}")
    except ValueError:
        return True
    except OSError as e:
        if e.errno in (errno.EACCES, errno.EIO):
            return False
        raise
    cluster = members.get("cluster") if isinstance(members, dict) else None
    return not isinstance(cluster, dict) or bool(cluster.get("quorate", 1))


def is_ha_managed(host: Host, ct_id: str) -> bool:
    """Whether Proxmox VE's high availability starts and stops it: then a plain restart works against the manager. One in the
    state `ignored` is left alone by it."""
    text = read_or_none(host, "/etc/pve/ha/resources.cfg") or ""
    block = re.search(r"(?m)^ct:[ \t]*%s[ \t]*\n((?:[ \t]+\S.*\n)*)" % re.escape(ct_id), text + "\n")
    return block is not None and not re.search(r"(?m)^[ \t]+state[ \t]+ignored[ \t]*$", block.group(1))


def guess_dialect(path: str, data: bytes) -> str:
    """The dialect of a copy of a config: by what stands in it, else by its name."""
    keys: List[bytes] = [line for line in data.split(b"\n") if line.startswith(b"lxc.")]
    section_or_key = rb"(?mi)^([a-z][a-z_]*\d*:[ \t]*\S|\[[a-z][a-z0-9_:\-]+\]\s*$)"
    if re.search(section_or_key, data) or any(re.match(rb"lxc\.[^=:\s]+:", line) for line in keys):
        return PVE
    if any(b"=" in line for line in keys):
        return LXC
    return PVE if path.endswith(".conf") else LXC
