# SPDX-License-Identifier: Apache-2.0
"""Which of the declared engines stand after a reboot: their units as declared, running, answering. Asks only."""

from __future__ import annotations

from ..core.catalogue import finding
from ..core.door.host import Host
from ..core.lxc import inside
from ..core.model import ERROR, FAIL, SKIP, Finding, Hint, Refused
from ..core.wanted.profile import Profile
from . import alive, see, written


def standing(host: Host, profile: Profile) -> list[Finding]:
    """Two findings an engine, or the reason why it could not be looked at. One that was not started is a failure here."""
    found: list[Finding] = []
    for name in profile.engines:
        try:
            seen = see.see(host, profile, name, health=True)
        except inside.NoPython as e:
            found.append(finding("HT904", ERROR, name, e.what, hint=Hint(e.way_out, e.where)))
            continue
        except Refused as e:
            found.append(see.unseen(name, e))
            continue
        except OSError as e:
            found.append(finding("HT602", ERROR, name, "could not be looked at: %s" % e))
            continue
        found += [_gone(f, name) for f in (written.files(seen), *alive.running(seen))]
    return found


def _gone(f: Finding, name: str) -> Finding:
    if f.status != SKIP:
        return f
    hint = Hint("hosttune unit start %s --wait" % name, "host", "loads the model", "apply")
    return finding(f.id, FAIL, f.subject, f.summary, have=f.have, want=f.want, machine=f.machine, hint=hint)
