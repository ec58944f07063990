# SPDX-License-Identifier: Apache-2.0
"""What a running container's nodes say when they are opened inside, as findings: one cause, and its echoes folded below it."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional, Sequence, Tuple

from ..catalogue import finding
from ..door.child import NOT_TRIED
from ..machine.devices import DeviceTable
from ..model import ERROR, FAIL, OK, PROVED, SKIP, Finding, Hint
from . import see
from .edit import Edit
from .entries import entries
from .needs import Need
from .store import Config

STEP = "HT421"
"""The finding that a changed config mends; it names the step in the journal and in messages."""
REFUSED = "HT438"
"""The same where an unprivileged container was refused, which the journal remembers: its rules are no dead ones."""
PENDING, COUNT = "HT402", "HT429"
_IDS = {see.DENIED: "HT401", see.ABSENT: "HT403", see.PLACEHOLDER: "HT404", see.STALE: "HT405", see.REPLACED: "HT406",
        see.MODE: "HT407", see.OTHER: "HT409"}
_SAYS = {see.DENIED: "the device cgroup of the running container refuses it (EPERM)", see.ABSENT: "it is not there inside",
         see.MODE: "its mode or owner refuses it (EACCES)", see.OTHER: "it does not open"}


def judge(config: Config, seen: Sequence[see.Inside], devices: DeviceTable, planned: Edit,
          pending: Optional[Finding]) -> List[Finding]:
    """Findings about the nodes that the container needs, as they were seen inside. pending: the restart that would make the
    wrong ones anew: those have its hint, and it is what follows from them."""
    out = _alike([_node(config, one, devices, planned, pending) for one in seen if one.state != see.OPENS])
    causes = tuple(sorted({cause for f in out for cause in f.because or (f.id,)}))
    cards = [one for one in seen if one.need.driver == "nvidia" and one.need.path[-1:].isdigit()]
    count = "%d of %d nodes open, %d of %d GPUs" % (
        sum(one.state == see.OPENS for one in seen), len(seen), sum(one.state == see.OPENS for one in cards), len(cards))
    out.append(finding(COUNT, SKIP if causes else OK, config.subject, count, have=count, want="all", because=causes, proof=PROVED,
                       machine=config.subject))
    if pending:
        stuck = sorted({f.id for f in out if f.hint == pending.hint})
        out.append(replace(pending, status=SKIP, because=tuple(stuck)))
    return out


def host_has(devices: DeviceTable, need: Need) -> bool:
    """Whether a start would find the right node: else the node of the host is what has to be mended first."""
    node = (devices.nodes or {}).get(need.path)
    return node is not None and node.type == "char" and (need.major is None or node.major == need.major)


def rule_for(need: Need, rules: Sequence[str]) -> str:
    """The numeric rule among `rules` that opens a node."""
    return next((rule for rule in rules if rule.split()[1] in (need.numbers, "%s:*" % need.major)), "")


def _node(config: Config, one: see.Inside, devices: DeviceTable, planned: Edit, pending: Optional[Finding]) -> Finding:
    says = one.detail if one.state in (see.PLACEHOLDER, see.STALE, see.REPLACED) else "%s%s" % (
        _SAYS[one.state], ": " + one.detail if one.state == see.OTHER else "")
    hint, because = Hint(), _cause(config, one)
    if one.state == see.DENIED and rule_for(one.need, planned.live):
        hint = Hint("hosttune lxc live %s" % config.id, "host", "nothing is lost, nothing is restarted", "apply")
    elif one.state in see.NEEDS_RESTART and not host_has(devices, one.need):
        hint = Hint("nvidia-modprobe -u -c=0" if "uvm" in one.need.path else "nvidia-modprobe -c=0", "host",
                    "the host's node is made first, then the container is restarted", "apply")
    elif one.state in (see.OTHER, see.MODE):
        hint = Hint("hosttune doctor --ct " + config.id, "host", "no rule is missing: the doctor says whether the host's own "
                    "node has the same fault, and what mends it", "look")
    elif one.state in see.NEEDS_RESTART and pending:
        says, hint = "a restart is pending: " + says, pending.hint
    status = ERROR if one.detail.startswith(NOT_TRIED) else SKIP if because else FAIL
    return finding(_IDS[one.state], status, one.need.path, "%s (%s): %s" % (one.need.path, one.need.numbers, says),
                   have=one.detail or one.state, want="opens", hint=hint, proof=PROVED, because=because, machine=config.subject)


def _cause(config: Config, one: see.Inside) -> Tuple[str, ...]:
    """What is told of the config already, and explains a denial: the rule that it lacks."""
    if one.state != see.DENIED:
        return ()
    have = entries(config.document, config.document.judged)
    return () if have.opens(one.need.path, one.need.major, one.need.minor) else (STEP,)


def _alike(found: List[Finding]) -> List[Finding]:
    """Nodes with one and the same fault and one way out are one cause: the first tells the others."""
    out: List[Finding] = []
    for f in found:
        same = [g for g in found if g.status == FAIL == f.status and (g.id, g.hint) == (f.id, f.hint)
                and (g.have == f.have or f.id != _IDS[see.OTHER])]
        if len(same) < 2 or not f.hint.command:
            out.append(f)
        elif f is same[0]:
            names = ", ".join(g.subject.rpartition("/")[2] for g in same[1:])
            more = "%s; so %s %d more: %s" % (f.summary, "is" if len(same) == 2 else "are", len(same) - 1, names)
            out.append(replace(f, summary=more))
        else:
            out.append(replace(f, status=SKIP, because=(f.id,)))
    return out
