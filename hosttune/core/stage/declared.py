# SPDX-License-Identifier: Apache-2.0
"""A profile's models: into memory, and before the eyes of the containers whose engines use them. What `hosttune stage add`
and the Ansible module both call."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Mapping, Optional, Sequence, Tuple

from ..door.host import Host
from ..lxc import models as in_container
from ..lxc import outlook, sync
from ..model import FAIL, Finding, Refused, Report
from ..wanted.profile import Container, Profile
from . import add, drafter, engines, manifest, nodes, pages, source, space, status
from .pace import Pace
from .plan import Fetch, Wanted
from .progress import Told

NOW, LATER = HASHED = ("now", "later")
"""When a copy is hashed: on its way, or by `stage verify`."""


def sources(profile: Profile) -> Dict[str, str]:
    """Name -> source of every declared model."""
    return {name: str(row["source"]) for name, row in profile.models.items()}


def source_of(host: Host, profile: Profile, name: str) -> str:
    """Where a model comes from: the profile, else what it was staged from before. Refused when neither says."""
    declared = sources(profile)
    if name in declared:
        return declared[name]
    staged = manifest.load(host, manifest.check_name(name)) or manifest.record(host, name)
    if staged is None or not staged.source:
        raise Refused("the profile declares no model %s" % name, "models",
                      "known: %s; or name a directory: hosttune stage add %s --source DIR" % (
                          ", ".join(sorted(declared)) or "none", name))
    return staged.source


def containers_of(profile: Profile, name: str) -> Tuple[str, ...]:
    """Containers with an engine that uses this model (NAME, or NAME/FILE for one file of it)."""
    rows = [row for row in profile.engines.values() if str(row.get("model", "")).split("/")[0] == name]
    found = [str(row.get("in", "host")) for row in rows]
    return tuple(sorted({place[len("ct:"):] for place in found if place.startswith("ct:")}))


def targets_of(profile: Profile, ct_id: str) -> Tuple[str, ...]:
    """Where a container shall see the models: as each model that its engines use is declared."""
    found = {str(row.get("inside", in_container.TARGET)) for name, row in profile.models.items()
             if ct_id in containers_of(profile, name)}  # fmt: skip
    return tuple(sorted(found, reverse=True)) or (in_container.TARGET,)


def caches_of(profile: Profile, name: str, caches: Sequence[str] = ()) -> Tuple[str, ...]:
    """Where hf: of this model is looked for: in the cache that the profile names, else in these."""
    own = str(profile.models.get(name, {}).get("cache", ""))
    return (own,) if own else tuple(caches)


def wanted(host: Host, profile: Profile, name: str, spec: str = "", caches: Sequence[str] = (), evict: bool = False,
           fetch: Optional[Fetch] = None, pace: Optional[Pace] = None, when: Optional[str] = None) -> Wanted:
    """One model as the profile declares it; spec, pace and when (NOW or LATER) in place of what that says. Refused when neither
    says where it comes from."""
    row = profile.models.get(name, {})
    need, taken = engines.memory(host, profile)
    hashed = (when or str(row.get("hash", NOW))) == NOW
    return Wanted(name, spec or source_of(host, profile, name), caches_of(profile, name, caches),
                  str(row.get("placement", nodes.INTERLEAVE)),
                  _others(host, profile, name, caches), need, evict, frozenset(profile.models), fetch,
                  pace or pace_of(profile, name), hashed, taken)  # fmt: skip


def pace_of(profile: Profile, name: str, limit: Optional[float] = None, nice: Optional[int] = None) -> Pace:
    """How hard the copy of a model may work: bytes a second and nice level, where None is given as the profile says."""
    row = profile.models.get(name, {})
    said = str(row.get("limit", ""))
    return Pace((space.rate_of(said) if said else 0.0) if limit is None else limit,
                int(row.get("nice", "0")) if nice is None else nice)  # fmt: skip


def bring(host: Host, profile: Profile, name: str, spec: str = "", caches: Sequence[str] = (), restart: Optional[str] = None,
          dry_run: bool = False, told: Told = lambda progress: None, threads: int = 0, evict: bool = False,
          fetch: Optional[Fetch] = None, pace: Optional[Pace] = None, when: Optional[str] = None) -> Report:
    """Stage one model, then show it to its containers. restart: over the policy of each container. evict: others may go for it.
    fetch: brings what the cache lacks from the hub. pace: how hard the copy may work. when it is hashed: NOW or LATER. For None
    the profile says.

    Raises Refused and OSError before anything is written. A container that is refused keeps no model from being staged.
    """
    report = add.add(host, wanted(host, profile, name, spec, caches, evict, fetch, pace, when), dry_run, told, threads)
    if any(f.status == FAIL for f in report.findings) and not dry_run:
        return report
    report = replace(report, findings=report.findings + drafter.judge(host, profile, name))
    for ct_id in containers_of(profile, name):
        policy = restart or profile.containers.get(ct_id, Container()).restart
        try:
            serves = outlook.serves(profile.engines, ct_id)
            seen = in_container.show(host, ct_id, policy, dry_run, targets_of(profile, ct_id), serves)
        except Refused as e:
            report = replace(report, findings=report.findings + (sync.refused(ct_id, e),))
            continue
        report = replace(report, findings=report.findings + seen.findings, steps=report.steps + seen.steps,
                         actions=report.actions + seen.actions, effects=tuple(host.effects),
                         changed=report.changed or seen.changed)
    return report


def _others(host: Host, profile: Profile, name: str, caches: Sequence[str]) -> int:
    """Bytes of the other declared models, as far as their sources can be seen: the mount is made for them too."""
    total = 0
    for other, spec in sources(profile).items():
        if other != name:
            try:
                staged, where = manifest.load(host, other), caches_of(profile, other, caches)
                size = staged.size if staged and staged.source == spec else source.read(host, spec, where).size
                total += size * len(nodes.copies(host, other, str(profile.models[other].get("placement", nodes.INTERLEAVE))))
            except (Refused, OSError):
                continue  # told when it is its turn
    return total


def overview(host: Host, profile: Profile, caches: Sequence[str] = (), look: pages.Look = pages.unseen) -> Report:
    """`hosttune stage status`: models, the tmpfs, where pages lie, and what the containers of the profile's engines see."""
    report = status.status(host, [wanted(host, profile, name, "", caches) for name in profile.models], look)
    findings, seen = [*report.findings, *drafter.judge(host, profile)], set()
    for name in profile.models:
        for ct_id in containers_of(profile, name):
            if ct_id not in seen:
                seen.add(ct_id)
                findings += _in_container(host, ct_id, targets_of(profile, ct_id))
    return replace(report, findings=tuple(findings))


def _in_container(host: Host, ct_id: str, targets: Sequence[str]) -> Tuple[Finding, ...]:
    try:
        return in_container.look(host, ct_id, targets).findings
    except Refused as e:
        return (sync.refused(ct_id, e),)


def all_of(profile: Profile, names: Sequence[str]) -> Mapping[str, str]:
    """Those of the declared models that are named; all of them if none is. Refused for an unknown one."""
    declared = sources(profile)
    unknown = [name for name in names if name not in declared]
    if unknown:
        known = ", ".join(sorted(declared)) or "none"
        raise Refused("the profile declares no model %s (known: %s)" % (unknown[0], known), "models")
    return {name: declared[name] for name in (names or declared)}
