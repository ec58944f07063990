# SPDX-License-Identifier: Apache-2.0
"""What the kernel's log says of a GPU that does not work. Its words: NVIDIA's open kernel modules, and the public reports that
the pages of these findings name.

A line stays in the log when its fault is long gone, so it counts only while the GPU that it names is still in trouble.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, List, Optional, Sequence, Tuple

from ..catalogue import finding
from ..doctor.survey import Machine
from ..model import FAIL, FITS, PROVED, Finding, Hint, Probe
from .scene import Machines, below, kernels, whole


@dataclass(frozen=True)
class Row:
    """What a line means. errnos: what open(2) of the GPU's node says then (proof, when it does)."""

    id: str
    line: "re.Pattern[str]"
    means: str
    command: str
    costs: str
    action: str = "hardware"
    errnos: Tuple[str, ...] = ("EIO",)


def _row(
    id: str,
    line: str,
    means: str,
    command: str,
    costs: str,
    action: str = "hardware",
    errnos: Tuple[str, ...] = ("EIO",),
) -> Row:
    return Row(id, re.compile(line), means, command, costs, action, errnos)


_RESET = "nvidia-smi --gpu-reset -i %s   # without processes on it; else a reboot"
_XID = r"\bXid \([^)]*\): "
ROWS = (
    _row("HT305", _XID + r"79\b|has fallen off the bus|GPU is lost", "fell off the PCI bus while it ran",
         "systemctl reboot   # if it comes again: seat, power, heat, and nvidia-smi -lgc as a test",
         "every GPU program and container ends", errnos=("ENODEV", "EIO")),
    _row("HT310", r"RESET_REQUIRED|" + _XID + r"64\b", "needs a reset (a row of its memory could not be remapped)", _RESET,
         "programs on that GPU end; Xid 64 that comes back means the card has to be replaced"),
    _row("HT320", _XID + r"1(19|20)\b|GSP RPC|_kgspRpcRecvPoll", "has a GPU system processor that does not answer", _RESET,
         "programs on that GPU end; a newer driver often mends what comes back"),
    _row("HT306", r"PCI I/O region assigned to your NVIDIA device is invalid|BAR1 is 0M",
         "got no address for its memory window (BAR1)",
         "# turn on Above 4G Decoding in the firmware, or boot with pci=realloc; in a virtual machine, widen the 64-bit window",
         "a reboot", errnos=()),
    _row("HT308", r"unexpected WPR2 already up", "was left in a bad state by the driver that had it before",
         "systemctl poweroff   # and on again", "everything on it ends", errnos=("EIO",)),
    _row("HT309", r"failed to wait for GFW_BOOT", "does not finish booting its own firmware",
         "systemctl poweroff   # and on again; then riser, power, another slot", "everything on it ends"),
    _row("HT307", r"RmInitAdapter failed! \(0x22:0x56:", "does not start with Above 4G Decoding and Resizable BAR off",
         "systemctl reboot --firmware-setup   # turn both on there", "a reboot", "reboot"),
    _row("HT312", r"No interrupts of any type are available|Tried to get IRQ", "got no interrupt",
         "grep -rn -e NVreg_EnableMSI=0 -e pci=nomsi /etc/modprobe.d /proc/cmdline   # take it out", "a reboot", "look",
         ("EIO", "EBUSY")),
    _row("HT314", r"not permitted for excluded", "is excluded from the driver on purpose",
         "grep -rn NVreg_ExcludedGpus /etc/modprobe.d", "taking it out needs the module loaded anew", "look", ("EPERM",)),
    _row("HT317", r"not supported by open nvidia\.ko|requires use of the NVIDIA open kernel modules",
         "needs the other flavour of the kernel modules",
         "modinfo -F license nvidia   # then install the flavour that the line names, of the same version",
         "a reboot", "look", ()),
    _row("HT318", r"Legacy drivers|is not supported by the [\w.]* ?NVIDIA \S+ driver release|will ignore this GPU",
         "is not one that this driver release knows", "lspci -nn -d 10de:   # install the driver branch that the line names",
         "a reboot", "look", ()),
    _row("HT319", r"gsp_\S+ failed|Direct firmware load for nvidia/\S+ failed", "did not get its GSP firmware",
         "ls /lib/firmware/nvidia/$(cat /sys/module/nvidia/version)   # reinstall that version's firmware package",
         "the modules have to be loaded anew", "look"),
    _row("HT325", r"numa memblock size of zero", "has memory that this kernel cannot bring online",
         "grep MEMORY_HOTPLUG= /boot/config-$(uname -r)   # boot a kernel that has it", "a reboot", "look", ("EINVAL",)),
)  # fmt: skip
IDS = tuple(dict.fromkeys(row.id for row in ROWS))
_BDF = re.compile(
    r"(?:(?<![0-9a-f:])|(?<=pci:))([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?\b|pci:([0-9a-f]{2}:[0-9a-f]{2})\b"
)


