# SPDX-License-Identifier: Apache-2.0
"""A value in a file of /proc/sys or /sys, kept now by a write and over a reboot by a file of hosttune's own.

What shape_sysctl and shape_sysfs share: the two subjects "now" and "boot" (more where CPUs differ), the refusal to fight
with whoever else sets the value, and the wants that leave a choice ("madvise|always": either will do, the first is written).
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional

from ..configured import conflicts
from ..configured.conflicts import Claim, Setting
from ..door.host import Host, errname, read_or_none
from ..machine import container, sysfs
from ..model import Reading, Refused, Step

UNSET = "unset"
"""What stands for the value of the next boot when nothing is found that sets it."""


def choice(want: str) -> List[str]:
    """The values that will do: "madvise|always" are two."""
    return want.split("|")


def meets(have: str, want: str) -> bool:
    """Whether a value is one of those wanted."""
    return have in choice(want)


@dataclass(frozen=True)
class Kept:
    """One setting and how it is kept.

    text(raw value) -> the whole text of setting.file
    default(host)   -> the value that the kernel itself starts with, in a person's words; "" when that cannot be told
    words           what a person calls the raw values: {"1": "on", "0": "off"}
    offered         the file with the values that this machine can take, "" when they are fixed
    """

    setting: Setting
    text: Callable[[str], str]
    default: Callable[[Host], str]
    words: Mapping[str, str]
    offered: str = ""
    meets: Callable[[str, str], bool] = meets

    def word(self, raw: str) -> str:
        return self.words.get(raw, raw)

    def raw(self, word: str) -> str:
        return next((raw for raw, each in self.words.items() if each == word), word)


def one_of(*values: str) -> Callable[[str], str]:
    """The check of a want that must be one of these, or several of them: "madvise|always"."""

    def check(want: str) -> str:
        wrong = [each for each in choice(want) if each not in values]
        return "%s is none of %s" % (wrong[0] or "an empty text", ", ".join(values)) if wrong else ""

    return check


def whole_number(low: int, high: int) -> Callable[[str], str]:
    """The check of a want that is a whole number from `low` to `high`. No sign, and no zero before it: to the kernel 010 is 8."""

    def check(want: str) -> str:
        fits = re.fullmatch(r"0|[1-9][0-9]{0,18}", want) and low <= int(want) <= high
        return "" if fits else "%s is no whole number from %d to %d" % (want or "an empty text", low, high)

    return check


def always(value: str) -> Callable[[Host], str]:
    """The default of a setting with which every kernel starts alike."""
    return lambda host: value


def of_the_host(host: Host) -> str:
    """Why it is not this machine's to set: "" on a host, else which container this is."""
    inside = container.inside(host)
    return "set on the host, not inside a container (%s)" % inside if inside else ""


def now(host: Host, kept: Kept) -> Dict[str, Reading]:
    """{"now": value}, or one subject for each file of a pattern whose values differ. Empty when there is no such file."""
    found = sysfs.values(host, kept.setting.target)
    if len(set(found.values())) == 1:
        return {"now": Reading(kept.word(next(iter(found.values()))))}
    return {_part(path, kept.setting.target): Reading(kept.word(value)) for path, value in found.items()}


def _part(path: str, pattern: str) -> str:
    """The name that the `*` of the pattern stands for: "policy3"."""
    return next(each for each, wild in zip(path.split("/"), pattern.split("/")) if "*" in wild)


def boot(host: Host, kept: Kept) -> Reading:
    """What sets it at the next boot, and where that stands. An error when one of the files that may set it cannot be read."""
    try:
        claims = conflicts.claims(host, kept.setting)
        if claims:
            return Reading(kept.word(claims[-1].value), where=claims[-1].where)
        return Reading(kept.default(host) or UNSET)
    except OSError as e:
        return Reading(error="could not be read: %s: %s" % (e.filename, errname(e)))


def readings(host: Host, kept: Kept) -> Dict[str, Reading]:
    """Now and over a reboot. Nothing when this machine has no such file."""
    found = now(host, kept)
    if found:
        found["boot"] = boot(host, kept)
    return found


def step(host: Host, kept: Kept, id: str, subject: str, have: str, want: str, part: str = "") -> Step:
    """The write that makes it so. Refused while somebody else would undo it, and for a value this machine cannot take.
    part: "now", "boot" or one file of a pattern, where that is not the subject itself."""
    setting, want, part = kept.setting, choice(want)[0], part or subject
    _refuse_unknown(host, kept, want)
    rival = _rival(host, kept, want)
    if part == "boot":
        _refuse(rival, want, kept)
        return Step(id, subject, "replace", setting.file, read_or_none(host, setting.file), kept.text(kept.raw(want)))
    _refuse(rival if rival and rival.manager else None, want, kept)
    target = setting.target
    if part != "now":
        target = next(path for path in sysfs.files(host, target) if _part(path, target) == part)
    return Step(id, subject, "poke", target, kept.raw(have), kept.raw(want))


def _rival(host: Host, kept: Kept, want: str) -> Optional[Claim]:
    """The last one that comes after hosttune's file and wants what will not do."""
    others = [c for c in conflicts.claims(host, kept.setting) if c.after and not kept.meets(kept.word(c.value), want)]
    return others[-1] if others else None


def _refuse(rival: Optional[Claim], want: str, kept: Kept) -> None:
    if rival:
        what = (
            "%s sets it to %s" % (rival.who, kept.word(rival.value))
            if rival.value != conflicts.UNKNOWN
            else "%s sets it" % rival.who
        )
        raise Refused(what, rival.where, rival.way_out.replace("{want}", kept.raw(want)))


def _refuse_unknown(host: Host, kept: Kept, want: str) -> None:
    if not kept.offered:
        return
    paths = sysfs.files(host, kept.offered)
    try:
        offered = sysfs.words(host.read(paths[0])) if paths else []
    except OSError as e:
        if e.errno != errno.ENOENT:
            raise
        return
    if offered and want not in offered:
        raise Refused(
            "this machine does not offer %s, only %s" % (want, ", ".join(offered)), paths[0],
            "cat %s  # want one of these" % paths[0],
        )
