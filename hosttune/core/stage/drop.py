# SPDX-License-Identifier: Apache-2.0
"""hosttune stage drop: a model out of memory, its manifest first, so that nobody trusts what is going away."""

from __future__ import annotations

from ..door.host import Host, digest
from ..model import Action, Refused, Report
from . import copy, manifest, tmpfs, use


def drop(host: Host, name: str, force: bool = False, dry_run: bool = False) -> Report:
    """Remove a model, all its copies, whole or half. Refused while somebody has it mapped, unless forced."""
    here = tmpfs.see(host)
    manifest.check_name(manifest.model_of(name))
    names = [one for one in manifest.names(host) if one == name or manifest.model_of(one) == name]
    if not names and manifest.record(host, name):
        names = [name]  # it is gone already, and now its owner says that he knows
    if not names:
        others = ", ".join(manifest.names(host)) or "none"
        raise Refused("%s is not staged" % name, manifest.MOUNT, "staged: %s" % others)
    used = [user for one in names for user in use.users(host, here, one)]
    if used and not force:
        raise Refused("%s is in use by %s" % (name, use.words(used)), manifest.folder_of(name),
                      "stop the engine first; with --force its memory stays taken until that process ends")
    todo = tuple(Action("drop", one, ("hosttune", "stage", "drop", one), "it was asked for",
                        ("the copy of %s in memory" % one,)) for one in names)
    if not dry_run:
        if host.who().uid != 0:
            raise Refused("root is needed to drop a model", manifest.MOUNT, "sudo hosttune stage drop %s" % name)
        with host.lock(manifest.LOCK):
            for one in names:
                remove(host, one)
    return Report("stage drop", host.uname()[0], {"model": name}, (), (), todo, tuple(host.effects), not dry_run,
                  "plan" if dry_run else "apply")


def remove(host: Host, name: str) -> None:
    """One copy: its manifest, its files, and the note that it was there. Under the lock."""
    was, record = manifest.raw(host, name), manifest.bytes_of(host, manifest.record_path(name))
    if record is not None:
        host.remove(manifest.record_path(name), digest(record))
    if was is not None:
        host.remove(manifest.manifest_path(name), digest(was))
    for path in (manifest.folder_of(name), manifest.chunks_path(name), manifest.partial_path(name), manifest.done_path(name)):
        if manifest.exists(host, path):
            copy.remove(path)
            host.effects.append({"effect": "drop", "target": path})
