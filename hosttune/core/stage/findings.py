# SPDX-License-Identifier: Apache-2.0
"""What is said of one model: in memory and whole, missing, damaged, too large, of a source that is none."""

from __future__ import annotations

import errno
import shlex
from dataclasses import replace
from typing import List, Mapping

from ..catalogue import finding
from ..door.host import Host, read_or_none
from ..model import ERROR, FAIL, OK, WARN, Finding, Hint, Refused
from . import begun, manifest, space
from .later import Origins
from .manifest import Manifest, Record
from .plan import Plan
from .source import NotWhole

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def well(seen: Plan) -> List[Finding]:
    """HT501: it is in memory and whole; HT512 if nobody has hashed it yet; HT508 for each doubt."""
    words = "%d files, %s" % (len(seen.source.files), space.size_text(seen.source.size))
    at = manifest.folder_of(seen.name)
    bound = " on NUMA node %s" % seen.node if seen.node else ""
    return [finding("HT501", OK, seen.name, "%s in memory%s at %s" % (words, bound, at), have=words),
            *(unverified(seen.staged) if seen.staged else ()), *doubts(seen)]  # fmt: skip


def unverified(have: Manifest) -> List[Finding]:
    """HT512: it was copied and not hashed."""
    if not have.unhashed:
        return []
    size = space.size_text(sum(file.size for file in have.unhashed))
    words = "%s is whole by names and sizes, and not verified yet: %s were copied and not hashed" % (have.name, size)
    hint = Hint(verify_command(have), "host", "reads every byte, and the source of what has no known hash", "apply")
    return [finding("HT512", WARN, have.name, words, have="not verified", want="verified", hint=hint)]


def verify_command(have: Manifest) -> str:
    """What reads it and compares digests."""
    return "hosttune stage verify %s" % have.name


def not_comparable(have: Manifest, given: Origins) -> Finding:
    """HT512: nothing tells whether what was copied without a hash is right. What has changed is copied again by the next run of
    add; what is gone has to come back, or all of it from elsewhere."""
    model, first = manifest.model_of(have.name), next(iter(given.lost))
    words = "%s cannot be verified: of %d of %d files nobody knows a hash, and %s" % (
        have.name, len(given.lost), len(have.files), given.lost[first])  # fmt: skip
    hint = Hint(add_command(have), "host", "copies what has changed again, hashed", "apply")
    if given.denied:
        hint = Hint("sudo " + verify_command(have), "host", "reads what root alone may", "apply")
    elif not given.changed:
        hint = Hint("hosttune stage drop %s && hosttune stage add %s --source DIR" % (model, model), "host",
                    "copies all of it again; or bring %s back, and verify again" % have.folder, "reconfigure")  # fmt: skip
    return finding("HT512", ERROR, have.name, words, have="not verified", want="verified", hint=hint,
                   evidence=tuple("%s: %s" % (manifest.shown(path), why) for path, why in list(given.lost.items())[:3]))


def not_noted(have: Manifest, why: str) -> Finding:
    """HT512: it was read and is well, and that could not be written down."""
    words = "%s is what was copied, all %d files of it, and %s" % (have.name, len(have.files), why)
    hint = Hint("sudo " + verify_command(have), "host", "reads it again", "apply")
    return finding("HT512", WARN, have.name, words, have="not noted", want="verified", hint=hint)


def doubts(seen: Plan) -> List[Finding]:
    """HT508: what is odd about the source, and may be right."""
    return [finding("HT508", WARN, seen.name, "%s: %s" % (seen.name, doubt.what), have=doubt.code,
                    evidence=(manifest.shown(doubt.where),)) for doubt in seen.doubts]


def missing(host: Host, seen: Plan) -> List[Finding]:
    """HT501, HT502 or HT509, with what is there."""
    hint = Hint(seen.command, "host", "%s of memory" % space.size_text(seen.need), "apply")
    have = "%d of %d files" % (len(seen.kept), len(seen.source.files))
    want = "%d files, %s" % (len(seen.source.files), space.size_text(seen.source.size))
    record = manifest.record(host, seen.name)
    there = seen.kept or seen.parts
    if not there and record and seen.staged is None:
        return [vanished(host, seen.name, record, hint), *doubts(seen)]
    what = "is not in memory" if not there else "is not whole in memory, or its source has changed since"
    if seen.staged and seen.staged.node != seen.node:
        what = "lies %s in memory, and shall lie %s" % (_where(seen.staged.node), _where(seen.node))
    id = "HT502" if there else "HT501"
    return [finding(id, FAIL, seen.name, "%s %s" % (seen.name, what), have=have, want=want, hint=hint), *doubts(seen)]


