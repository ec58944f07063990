# SPDX-License-Identifier: Apache-2.0
"""What a doctor does, wherever it stands: examine makes a recording, judge reads it.

The same two steps serve a local run, a run over ssh and a replayed bug report, so that whatever a person sees live can
be seen again from one file.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..catalogue import finding
from ..door.host import Host
from ..lxc import inside, store
from ..model import ERROR, WARN, Finding, Hint, Refused
from ..probes import PROBES
from ..recording.record import RecordingHost
from ..recording.replay import ReplayHost, load
from ..recording.shape import SCHEMA, answer_of, refuse_bad
from .diagnose import diagnose
from .survey import Declared, Machine, survey

Gpus = Mapping[str, Optional[int]]
"""{container id: how many GPUs it is declared to have, None if nothing is said}."""


def examine(host: Host, containers: Optional[Gpus] = None, declared: Optional[Declared] = None) -> Dict[str, Any]:
    """A recording of this machine ("host"; from inside a container it is that container) and of its named containers.

    A container that cannot be asked stands in it as {"absent": {id, what, way_out}}: what the host sees of it still counts.
    """
    containers, declared = containers or {}, declared or Declared()
    asked = {ct_id: _inside(host, ct_id, replace(declared, gpus=gpus)) for ct_id, gpus in containers.items()}
    # A container without a Python that answers is looked at from here, through its mounts and its device cgroup.
    outside = tuple(ct_id for ct_id, view in asked.items() if view.get("absent", {}).get("id") in ("HT903", "HT904"))
    here = replace(declared, container_ids=tuple(containers), outside=outside)
    recorder = RecordingHost(host)
    survey(recorder, here)
    machines: Dict[str, Any] = {"host": dict(recorder.view, declared=asdict(here))}
    machines.update(("ct:" + ct_id, view) for ct_id, view in asked.items())
    return {"schema": SCHEMA, "machines": machines}


def _inside(host: Host, ct_id: str, declared: Declared) -> Dict[str, Any]:
    config = store.find(host, ct_id)  # Refused for one that is not here: nothing can be said of it
    try:
        view = inside.ask(host, ct_id, {"op": "survey", "declared": asdict(declared)}, declared.timeout * 4)
        try:
            return dict(answer_of(view, "its answer"), declared=asdict(declared))
        except Refused as e:
            raise Refused("%s: %s" % (e.where, e.what), "ct:" + ct_id, "hosttune doctor inside the container") from None
    except inside.NoPython as e:
        return {"absent": {"id": "HT904", "what": e.what, "way_out": e.way_out}}
    except Refused as e:
        if "RUNNING" in host.run(["lxc-info", *config.tool_options, "-s", "-H"]).out:
            return {"absent": {"id": "HT903", "what": e.what, "way_out": e.way_out}}
        start = "pct start " if config.path.startswith(store.PVE_FOLDER) else "lxc-start -n "
        return {"absent": {"id": "HT430", "what": "the container does not run", "way_out": start + ct_id}}


def survey_here(host: Host, declared: Mapping[str, Any]) -> Dict[str, Any]:
    """One machine of a recording: what the core does when it is sent into a container."""
    recorder = RecordingHost(host)
    wanted = declared_of(declared)
    survey(recorder, wanted)
    return dict(recorder.view, declared=asdict(wanted))


def declared_of(plain: Mapping[str, Any]) -> Declared:
    """A Declared of plain data; unknown keys are left out (a recording may come from another version)."""
    kept = {k: v for k, v in plain.items() if k in Declared.__dataclass_fields__}
    for name in ("container_ids", "outside"):
        kept[name] = tuple(kept.get(name, ()))
    return Declared(**kept)


def judge(
    recording: Mapping[str, Any], base: Callable[[str], Mapping[str, Any]]
) -> Tuple[Dict[str, Machine], List[Finding]]:
    """What is known of each machine of a recording, and what is wrong. `base(name)` gives a shipped machine.

    Causes that were found stand even when answers are missing: those are folded into one HT902.
    """
    present = {k: m for k, m in refuse_bad(recording).items() if "absent" not in m}
    hosts = load(dict(recording, machines=present), base) if present else {}
    ids = tuple(k[len("ct:") :] for k in recording.get("machines", {}) if k.startswith("ct:"))
    machines = {key: survey(host, _declared(key, host, ids), key) for key, host in hosts.items()}
    machines = {key: _of_one_kernel(machine, machines.get("host")) for key, machine in machines.items()}
    findings = diagnose(machines, PROBES)
    findings += [_absent(key, m["absent"]) for key, m in recording["machines"].items() if key not in present]
    missing = sorted({question for host in hosts.values() for question in host.unrecorded})
    if missing:
        more = ", ..." if len(missing) > 3 else ""
        findings.append(
            finding(
                "HT902",
                WARN,
                "recording",
                "%d questions have no answer in it: %s%s" % (len(missing), ", ".join(missing[:3]), more),
            )
        )
    return machines, findings


def _of_one_kernel(machine: Machine, host: Optional[Machine]) -> Machine:
    """A container with its host's device numbers: they are not namespaced, and commands are made of them that open
    devices. A container that claims that nvidia-uvm has the number of a disk would be given the disk."""
    if host is None or host is machine or host.majors is None or not machine.key.startswith("ct:"):
        return machine
    return replace(machine, majors=host.majors, owners=host.owners)


def _declared(key: str, host: ReplayHost, ids: Sequence[str]) -> Declared:
    declared = declared_of(host.view.get("declared", {}))
    if key == "host" and not declared.container_ids:
        return replace(declared, container_ids=tuple(ids))
    return declared


def _absent(key: str, why: Mapping[str, Any]) -> Finding:
    return finding(
        str(why["id"]), ERROR, key, str(why["what"]), machine=key, hint=Hint(str(why.get("way_out", "")), "host")
    )
