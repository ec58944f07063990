# SPDX-License-Identifier: Apache-2.0
"""Run probes in the order of their needs and keep one cause in place of ten symptoms."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from ..catalogue import finding
from ..model import ERROR, FAIL, SKIP, Finding, Probe


def diagnose(machines: Mapping[str, Any], probes: Sequence[Probe]) -> List[Finding]:
    """Findings of all probes over what is known of each machine ("host", "ct:200").

    A failure of a probe whose `needs` failed on the same machine, or on the host below it, is a symptom: it becomes a
    skip that names its causes. A probe that raises is one HT903 error, never a missing line. Order: causes first.
    """
    found: List[Finding] = []
    failed: Dict[str, Set[Tuple[str, str]]] = {}
    for probe in in_order(probes):
        try:
            results = probe.run(machines)
        except Exception:  # a defect of a probe must not hide what the others saw
            results = [result for key in machines or ("host",) for result in _alone(probe, machines, key)]
        for result in results:
            causes = {
                cause
                for need in probe.needs
                for machine, cause in failed.get(need, ())
                if machine in (result.machine, "host")
            }
            if result.status == FAIL and not result.because and causes:
                result = dataclasses.replace(result, status=SKIP, because=tuple(sorted(causes)))
            for cause in (result.id,) if result.status == FAIL else result.because:
                failed.setdefault(probe.name, set()).add((result.machine, cause))
            found.append(result)
    return found


def _alone(probe: Probe, machines: Mapping[str, Any], key: str) -> List[Finding]:
    """A probe on one machine (a container with its host), when it broke on all of them: one strange answer must not keep
    the others from being judged."""
    some = {name: machine for name, machine in machines.items() if name in (key, "host")}
    try:
        return [result for result in probe.run(some) if result.machine == key or len(machines) == 1]
    except Exception as e:
        text = "the %s probe broke: %s: %s" % (probe.name, type(e).__name__, e)
        return [finding("HT903", ERROR, probe.name, text, machine=key)]


def in_order(probes: Sequence[Probe]) -> List[Probe]:
    """Every probe after those it needs, else as given. ValueError for a need that is not there, or for a circle."""
    known = {probe.name for probe in probes}
    done: List[Probe] = []
    waiting = list(probes)
    for probe in probes:
        if not known.issuperset(probe.needs):
            raise ValueError("probe %s needs %s" % (probe.name, ", ".join(set(probe.needs) - known)))
    while waiting:
        names = {probe.name for probe in done}
        ready = next((probe for probe in waiting if names.issuperset(probe.needs)), None)
        if ready is None:
            raise ValueError("probes need each other in a circle: %s" % ", ".join(p.name for p in waiting))
        waiting.remove(ready)
        done.append(ready)
    return done