def _where(node: str) -> str:
    return "on NUMA node %s" % node if node else "over all nodes"


def vanished(host: Host, name: str, record: Record, hint: Hint) -> Finding:
    """HT501 after a reboot, which empties any tmpfs; HT509 when it went while the machine was up."""
    now = (read_or_none(host, BOOT_ID) or "").strip()
    if record.boot and record.boot != now:
        words = "%s is not in memory since the machine was started anew; staging it took %.0f s" % (name, record.seconds)
        return finding("HT501", FAIL, name, words, have="nothing", hint=hint)
    words = "%s was in memory and is gone, and the machine was not started anew: something emptied %s" % (name, manifest.MOUNT)
    return finding("HT509", FAIL, name, words, have="nothing", hint=hint, evidence=(manifest.record_path(name),))


def does_not_fit(seen: Plan) -> Finding:
    """HT503 with the sum, and what would make room."""
    name = seen.name
    if not seen.evictable:
        hint = Hint("hosttune stage status", "host", "shows what is in memory: hosttune stage drop MODEL makes room", "look")
        return finding("HT503", FAIL, name, "%s does not fit: %s" % (name, seen.too_much), hint=hint)
    lost = "; ".join("%s, %s" % (one.name, space.size_text(one.size)) for one in seen.evictable)
    hint = Hint(seen.command + " --evict", "host", "takes out of memory: %s" % lost, "apply")
    return finding("HT503", FAIL, name, "%s does not fit: %s" % (name, seen.too_much), hint=hint)


def failed(seen: Plan, e: Exception, files: int, parts: Mapping[str, begun.Chunks]) -> Finding:
    """A copy that did not end. files: how many are whole, and kept for the next run, as these parts of others are."""
    kept = "%d of %d files are whole and kept" % (files, len(seen.source.files))
    if parts:
        sizes = {file.path: file.size for file in seen.todo}
        size = sum(begun.size_of(sizes[path], chunks) for path, chunks in parts.items())
        kept += ", and %s of others" % space.size_text(size)
    again = seen.command
    if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.ENOMEM):
        at = str(e.filename or manifest.MOUNT)
        during = not at.startswith(manifest.partial_path(seen.name) + "/")  # it is our own note that found no room
        when = "was filled by somebody else during the copy" if during else "was full before the copy began"
        full = replace(seen, too_much="the tmpfs %s (%s); %s" % (when, e.strerror, kept))
        return replace(does_not_fit(full), evidence=(at,))
    if isinstance(e, Refused):
        return finding("HT506", FAIL, seen.name, "%s was not staged: %s; %s" % (seen.name, e.what, kept),
                       hint=Hint(again, "host", "", "apply"), evidence=(manifest.shown(e.where), e.way_out))
    said = getattr(e, "strerror", None) or str(e)
    return finding("HT502", FAIL, seen.name, "%s was not staged: %s; %s" % (seen.name, said, kept),
                   hint=Hint(again, "host", "", "apply"), evidence=(str(getattr(e, "filename", "") or ""),))


def refused(name: str, e: Exception) -> Finding:
    """A model that could not even be planned, as a finding, where several are gone through. have: the rule that it breaks."""
    if isinstance(e, Refused):
        return finding("HT506", FAIL, name, "%s: %s" % (name, e.what), hint=Hint(e.way_out, "host", "", "reconfigure"),
                       have=e.code if isinstance(e, NotWhole) else "", evidence=(e.where,) if e.where else ())
    said = "%s: %s" % (getattr(e, "filename", "") or name, getattr(e, "strerror", "") or e)
    return finding("HT506", FAIL, name, "%s could not be looked at: %s" % (name, said))


def add_command(have: Manifest) -> str:
    """What stages it again from where it came from."""
    return "hosttune stage add %s --source %s" % (manifest.model_of(have.name), shlex.quote(have.source))


def bring_back(host: Host, name: str) -> str:
    """What stages a model again that no profile declares and that is gone. DIR where nobody noted its source."""
    record = manifest.record(host, name)
    source = shlex.quote(record.source) if record and record.source else "DIR"
    return "hosttune stage add %s --source %s" % (manifest.model_of(name), source)


def damaged(have: Manifest, wrong: List[str]) -> Finding:
    """HT502 by names, sizes and times."""
    count = "%d of %d files are wrong" % (len(wrong), len(have.files))
    return finding("HT502", FAIL, have.name, "%s is not whole: %s" % (have.name, count), have=wrong[0],
                   want="as in %s" % manifest.manifest_path(have.name), evidence=tuple(wrong[:3]),
                   hint=Hint(add_command(have), "host", "copies what is wrong again", "apply"))
