# SPDX-License-Identifier: Apache-2.0
"""hosttune's own units: the profile, the code and its systemd units on the machine itself, so that a reboot, a driver that is
loaded again and a GPU that comes back need nobody.

The code is one file named by its content, so that an update never changes what a unit of the old version runs. The profile
is 0600: it names models, users and paths.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any, Callable, Dict, Mapping

from ..door.host import Host, bytes_or_none, digest, read_or_none
from ..machine import container
from ..model import Knob, Reading, Refused, Step
from ..wanted.profile import PATH

ID, NAME = "HT102", "boot-units"
CODE = "/usr/local/lib/hosttune"
UNITS = "/etc/systemd/system"
KNOBS_UNIT, DEVICES_UNIT, STAGE_UNIT = "hosttune-knobs.service", "hosttune-devices.service", "hosttune-stage.service"
WATCH_UNIT, RECHECK_UNIT, TIMER = "hosttune-watch.service", "hosttune-recheck.service", "hosttune-recheck.timer"

_HEAD = """\
# hosttune: written by it, kept by it. `hosttune revert` takes it away; hosttune=off on the kernel command line stops it.
[Unit]
"""
_OFF = """\
ConditionKernelCommandLine=!hosttune=off
ConditionPathExists=!/etc/hosttune/off
"""
_UNIT = (
    _HEAD
    + """\
Description=hosttune: %(what)s
After=%(after)s
Before=%(before)s
"""
    + _OFF
    + """
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -I %(code)s %(stage)s
TimeoutStartSec=%(seconds)d
SyslogIdentifier=hosttune

[Install]
WantedBy=multi-user.target
"""
)
_STAGES = {
    KNOBS_UNIT: {
        "what": "settings of this host",
        "stage": "knobs",
        "seconds": 60,
        "after": "systemd-modules-load.service systemd-sysctl.service systemd-udev-settle.service",
        "before": "hosttune-devices.service nvidia-persistenced.service pve-guests.service pve-ha-lrm.service",
    },
    DEVICES_UNIT: {
        "what": "GPU device nodes, and the rules of the containers that use them",
        "stage": "devices",
        "seconds": 150,
        "after": "hosttune-knobs.service nvidia-persistenced.service pve-cluster.service",
        "before": "pve-guests.service pve-ha-lrm.service",
    },
    STAGE_UNIT: {
        "what": "models into memory",
        "stage": "models",
        "seconds": 3600,
        "after": "local-fs.target dev-shm-models.mount pve-cluster.service hosttune-devices.service",
        "before": "",  # a copy takes minutes, and no guest waits for it: its bind is there, and fills
    },
}
_WATCH = (
    _HEAD
    + """\
Description=hosttune: keeps the settings when a GPU comes back or its driver is loaded
After=hosttune-knobs.service hosttune-devices.service
"""
    + _OFF
    + """
[Service]
Type=simple
ExecStart=/usr/bin/python3 -I %(code)s watch
Restart=on-failure
RestartSec=10
Nice=5
SyslogIdentifier=hosttune

[Install]
WantedBy=multi-user.target
"""
)
_RECHECK = (
    _HEAD
    + """\
Description=hosttune: is all still as declared? Changes nothing; fails when something is not
"""
    + _OFF
    + """
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I %(code)s recheck
TimeoutStartSec=150
Nice=5
SyslogIdentifier=hosttune
"""
)
_TIMER = (
    _HEAD
    + """\
Description=hosttune: looks once an hour whether all is still as declared
"""
    + _OFF
    + """
[Timer]
OnBootSec=15min
OnUnitActiveSec=1h
RandomizedDelaySec=5min

[Install]
WantedBy=timers.target
"""
)
_MORE = {WATCH_UNIT: _WATCH, RECHECK_UNIT: _RECHECK, TIMER: _TIMER}
NAMES = (*_STAGES, *_MORE)
"""Every unit, in the order in which they are written."""
ENABLED = {**dict.fromkeys((*_STAGES, WATCH_UNIT), "multi-user.target"), TIMER: "timers.target"}
"""The units that something starts, and what starts them. hosttune-recheck.service is the timer's."""
AT_ONCE = (WATCH_UNIT, TIMER)
"""Those that are started when they are enabled: the others have their turn at the next boot."""


_NETWORK = "Wants=network-online.target\nAfter=network-online.target\n"
"""After= alone waits for what nobody may have asked for (systemd.special(7))."""


