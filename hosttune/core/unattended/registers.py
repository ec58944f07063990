# SPDX-License-Identifier: Apache-2.0
"""A GPU's registers between two announcements: which were right, and by whom one is other now.

A reset inside the driver changes a register and tells nobody. What can be heard is that a node was closed, and that somebody
writes to config space through sysfs. So a register that was right and is other, with nobody having written it, was lost: it is
put right again. One that somebody did write is his (docs/adr/0015), until its GPU comes back or it is as wanted again.
A look is one read of config space for each GPU; nothing is started, nothing written.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from .. import journal
from ..door.host import Host, Unrecorded, read_or_none
from ..gpu import own
from ..knobs import pcie_max_read_request
from ..model import FAIL, OK, Finding, Knob, Reading, Refused
from ..pci import bus
from .inotify import QUIET, WRITE
from .uevents import LOST, Event

KNOB = pcie_max_read_request.PCIE_MAX_READ_REQUEST
"""The one declared setting that lies in a register of the GPU itself and in nothing else."""
TIMES, WITHIN = 3, 600.0
"""How often within so many seconds a register of one GPU is put right: what sets it then cannot be heard, and keeps it."""
TAKEN = "%s: %s: %s is %s, want %s; left as it is. To have it back: hosttune apply %s"
FOUGHT = (
    "%s: something sets %s to %s again and again and cannot be heard; left as it is. To have it back: hosttune apply %s"
)
BY_HAND = "somebody else set it while hosttune watched: left as it is, until `hosttune apply` or a reboot"


def quiet(event: Event) -> bool:
    """Whether an event only says that something was done to a file."""
    return event.get("SUBSYSTEM") == QUIET


@dataclass
class Registers:
    """What the watch knows, by address of the GPU. Of a GPU whose writers cannot be heard it knows nothing.

    right: the value that stood there when all was well. by_hand: somebody wrote another one. waits: lost, and who computed there
    when it was to be put right.
    """

    host: Host
    heard: FrozenSet[str] = frozenset()
    right: Dict[str, str] = field(default_factory=dict)
    by_hand: Set[str] = field(default_factory=set)
    waits: Dict[str, Tuple[int, ...]] = field(default_factory=dict)
    want: Dict[str, str] = field(default_factory=dict)
    losses: Dict[str, List[float]] = field(default_factory=dict)

    @property
    def watched(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.right or self.waits)

    def learn(self, findings: Sequence[Finding]) -> None:
        """What stands there, after all was looked at and put right where it may be. Raises OSError.

        Read once more: a value that somebody wrote since then is not taken for lost later.
        """
        mine = [f for f in findings if f.id == KNOB.id and f.subject in self.heard]
        self.want = {f.subject: f.want for f in mine}
        self.right = {f.subject: f.have for f in mine if f.status == OK and self._have(f.subject) in (f.have, None)}
        self.by_hand &= set(self.want) - set(self.right)
        busy = {
            f.subject: tuple(pid for pid, _ in own.computing(self.host, f.subject)) for f in mine if f.status == FAIL
        }
        self.waits = {bdf: pids for bdf, pids in busy.items() if pids}

    def unlearn(self) -> None:
        """It could not be told what stands there: nothing is missed until it can."""
        self.right, self.waits = {}, {}

    def came_back(self, events: Sequence[Event]) -> None:
        """What was written to a GPU by hand is gone once that GPU is announced anew."""
        named = {event.get("PCI_SLOT_NAME") for event in events}
        self.by_hand = set() if LOST in events else self.by_hand - named

    def look(self, events: Sequence[Event], say: Callable[[str], None], now: float) -> List[str]:
        """GPUs whose register was lost, or waited and need wait no longer. A register that somebody wrote is told, once."""
        written = {event.get("PCI_SLOT_NAME", "") for event in events if quiet(event) and event["ACTION"] == WRITE}
        lost = []
        for bdf in sorted({*self.right, *self.waits, *(written & self.by_hand)}):
            have = self._have(bdf)
            if have is None or have == self.right.get(bdf):
                continue  # in the middle of a reset it does not answer: the next look sees what came of it
            if KNOB.meets(have, self.want[bdf]):
                self._forget(bdf)
                self.right[bdf] = have
            elif bdf in written or "" in written:
                if bdf not in self.by_hand:
                    say(TAKEN % (bdf, self._by_whom(bdf, have), KNOB.title, have, self.want[bdf], KNOB.name))
                self._leave(bdf)
            elif bdf in self.right and self._again_and_again(bdf, now):
                say(FOUGHT % (bdf, KNOB.title, have, KNOB.name))
                self._leave(bdf)
            elif bdf in self.right or not self._computes(bdf):
                lost.append(bdf)
        return lost

    def _by_whom(self, bdf: str, have: str) -> str:
        """As far as the journal knows: a revert notes what it does before it writes."""
        with contextlib.suppress(Refused, OSError, Unrecorded):
            mine = [e for e in journal.entries(self.host) if (e.step.knob, e.step.subject) == (KNOB.id, bdf)]
            if mine and mine[-1].reverts and mine[-1].step.after == have:
                return "hosttune revert took it back"
        return "somebody wrote to its config space"

    def _again_and_again(self, bdf: str, now: float) -> bool:
        before = [at for at in self.losses.get(bdf, ()) if now - at < WITHIN]
        self.losses[bdf] = [*before, now]
        return len(before) >= TIMES

    def _leave(self, bdf: str) -> None:
        self._forget(bdf)
        self.by_hand.add(bdf)

    def _forget(self, bdf: str) -> None:
        self.right.pop(bdf, None)
        self.waits.pop(bdf, None)
        self.by_hand.discard(bdf)

    def _have(self, bdf: str) -> Optional[str]:
        """None where it does not answer, or sleeps."""
        reading = own.guarded(self.host, bdf, _awake)
        return None if reading.error or reading.skip else reading.have

    def _computes(self, bdf: str) -> bool:
        """Whether those who computed there still do. A process that has ended holds nothing, also before it is reaped."""
        return any(_holds_files(self.host, pid) for pid in self.waits[bdf])

    def spare(self, knobs: Mapping[str, Knob]) -> Dict[str, Knob]:
        """The knobs, of which that of the registers leaves alone what somebody has written."""

        def read(host: Host) -> Dict[str, Reading]:
            found = KNOB.read(host)
            return {bdf: Reading(skip=BY_HAND) if bdf in self.by_hand else found[bdf] for bdf in found}

        return dict(knobs, **{KNOB.name: replace(KNOB, read=read)})


def _awake(host: Host, bdf: str) -> Reading:
    if (read_or_none(host, "%s/%s/power/runtime_status" % (bus.DEVICES, bdf)) or "").strip() == "suspended":
        return Reading(skip="it sleeps: a read would wake it, and the kernel keeps its registers meanwhile")
    return pcie_max_read_request.one(host, bdf)


def _holds_files(host: Host, pid: int) -> bool:
    try:
        return bool(host.list("/proc/%d/fd" % pid))
    except OSError:
        return False
