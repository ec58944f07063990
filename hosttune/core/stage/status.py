# SPDX-License-Identifier: Apache-2.0
"""hosttune stage status: what is in memory, whether it is whole, where its pages lie, and the room that is left."""

from __future__ import annotations

from dataclasses import replace
from typing import AbstractSet, Dict, List, Sequence

from ..catalogue import finding
from ..door.host import Host, list_or_empty
from ..model import FAIL, OK, SKIP, WARN, Action, Finding, Hint, Refused, Report
from . import findings, manifest, nodes, pages, plan, space, tmpfs, use
from .pages import Look
from .plan import Wanted
from .tmpfs import Place


def status(host: Host, declared: Sequence[Wanted], look: Look = pages.unseen) -> Report:
    """Every declared model and every other one that is staged; the tmpfs; the room that is left.

    Reads names, sizes, times and manifests, no weights. look: tells where a staged model's pages lie (pages.py). Raises
    Refused when the place is not hosttune's, and OSError.
    """
    here = tmpfs.see(host)
    names = [wanted.name for wanted in declared] or [manifest.model_of(name) for name in manifest.names(host)]
    found = _place(here, names)
    actions: List[Action] = []
    known = set()
    for wanted in declared:
        try:
            for copy in nodes.copies(host, wanted.name, wanted.placement):
                known.add(copy.name)
                seen = plan.plan(host, wanted, copy)
                if seen.too_much:
                    found.append(findings.does_not_fit(seen))
                elif seen.done:
                    found += findings.well(seen) + pages.judge(copy, look(copy.name), seen.command, bool(here.huge))
                else:
                    found += [_staging_now(host, copy.name, one) for one in findings.missing(host, seen)]
                    actions += [one for one in plan.actions(seen) if one not in actions]  # one mount for all
        except (Refused, OSError) as e:
            found.append(findings.refused(wanted.name, e))
            known.add(wanted.name)
    there = manifest.names(host)
    for name in there:
        if name not in known:
            found += _staged(host, name, look, bool(here.huge))
    found += _gone(host, known.union(there))
    facts = _facts(host, here, *next(((wanted.engines, wanted.taken) for wanted in declared), (0, 0)))
    return Report("stage status", host.uname()[0], facts, tuple(found), (), tuple(actions), mode="plan")


def _gone(host: Host, known: AbstractSet[str]) -> List[Finding]:
    """Models that were in memory, are not any more, and that nobody declares: no boot and no playbook brings them back."""
    try:
        names = [entry[: -len(".json")] for entry in list_or_empty(host, manifest.RECORDS) if entry.endswith(".json")]
    except OSError:  # it is root's
        return []
    out = []
    for name in names:
        record = manifest.record(host, name) if name not in known and manifest.model_of(name) == name else None
        if record:
            hint = Hint(findings.bring_back(host, name), "host",
                        "or hosttune stage drop %s, which forgets it" % name, "apply")  # fmt: skip
            out.append(replace(findings.vanished(host, name, record, hint), status=WARN))
    return out


def _facts(host: Host, here: Place, engines: int, taken: int) -> Dict[str, str]:
    now = replace(space.memory(host), engines=engines, taken=taken)
    out = {"room": space.size_text(now.room), "memory": now.words.replace("memory has ", "", 1), "mount": "none"}
    there = nodes.with_memory(host)
    for node in there if len(there) > 1 else ():
        out["node %d" % node] = "room for %s" % space.size_text(nodes.room(host, str(node)))
    if here.mounted:
        out["mount"] = "%s of %s used (%s)" % (space.size_text(here.mounted.used), space.size_text(here.mounted.size),
                                               ",".join(here.mounted.options))
    return out


def _place(here: Place, names: Sequence[str]) -> List[Finding]:
    """names: the models that are declared, else those that are there: the first of them, brought again, mounts it."""
    again = "hosttune stage add %s" % (names[0] if names else "MODEL")
    if here.mounted is None:
        if not names:
            return []
        return [finding(tmpfs.FINDING, FAIL, manifest.MOUNT, "no tmpfs of hosttune is mounted at %s" % manifest.MOUNT,
                        have="not mounted", want="a tmpfs", hint=Hint(again, "host", "makes it", "apply"))]
    out = []
    if here.systemd and here.unit is None:
        out.append(finding(tmpfs.FINDING, WARN, manifest.MOUNT, "the tmpfs would not be there after a reboot: no %s" % tmpfs.UNIT,
                           hint=Hint(again, "host", "nothing is copied again", "apply")))
    else:
        out.append(finding(tmpfs.FINDING, OK, manifest.MOUNT, "the tmpfs of hosttune is mounted"))
    return out + [_huge(here)]


def _huge(here: Place) -> Finding:
    have = here.mounted.option("huge") if here.mounted else ""
    what = "the tmpfs for models"
    if not here.huge:
        return finding("HT504", SKIP, manifest.MOUNT, "this kernel has no huge pages for shared memory")
    if here.huge == "deny":
        return finding("HT504", WARN, manifest.MOUNT, "%s gets small pages: %s is deny" % (what, tmpfs.THP), have="deny",
                       hint=Hint("echo never > %s" % tmpfs.THP, "host", "then hosttune stage drop and add each model", "apply"))
    if have in ("within_size", "always"):
        return finding("HT504", OK, manifest.MOUNT, "%s has huge pages (%s)" % (what, have), have=have, want="within_size")
    command = "mount -o remount,nosuid,nodev,noexec,huge=within_size %s" % manifest.MOUNT
    hint = Hint(command, "host", "counts for what is staged from then on: drop and add each model", "apply")
    return finding("HT504", WARN, manifest.MOUNT, "%s has small pages: huge=%s" % (what, have or "never"), have=have or "never",
                   want="within_size", hint=hint)


def _staging_now(host: Host, name: str, one: Finding) -> Finding:
    """The same, with who is at work on a model that is there in part."""
    now = use.stagers(host) if one.status == FAIL and manifest.exists(host, manifest.partial_path(name)) else []
    return replace(one, evidence=(*one.evidence, "%s stages models now" % use.words(now))) if now else one


def _staged(host: Host, name: str, look: Look, huge: bool) -> List[Finding]:
    """A model by its manifest alone: its source is not declared here."""
    try:
        have = manifest.load(host, name)
    except Refused as e:
        return [finding("HT502", FAIL, name, "%s has no manifest: %s" % (name, e.what), hint=Hint(e.way_out, "host", "", "apply"),
                        evidence=(e.where,))]
    if have is None:
        now = use.stagers(host)
        if now:
            return [finding("HT502", WARN, name, "%s is copied in part: %s stages models now" % (name, use.words(now)))]
        costs = "frees its memory; stage add of the same source would go on with it"
        return [finding("HT502", WARN, name, "%s was copied in part, and no run goes on with it" % name,
                        hint=Hint("hosttune stage drop %s" % name, "host", costs, "apply"))]
    wrong = manifest.damage(host, manifest.folder_of(name), have.files)
    words = "%d files, %s" % (len(have.files), space.size_text(have.size))
    if wrong:
        return [findings.damaged(have, wrong)]
    well = finding("HT501", OK, name, "%s in memory, from %s" % (words, have.source), have=words)
    lies = pages.judge(nodes.Copy(name, have.node), look(name), findings.add_command(have), huge)
    return [well, *findings.unverified(have), *lies]
