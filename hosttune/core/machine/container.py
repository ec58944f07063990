# SPDX-License-Identifier: Apache-2.0
"""Is the caller inside a container? Host settings are not a container's to change."""

from __future__ import annotations

from ..door.host import Host, read_or_none

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of include/linux/proc_ns.h: the same on every boot of every kernel since 3.8."""


def inside(host: Host) -> str:
    """lxc, docker, podman ..., or an empty text on a host or virtual machine. From marks that need no privilege.

    The PID namespace comes first: a virtual machine made from a Docker image still has /.dockerenv, and is a host.
    """
    if host.readlink("/proc/self/ns/pid") == INITIAL_PID_NAMESPACE:
        return ""
    mark = (read_or_none(host, "/run/systemd/container") or "").strip()
    if mark:
        return mark
    if read_or_none(host, "/.dockerenv") is not None:
        return "docker"
    if read_or_none(host, "/run/.containerenv") is not None:
        return "podman"
    try:
        environ = host.read("/proc/1/environ")
    except OSError:
        environ = ""  # only root may read it; systemd wrote the mark above in every container that runs it
    for entry in environ.split("\0"):
        if entry.startswith("container="):
            return entry[len("container=") :]
    return "a PID namespace of unknown make"
