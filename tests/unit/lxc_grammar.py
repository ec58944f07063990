# SPDX-License-Identifier: Apache-2.0
"""Container configs as people and scripts leave them behind, wider than any file we were given.

`configs()` for hypothesis; `config(random)` for a seeded run of many. Both draw from the same pieces: what a line may be,
where it may stand, how it may end.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import strategies as st

MAJORS = ("195", "226", "234", "236", "237", "239", "254", "506", "508", "509", "510", "511", "512", "10", "188", "1", "*")
MINORS = ("*", "0", "1", "128", "254", "255")
NODES = ("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps",
         "nvidia-caps/nvidia-cap1", "nvidia-caps-imex-channels/channel0", "nvidia-nvswitchctl", "dri", "dri/card0",
         "dri/renderD128", "apex_0", "kfd", "net/tun", "ttyUSB0", "hidraw3", "fuse")  # fmt: skip
NOISE = (
    b"", b"   ", b"\t", b"key without colon", b"gpu-note: x", b"Memory: 5", b"memory:", b" memory: 5", b"[x]", b"[1abc]",
    b"[ok] # note", b"lxc.hook.start-host: /bin/x", b"lxc.rootfs.path: /x", b"lxc.mount.entry : /dev/a dev/a none bind",
    b"\tlxc.cgroup2.devices.allow: c 511:* rwm", b"\xef\xbb\xbfarch: amd64", b"\xff\xfe: \x80", b"snapstate: delete",
    b"delete: dev0", b"LXC.cap.drop: x", b"description: old%0Anote", b"dev-0: /dev/nvidia0", b"lxc.cgroup2.devices.allow c 1:1 r",
)  # fmt: skip
NOTES = (b"#", b"# note", b"#lxc.cgroup2.devices.allow: a", b"# lxc.cap.drop%3A", b"# \xc3\xa4\xff", b"#[pve:pending]", b"#%0D\r")
KEYS = (
    b"arch: amd64", b"hostname: ct1", b"memory: 512", b"memory: abc", b"rootfs: local:1/a.raw,size=4G", b"swap: 0512",
    b"mp0: /srv,mp=/srv", b"unused0: local:1/a.raw", b"onboot: yes", b"foo: bar", b"tags: a;b", b"features: nesting=1,fuse=1",
    b"unprivileged: 1", b"unprivileged: 0", b"unprivileged: on", b"net0: name=eth0,bridge=vmbr0", b"hookscript: local:snippets/x",
    b"dev999: /dev/ttyUSB0", b"dev00: /dev/nvidia0", b"arch:amd64", b"memory:  ",
)  # fmt: skip
RAW = (
    b"lxc.cap.drop:", b"lxc.apparmor.profile: unconfined", b"lxc.idmap: u 0 100000 65536", b"lxc.environment: A=b c",
    b"lxc.environment.runtime: A=1", b"lxc.hook.mount: /usr/share/lxc/hooks/nvidia", b"lxc.mount.auto: cgroup:rw",
    b"lxc.id_map: u 0 1 2", b"lxc.cgroup2.devices.allow:", b"lxc.cgroup2.devices.allow: a", b"lxc.cgroup2.devices.deny: a",
    b"lxc.cgroup2.devices.allow: a *:* rwm", b"lxc.cgroup2.memory.high: 1G", b"lxc.prlimit.memlock: unlimited",
    b"lxc.cgroup2.cpuset.cpus: 0-3", b"lxc.include: /etc/lxc/x.conf", b'lxc.mount.entry: ""', b"lxc.mount.entry:",
)  # fmt: skip
HEADERS = (b"[fresh]", b"[before_upgrade]", b"[fresh]  ", b"[Fresh]", b"[pending]", b"[pve:pending]", b"[PVE:Pending]\t")

Pick = Callable[[tuple[str, ...]], str]


def _rule(pick: Pick) -> str:
    form = pick(("v2", "v2", "v2", "path", "v1", "deny", "odd"))
    number = "c %s:%s" % (pick(MAJORS), pick(MINORS))
    access = pick(("rwm", "rwm", "rwm", "rw", "r", "wmr", "m", "rwm # note", "rw # note", ""))
    if form == "path":
        return "lxc.cgroup2.devices.allow: /dev/%s %s" % (pick(NODES), access)
    if form == "odd":
        return "lxc.cgroup2.devices.allow%s" % pick((
            ": c  511:* rwm", ": C 195:* rwm", ": b 8:* rwm", ": 'c 511:* rwm'", "=c 509:* rwm", " = c 195:0 rwm",
            ":c\t511:*\trwm", ": c 195 rwm", ": c 99999999999:* rwm", ": c 511:* rwm\u00a0"))  # fmt: skip
    key = {"v2": "lxc.cgroup2.devices.allow", "v1": "lxc.cgroup.devices.allow", "deny": "lxc.cgroup2.devices.deny"}[form]
    return "%s%s%s %s" % (key, pick((": ", ": ", ":", " = ", "=")), number, access)


def _mount(pick: Pick) -> str:
    node = pick(NODES)
    target = pick(("dev/" + node, "dev/" + node, "dev/" + node, "/dev/" + node, "dev/nvidia0", "dev//%s/" % node, "srv/" + node))
    options = pick((
        "none bind,optional,create=file", "none bind,optional,create=file 0 0", "none bind,create=dir", "none rbind,ro", "none",
        "", "none bind,optional,create=file # note", "tmpfs size=1G"))  # fmt: skip
    return "lxc.mount.entry: /dev/%s%s%s %s" % (node, pick((" ", "  ", "\t", "\u00a0")), target, options)


def _dev(pick: Pick) -> str:
    number = pick(("0", "1", "2", "7", "12", "255", "256"))
    options = pick((
        "", "", ",mode=0666", ",gid=44", ",uid=0,gid=44,mode=0660", ",deny-write=1", ",", ", gid=44", ",mode=666",
        ",gid=44,gid=45", ",user=x", ",uid=\u0667"))  # fmt: skip
    return "dev%s: %s%s%s" % (number, pick(("", "", "path=")), pick(("/dev/", "/dev/", "/dev//", "")) + pick(NODES), options)


def _line(pick: Pick, draw: Callable[[tuple[bytes, ...]], bytes]) -> bytes:
    kind = pick(("rule", "rule", "rule", "mount", "mount", "dev", "dev", "key", "key", "raw", "note", "noise"))
    if kind == "rule":
        return _rule(pick).encode()
    if kind == "mount":
        return _mount(pick).encode()
    if kind == "dev":
        return _dev(pick).encode()
    return draw({"key": KEYS, "raw": RAW, "note": NOTES, "noise": NOISE}[kind])


def _file(pick: Pick, draw: Callable[[tuple[bytes, ...]], bytes], count: Callable[[int], int]) -> bytes:
    """count(n): a number from 0 to n."""
    ending = draw((b"\n", b"\n", b"\n", b"\r\n"))
    out: list[bytes] = []
    for section in range(1 + (count(2) if pick(("sections", "main")) == "sections" else 0)):
        if section:
            out += [b"", draw(HEADERS)]
        out += [_line(pick, draw) for _ in range(count(14 if section == 0 else 4))]
    lines = [line + (ending if pick(("same",) * 9 + ("other",)) == "same" else b"\n") for line in out]
    data = b"".join(lines)
    return data.rstrip(b"\r\n") if pick(("end", "end", "open")) == "open" else data


@st.composite
def configs(draw: st.DrawFn) -> bytes:
    """Any config file of the grammar."""
    return _file(lambda of: draw(st.sampled_from(of)), lambda of: draw(st.sampled_from(of)),
                 lambda most: draw(st.integers(0, most)))  # fmt: skip


def config(source: random.Random) -> bytes:
    """The same by a seeded generator, for runs of a thousand."""
    return _file(source.choice, source.choice, lambda most: source.randint(0, most))
