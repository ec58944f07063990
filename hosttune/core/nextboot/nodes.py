# SPDX-License-Identifier: Apache-2.0
"""Who makes /dev/nvidia-uvm before guests start (HT706), and which containers do not start without it (HT709).

The driver makes no nodes by itself: nvidia-modprobe does, when a CUDA program or a unit calls it. A guest that starts
before the first call finds none.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host, errname, list_or_empty, read_or_none
from ..knobs.boot_units import DEVICES_UNIT
from ..model import ERROR, FAIL, FITS, OK, PROVED, WARN, Finding, Hint
from ..wanted.profile import Profile
from . import remedy
from .guests import Guest

UNITS = ("/etc/systemd/system", "/lib/systemd/system")
GUESTS = ("pve-guests.service", "lxc.service")
RULES = ("/etc/udev/rules.d", "/lib/udev/rules.d")
_MAKES_UVM = re.compile(
    r"(?m)^(?!\s*[#;]).*(?:nvidia-modprobe\b.*\s(?:-\w*u|--unified-memory)|mknod\b.*/dev/nvidia-uvm\b)"
)
"""-c alone makes nvidia0 and nvidiactl."""
_UDEV = re.compile(r"nvidia[-_]uvm.*(nvidia-modprobe|mknod)")
_WILL_NOT_START = "it does not start at the next boot: "


@dataclass(frozen=True)
class Maker:
    """What makes the node at boot. `first`: it is ordered before the guests."""

    what: str
    first: bool


def makers(host: Host, ours: bool = True) -> Tuple[Maker, ...]:
    """Units that are in the boot, what the guests' own unit does first, and udev rules; the ordered ones first. ours: whether
    hosttune's own unit does anything."""
    found: List[Maker] = []
    for name in _enabled(host):
        text = next(
            (t for t in (read_or_none(host, "%s/%s" % (folder, name)) for folder in UNITS) if t is not None), ""
        )
        if ours if name == DEVICES_UNIT else _MAKES_UVM.search(text):
            before = " ".join(re.findall(r"(?m)^\s*Before\s*=(.*)$", text)).split()
            found.append(Maker(name, bool(set(GUESTS) & set(before))))
    for guest in GUESTS:
        for folder in ("%s/%s.d" % (UNITS[0], guest), "%s/%s.d" % (UNITS[1], guest)):
            for name in list_or_empty(host, folder):
                text = read_or_none(host, "%s/%s" % (folder, name)) or ""
                if name.endswith(".conf") and re.search(r"(?m)^\s*ExecStartPre\s*=", text) and _MAKES_UVM.search(text):
                    found.append(Maker("%s/%s" % (folder, name), True))
    for folder in RULES:
        for name in list_or_empty(host, folder):
            for number, line in enumerate((read_or_none(host, "%s/%s" % (folder, name)) or "").splitlines(), 1):
                if not line.startswith("#") and _UDEV.search(line):
                    found.append(Maker("%s/%s:%d" % (folder, name, number), _loads_uvm(host)))
    return tuple(sorted(found, key=lambda maker: not maker.first))


def _enabled(host: Host) -> Sequence[str]:
    """Units that some target wants: links in *.wants folders."""
    wants = [folder for folder in list_or_empty(host, UNITS[0]) if folder.endswith((".wants", ".requires"))]
    return sorted(
        {
            name
            for folder in wants
            for name in list_or_empty(host, "%s/%s" % (UNITS[0], folder))
            if name.endswith(".service")
        }
    )


def _loads_uvm(host: Host) -> bool:
    """Whether nvidia-uvm is loaded early (modules-load.d), so that a udev rule has something to act on."""
    texts = [read_or_none(host, "/etc/modules") or ""]
    for folder in ("/etc/modules-load.d", "/usr/lib/modules-load.d"):
        texts += [read_or_none(host, "%s/%s" % (folder, name)) or "" for name in list_or_empty(host, folder)]
    return any(line.strip().replace("-", "_") == "nvidia_uvm" for text in texts for line in text.splitlines())


def judge(host: Host, guests: Sequence[Guest], profile: Profile) -> List[Finding]:
    """HT706 once, HT709 for each container that would not start. Without a container that uses GPUs: HT706 alone, if told."""
    using = [guest for guest in guests if guest.uses_nvidia]
    by = makers(host, remedy.acts(profile))
    first = next((maker for maker in by if maker.first), None)
    apply = remedy.boot_units(host, profile)
    return _made(by, first, using, apply) + [f for guest in guests for f in _starts(host, guest, first, apply)]


def _made(by: Sequence[Maker], first: Optional[Maker], using: Sequence[Guest], apply: Hint) -> List[Finding]:
    if first:
        return [finding("HT706", OK, "/dev/nvidia-uvm", "%s makes it before guests start" % first.what, proof=PROVED)]
    if not using:
        return []
    who = ", ".join(guest.id for guest in using)
    if by:
        return [
            finding(
                "HT706",
                WARN,
                "/dev/nvidia-uvm",
                "%s makes it, but guests need not wait for that (%s)" % (by[0].what, who),
                have="not ordered",
                want="Before=%s" % GUESTS[0],
                proof=FITS,
                decide="systemctl show -p Before %s" % by[0].what,
                hint=apply,
            )
        ]
    return [
        finding(
            "HT706",
            FAIL,
            "/dev/nvidia-uvm",
            "nothing makes it before guests start (%s): CUDA will not start in them" % who,
            have="nobody",
            want="a unit before %s" % GUESTS[0],
            proof=FITS,
            decide="hosttune doctor --ct %s   # after the next boot" % using[0].id,
            evidence=("no enabled unit in %s calls nvidia-modprobe -u" % UNITS[0], "no udev rule makes it"),
            hint=apply,
        )
    ]


def _starts(host: Host, guest: Guest, first: Optional[Maker], apply: Hint) -> List[Finding]:
    """Entries that stop a start when their file is missing: devN, and a bind without `optional`."""
    needed = [(place, path) for place, path in guest.must_exist if not path.startswith("/dev/nvidia") or not first]
    for place, path in needed:
        try:
            host.lstat(path)
            there = True
        except FileNotFoundError:
            there = False
        except OSError as e:
            return [
                finding(
                    "HT903",
                    ERROR,
                    "ct:" + guest.id,
                    "%s could not be looked at: %s" % (path, errname(e)),
                    machine="ct:" + guest.id,
                )
            ]
        if not there:
            return [
                finding(
                    "HT709",
                    FAIL,
                    "ct:" + guest.id,
                    _WILL_NOT_START + "%s is not there" % path,
                    have="absent",
                    want=path,
                    proof=PROVED,
                    evidence=("%s needs it" % place,),
                    machine="ct:" + guest.id,
                    hint=Hint(
                        "ls -l %s   # take the line out, or make what it names" % shlex.quote(path), "host", "", "look"
                    ),
                )
            ]
        if path.startswith("/dev/nvidia"):
            return [
                finding(
                    "HT709",
                    WARN,
                    "ct:" + guest.id,
                    _WILL_NOT_START + "nothing makes %s before guests start" % path,
                    have="made later",
                    want="made before guests",
                    proof=FITS,
                    decide="pct start %s   # after the next boot" % guest.id,
                    evidence=("%s needs it" % place,),
                    machine="ct:" + guest.id,
                    hint=apply,
                )
            ]
    return (
        [finding("HT709", OK, "ct:" + guest.id, "nothing it needs to start is missing", machine="ct:" + guest.id)]
        if guest.uses_nvidia
        else []
    )
