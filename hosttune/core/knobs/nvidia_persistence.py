# SPDX-License-Identifier: Apache-2.0
"""nvidia-persistenced, now and over a reboot: it holds every GPU open, so that the driver keeps them ready between programs.

Read from files: its pid file and command line, and what starts it at boot (a unit that is wanted, or a udev rule, as some
distributions do it). The older persistence mode of nvidia-smi -pm 1 is the driver's secret and is not seen here.
https://docs.nvidia.com/deploy/driver-persistence/
"""

from __future__ import annotations

from typing import Dict, Tuple

from ..configured import dropins
from ..door.host import Host, list_or_empty, read_or_none
from ..gpu import driver
from ..model import Knob, Reading, Refused, Step

UNIT = "nvidia-persistenced.service"
PID = "/run/nvidia-persistenced/nvidia-persistenced.pid"
UNITS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
         "/lib/systemd/system")  # fmt: skip
WITHOUT = "--no-persistence-mode"


def read(host: Host) -> Dict[str, Reading]:
    """{"now": on or off, "boot": on or off}."""
    return {"now": _now(host), "boot": _boot(host)}


def _now(host: Host) -> Reading:
    pid = (read_or_none(host, PID) or "").strip()
    if not pid.isdigit():
        return Reading("off", where="no " + PID)
    cmdline = read_or_none(host, "/proc/%s/cmdline" % pid)
    if cmdline is None and host.who().uid:  # gone, or hidden by hidepid
        return Reading(error="process %s cannot be seen: run it as root (%s)" % (pid, PID))
    words = (cmdline or "").split("\0")
    if not words[0].endswith("nvidia-persistenced"):
        return Reading("off", where="%s names process %s, which is another or gone" % (PID, pid))
    return Reading("off", where="process %s runs with %s" % (pid, WITHOUT)) if WITHOUT in words else Reading("on")


def _boot(host: Host) -> Reading:
    for folder in UNITS:
        for name in list_or_empty(host, folder):
            if name.endswith((".wants", ".requires")) and UNIT in list_or_empty(host, "%s/%s" % (folder, name)):
                return Reading("on", where="%s/%s/%s" % (folder, name, UNIT))
    for path in dropins.files(host, dropins.folders("udev/rules.d"), ".rules"):
        if "nvidia" not in path:
            continue
        for number, line in dropins.lines(host, path, "#"):
            if "nvidia-persistenced" in line:
                return Reading("on", where="%s:%d" % (path, number))
    return Reading("off")


def step(host: Host, subject: str, have: str, want: str) -> Step:
    """Start or stop it, put it into the boot or take it out."""
    installed = [folder for folder in UNITS if UNIT in list_or_empty(host, folder)]
    if not installed:
        raise Refused(
            "nvidia-persistenced is not installed",
            UNIT,
            "apt install nvidia-persistenced  # or the one that came with the driver",
        )
    now = _now(host)
    if subject == "now" and WITHOUT in now.where:
        raise Refused(now.where, UNIT, "systemctl edit %s  # ExecStart without %s" % (UNIT, WITHOUT))
    on, off = _verbs(subject)
    argv, undo = (on, off) if want == "on" else (off, on)
    return Step(ID, subject, "run", "%s %s" % (UNIT, subject), have, want, argv, undo)


def _verbs(subject: str) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    words = ("start", "stop") if subject == "now" else ("enable", "disable")
    return ("systemctl", words[0], UNIT), ("systemctl", words[1], UNIT)


def skip(host: Host) -> str:
    """Where the driver is, and systemd."""
    reason = driver.skip(host)
    return reason or ("" if "system" in list_or_empty(host, "/run/systemd") else "systemd does not run here")


ID = "HT330"
NVIDIA_PERSISTENCE = Knob(
    id=ID,
    name="nvidia-persistence",
    title="nvidia-persistenced",
    want="on",
    read=read,
    step=step,
    check=lambda want: "" if want in ("on", "off") else "%s is none of on, off" % want,
    skip=skip,
    after_driver=True,
    why="without it the driver puts a GPU down when its last program ends: slow starts, and power limits and clocks are lost",
    cost="seconds at each start of an engine; settings of nvidia-smi that vanish",
    evidence="NVIDIA's driver persistence documentation",
    persists="systemd unit",
    if_ignored="it started and ended again: journalctl -u nvidia-persistenced",
)