def run(machines: Machines) -> List[Finding]:
    """HT305 to HT325, one for each GPU that the log has a word for."""
    machines = whole(machines)
    return [f for machine in kernels(machines) for f in _judge(machines, machine)]


def causes(machines: Machines, bdf: str) -> Tuple[str, ...]:
    """Ids of what the log says about one GPU ("0000:41:00.0"), or of all GPUs."""
    return tuple(dict.fromkeys(f.id for f in run(machines) if f.subject in (bdf, "gpus")))


def _judge(machines: Machines, machine: Machine) -> Iterator[Finding]:
    told = set()
    for row, line in _meaning(machine.around.log or _inside(machines)):
        bdf = _named(machine, line)
        seen = None if bdf in told else _trouble(machines, machine, bdf)
        if seen is None:
            continue
        told.add(bdf)
        subject = bdf or "gpus"
        proved = bool(bdf) and (seen in row.errnos or seen in _GONE)
        yield finding(
            row.id,
            FAIL,
            subject,
            "%s %s" % (subject if bdf else "a GPU", row.means),
            have=_NOW.get(seen, seen),
            want="works",
            proof=PROVED if proved else FITS,
            decide="" if proved else "dmesg | grep -e NVRM -e Xid | tail   # is it of now?",
            evidence=("kernel log: %s" % line.strip()[:200], _NOW.get(seen, "its node: open says %s" % seen)),
            hint=Hint(row.command.replace("%s", bdf or "INDEX"), below(machines, machine), row.costs, row.action),
            machine=machine.key,
        )


def _meaning(log: Sequence[str]) -> List[Tuple[Row, str]]:
    """The lines that mean something, the newest first; but a GPU that fell off the bus makes every later line about it."""
    found = [(row, line) for line in reversed(log) for row in [_row_of(line)] if row]
    return sorted(found, key=lambda pair: pair[0].id != "HT305")


def _row_of(line: str) -> Optional[Row]:
    return next((row for row in ROWS if row.line.search(line)), None)


def _inside(machines: Machines) -> Tuple[str, ...]:
    """The log as a container may read it, where nobody asked below."""
    return next((m.around.log for m in machines.values() if m.around.log), ())


def _named(machine: Machine, line: str) -> str:
    """The GPU of a line; where it names none, the only one that no driver has. "" for any."""
    found = _BDF.search(line.lower())
    if not found:
        idle = [gpu.bdf for gpu in machine.gpus or () if not gpu.driver]
        return idle[0] if len(idle) == 1 else ""
    start = found.group(1) or "0000:" + found.group(2)
    return next((gpu.bdf for gpu in machine.gpus or () if gpu.bdf.startswith(start + ".")), start + ".0")


_CONTEXT, _UNBOUND, _ABSENT = "no context can be made", "no driver", "absent"
_GONE = (_UNBOUND, _ABSENT)
_NOW = {
    _UNBOUND: "no driver is bound to it now",
    _ABSENT: "it is not on the PCI bus now",
    _CONTEXT: _CONTEXT + " now",
    "timeout": "its node: open does not return",
}


def _trouble(machines: Machines, machine: Machine, bdf: str) -> Optional[str]:
    """What is wrong with that GPU now ("" as bdf: with any): what open(2) of its node says, or one of _NOW; None: nothing."""
    mine = [gpu for gpu in machine.gpus or () if bdf in ("", gpu.bdf)]
    minors = [number for name, number in machine.by_bdf.items() if bdf in ("", name)]
    for other in machines.values():
        for minor in minors:
            node = other.nodes.get("/dev/nvidia%d" % minor)
            if node and node.type == "char" and node.access in ("ok", "") and _REFUSED.match(node.open):
                return node.open
    if any(not gpu.driver for gpu in mine) and machine.has_nvidia:
        return _UNBOUND
    # A container may see no PCI at all: only a bus that shows others shows that one is gone.
    if bdf and machine.gpus and not mine and bdf not in machine.by_bdf:
        return _ABSENT
    return _CONTEXT if any(_no_context(m) for m in machines.values()) else None


_REFUSED = re.compile(r"timeout\Z|(?!EACCES)E[A-Z0-9]+\Z")
"""What the driver says; EACCES is the mode's."""


def _no_context(machine: Machine) -> bool:
    """CUDA starts, and a context fails: where it does not start, no context says anything."""
    codes = [value for name, value in machine.calls.items() if name.startswith("cuCtxCreate@")]
    return machine.calls.get("cuInit") == 0 and any(value != 0 for value in codes)


PROBE = Probe("log", (), run)
