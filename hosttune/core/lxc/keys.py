# SPDX-License-Identifier: Apache-2.0
"""Which keys of a container config Proxmox VE keeps (pve-container, PVE/LXC/Config.pm), as tables."""

from __future__ import annotations

_ACCEPTED = frozenset(
    "lxc." + name for name in """
    apparmor.profile apparmor.allow_incomplete apparmor.allow_nesting apparmor.raw selinux.context include arch uts.name
    signal.halt signal.reboot signal.stop init.cmd init.cwd pty.max console.logfile console.path tty.max devtty.dir
    hook.autodev autodev kmsg mount.fstab mount.entry mount.auto rootfs.mount cap.drop cap.keep
    seccomp.profile seccomp.notify.proxy seccomp.notify.cookie idmap
    hook.pre-start hook.pre-mount hook.mount hook.start hook.stop hook.post-stop hook.clone hook.destroy hook.version
    log.level log.file start.auto start.delay start.order group environment
    sysctl.fs.mqueue sysctl.kernel.msgmax sysctl.kernel.msgmnb sysctl.kernel.msgmni sysctl.kernel.sem
    sysctl.kernel.shmall sysctl.kernel.shmmax sysctl.kernel.shmmni sysctl.kernel.shm_rmid_forced
    """.split())

_BEFORE_LXC_3 = frozenset(
    "lxc." + name for name in """
    aa_profile aa_allow_incomplete console devttydir haltsignal rebootsignal stopsignal id_map init_cmd loglevel logfile
    mount network.type network.flags network.link network.mtu network.name network.hwaddr network.ipv4
    network.ipv4.gateway network.ipv6 network.ipv6.gateway network.script.up network.script.down pts se_context seccomp
    tty utsname
    """.split())

_SINCE_PVE_9 = frozenset(("lxc.environment.runtime", "lxc.environment.hooks"))
_PREFIXES = ("lxc.cgroup2.", "lxc.cgroup.", "lxc.prlimit.", "lxc.net.", "lxc.limit.")

BOOLEANS = frozenset("onboot protection template unprivileged console debug".split())
INTEGERS = frozenset("cores memory swap tty cpuunits snaptime".split())


def refusal(key: str, pve: int) -> str:
    """Why Proxmox VE `pve` (7, 8, 9) forgets lines with this raw key on its next write; "" if it keeps them."""
    if key in _ACCEPTED or key in _BEFORE_LXC_3 or key.startswith(_PREFIXES):
        return ""
    if key in _SINCE_PVE_9:
        return "" if pve >= 9 else "Proxmox VE %d does not know %s (9 does)" % (pve, key)
    if key == "lxc.rootfs.options":
        return "lxc.rootfs.options is not supported: mount options belong into the rootfs key"
    if key == "lxc.rootfs.path":
        return "lxc.rootfs.path is made from the rootfs key"
    return "%s is not among the raw keys that Proxmox VE accepts" % key


def truth(value: str) -> str:
    """A Proxmox VE boolean as it is stored: "1", "0", or "" for what is none."""
    word = value.lower()
    return "1" if word in ("1", "on", "yes", "true") else "0" if word in ("0", "off", "no", "false") else ""
