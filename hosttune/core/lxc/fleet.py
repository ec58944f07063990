# SPDX-License-Identifier: Apache-2.0
"""Several containers of one host: its devices are looked at once, and one that is refused does not keep the others back."""

from __future__ import annotations

from typing import Callable, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..door.host import Host, errname
from ..machine.devices import DeviceTable
from ..model import Action, Refused, Report
from . import restart, see, store, sync
from .entries import entries
from .needs import Wanted
from .patience import Patience


class Order(NamedTuple):
    """What is wanted of one container. wanted: asked when its turn comes; what it refuses is that container's finding."""

    wanted: Callable[[], Wanted]
    restart: str = sync.NEVER


def sync_each(host: Host, orders: Mapping[str, Order], dry_run: bool = False, prove: Optional[sync.Prove] = None,
              quorum: Optional[Patience] = None, devices: Optional[DeviceTable] = None) -> List[Report]:
    """A report for each container, in order. devices: those of the host, where they were looked at already. Raises OSError
    only where they cannot be read."""
    devices = see.device_table_of(host) if orders and devices is None else devices
    out = []
    for ct_id, order in orders.items():
        try:
            out.append(sync.sync(host, ct_id, order.wanted(), order.restart, dry_run, devices, prove, quorum))
        except Refused as e:
            out.append(Report("lxc sync", findings=(sync.refused(ct_id, e),)))
        except OSError as e:
            where = Refused("%s: %s" % (errname(e), e.strerror or e), str(e.filename or ""), "run it as root: sudo hosttune ...")
            out.append(Report("lxc sync", findings=(sync.refused(ct_id, where),)))
    return out


def merged(reports: Sequence[Report], command: str, machine: str, mode: str) -> Report:
    """One report of several."""
    facts = {"restore": "\n".join(r.facts["restore"] for r in reports if r.facts.get("restore"))}
    findings = tuple(f for r in reports for f in r.findings)
    steps, actions = tuple(s for r in reports for s in r.steps), tuple(a for r in reports for a in r.actions)
    return Report(command, machine, facts, findings, steps, actions, _effects(reports), any(r.changed for r in reports), mode)


def _effects(reports: Sequence[Report]) -> Tuple[Mapping[str, object], ...]:
    """The door's own log is one for all: the longest telling of it is the whole."""
    return max((r.effects for r in reports), key=len, default=())


def may(action: Action, policy: str) -> bool:
    """Whether the policy (never, idle, always) lets an action be."""
    return action.name != restart.NAME or policy == sync.ALWAYS or (policy == sync.IDLE and not action.destroys)


def every(host: Host, table: DeviceTable, declared: Iterable[str]) -> Tuple[str, ...]:
    """The containers that are declared, then those of this host that have anything of NVIDIA's besides."""
    return tuple(dict.fromkeys((*declared, *with_gpus(host, table))))


def with_gpus(host: Host, table: DeviceTable) -> Tuple[str, ...]:
    """The containers of this host whose config has anything of NVIDIA's. table: the host's devices."""
    out = []
    for ct_id in store.known_ids(host):
        try:
            document = store.find(host, ct_id, table.pve_container or ()).document
        except (OSError, Refused):
            out.append(ct_id)  # not to be passed over in silence: its turn will tell why
            continue
        have = entries(document, document.judged)
        if have.nvidia_paths or have.hook or have.nvidia_rules(table) or have.nvidia_rules(table, dead=True):
            out.append(ct_id)
    return tuple(out)
