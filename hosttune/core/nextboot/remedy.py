# SPDX-License-Identifier: Apache-2.0
"""What lets a host's own units see to its next boot: the command, the profile that it needs, what is not judged without one."""

from __future__ import annotations

from typing import List

from ..catalogue import finding
from ..door.host import Host, Unrecorded
from ..model import SKIP, Finding, Hint
from ..wanted.profile import PATH, Profile

APPLY = "hosttune apply boot-units"


def boot_units(host: Host, profile: Profile) -> Hint:
    """The units keep a profile, which stands at PATH once they are there. mode: plan, the default, changes nothing at a boot."""
    costs, there = "nothing is restarted", has_profile(host)
    if not profile.plain and not there:
        folder = PATH.rpartition("/")[0]
        write = "mkdir -p %s && printf '{\"mode\": \"apply\"}\\n' > %s && %s" % (folder, PATH, APPLY)
        return Hint(write, "host", costs + "; what else is wanted (settings, containers, models) goes into that file", "apply")
    command = APPLY if there else APPLY + " --profile FILE"
    words = [] if there else ["FILE: the profile that was given here; it is then kept as " + PATH]
    words += ["it has to say mode: apply; in mode plan a boot changes nothing"] if profile.mode == "plan" else []
    return Hint(command + ("   # " + "; ".join(words) if words else ""), "host", costs, "apply")


def acts(profile: Profile) -> bool:
    """Whether hosttune's units do anything at a boot, as far as the profile says."""
    return not profile.plain or profile.mode != "plan"


def unjudged(profile: Profile) -> List[Finding]:
    """Without a profile nobody says which settings and models are wanted."""
    if profile.plain:
        return []
    told = "there is none (%s, or --profile FILE): which settings and models come back is not judged" % PATH
    return [finding("HT711", SKIP, "profile", told, have="none")]


def has_profile(host: Host) -> bool:
    """Whether the profile that the boot unit reads is there. It may hold secrets: it is not read into a recording."""
    try:
        host.lstat(PATH)
    except (OSError, Unrecorded):
        return False
    return True