def unit(name: str, code: str, network: bool = False) -> str:
    """The text of one unit that runs the code at that path. network: a model comes from another machine, and its copy waits until
    that can be reached; else no boot waits for a network."""
    text = _UNIT % dict(_STAGES[name], code=code) if name in _STAGES else _MORE[name] % {"code": code}
    return text.replace("After=", _NETWORK + "After=", 1) if network and name == STAGE_UNIT else text


def code_path(sha: str) -> str:
    """Where the code of this digest ("sha256:...") lies."""
    return "%s/core-%s.pyz" % (CODE, sha.split(":")[1][:12])


def bound(profile: str, sha: str, network: bool = False) -> Knob:
    """The knob for this profile text and this code. Wants: "on" keeps the units, "off" takes them out of the boot. network: as
    `unit` takes it."""
    code = code_path(sha)
    texts = {PATH: profile, **{"%s/%s" % (UNITS, name): unit(name, code, network) for name in NAMES}}

    def read(host: Host) -> Dict[str, Reading]:
        return {subject: read_one(host, subject) for subject in ("code", *texts, *ENABLED)}

    def read_one(host: Host, subject: str) -> Reading:
        if subject == "code":
            return Reading("on" if _sha(host, code) == sha else "absent")
        if subject not in texts:
            return _enabled(host, subject)
        now = read_or_none(host, subject)
        return Reading("absent" if now is None else "on" if now == texts[subject] else "another text")

    def step(host: Host, subject: str, have: str, want: str) -> Step:
        if want == "off":
            return _off(subject, have)
        if subject == "code":
            return Step(ID, subject, "code", code, None, sha)
        if subject in texts:
            return Step(
                ID,
                subject,
                "replace",
                subject,
                read_or_none(host, subject),
                texts[subject],
                mode=0o600 if subject == PATH else 0o644,
            )
        return _enable(subject, have, "on")

    return replace(_knob(read, step), read_one=read_one)


def _off(subject: str, have: str) -> Step:
    if subject in ENABLED:
        return _enable(subject, have, "off")
    raise Refused("it stays: only the units are taken out of the boot", subject, "hosttune revert")


def _sha(host: Host, path: str) -> str:
    data = bytes_or_none(host, path)
    return "" if data is None else "sha256:" + digest(data)


def _enabled(host: Host, name: str) -> Reading:
    """By the link that `systemctl enable` makes: no process is started for a look."""
    return Reading("on" if _linked(host, name, ENABLED[name]) else "off")


def _linked(host: Host, name: str, by: str) -> bool:
    try:
        return host.lstat("%s/%s.wants/%s" % (UNITS, by, name)).type == "link"
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR):
            return False
        raise


def _enable(unit: str, have: str, want: str) -> Step:
    """A unit for the next boot takes no reload, in which systemd reads all its units anew."""
    how = ("--now",) if unit in AT_ONCE else ("--no-reload",)
    on, off = ("systemctl", "enable", *how, unit), ("systemctl", "disable", *how, unit)
    argv, undo = (on, off) if want == "on" else (off, on)
    return Step(ID, unit, "run", unit, have, want, argv, undo)


def _read_enabled(host: Host) -> Dict[str, Reading]:
    """Without a profile only this can be told: whether the units are in the boot."""
    return {name: _enabled(host, name) for name in ENABLED}


def _step_enabled(host: Host, subject: str, have: str, want: str) -> Step:
    if want == "off":
        return _off(subject, have)
    raise Refused("a profile is needed: it is what the units keep", PATH, "hosttune apply boot-units --profile FILE")


def skip(host: Host) -> str:
    """Only where systemd boots a host."""
    inside = container.inside(host)
    if inside:
        return "kept on the host, not inside a container (%s)" % inside
    try:
        host.list("/run/systemd/system")
    except OSError:
        return "systemd does not run here"
    return ""


def check(want: str) -> str:
    """on or off."""
    return "" if want in ("on", "off") else "%s is none of on, off" % want


def _knob(read: Callable[[Any], Mapping[str, Reading]], step: Callable[[Any, str, str, str], Step]) -> Knob:
    return Knob(
        id=ID, name=NAME, title="boot unit", want="on", read=read, step=step, check=check, skip=skip,
        why="registers and device numbers are new after each boot; containers start before anybody can look",
        cost="after a reboot MaxReadReq is the hardware's own again, and CUDA fails in containers until somebody looks",
        evidence="the founding machine: at each boot nvidia-uvm may have another number, and MaxReadReq was 512 again",
        persists="/etc/systemd/system/hosttune-*",
    )  # fmt: skip


BOOT_UNITS = replace(
    _knob(_read_enabled, _step_enabled), skip=lambda host: skip(host) or "no profile: nothing is kept over a reboot"
)
"""Without a profile: it only reads back what was done with one."""
