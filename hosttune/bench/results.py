# SPDX-License-Identifier: Apache-2.0
"""A directory of results: plan.json says whose it is, one file for each configuration. Whole files only, whenever it was killed.

What is done is decided by what a file says, never by its being there. An invalid result has reasons and no figures.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.model import Refused
from .plan import Configuration, Plan

SCHEMA = "hosttune.bench-result/1"
MANIFEST_SCHEMA = "hosttune.bench/1"
MANIFEST = "plan.json"
LOCK = ".lock"
TEMPORARY = ".writing-"
VALID, INVALID = "valid", "invalid"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Results:
    """The results of one plan and model, held by one process at a time (see `opened`)."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest

    def status(self, configuration: Configuration) -> str:
        """valid, invalid, or "" when it has not been measured. Refused for a file that is no result of this plan."""
        found = self.read(configuration.key)
        return "" if found is None else str(found["status"])

    def read(self, key: str) -> dict[str, Any] | None:
        """The result of a configuration by its key, None without one. Refused for what is no result of this plan."""
        path = self.folder / (key + ".json")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            raise _foreign(path, getattr(e, "strerror", "") or "it is not JSON")
        wrong = _wrong(found, key, str(self.manifest["digest"]))
        if wrong:
            raise _foreign(path, wrong)
        return dict(found)

    def write(self, configuration: Configuration, result: Mapping[str, Any]) -> Path:
        """Put a result in its place. An invalid one that was there is kept beside it, under a number."""
        path = self.folder / (configuration.key + ".json")
        wrong = _wrong(result, configuration.key, str(self.manifest["digest"]))
        if wrong:
            raise ValueError(wrong)
        if path.exists():
            with _saying(path):
                _keep(path)
        _replace(path, result)
        return path


@contextlib.contextmanager
def opened(folder: Path, plan: Plan, model: str) -> Iterator[Results]:
    """The directory, made if it is not there, locked against a second run. Refused if it belongs to another plan or model."""
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "digest": plan.digest,
        "model": model,
        "plan": plan.as_dict(),
    }
    with _saying(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused("another run is writing here", str(folder), "wait for it, or name another: --results DIR")
        with _saying(folder):
            there = _manifest(folder)
            if there is None:
                others = [entry.name for entry in folder.iterdir() if not entry.name.startswith((LOCK, TEMPORARY))]
                if others:
                    raise Refused(
                        "there are files in it and no %s" % MANIFEST, str(folder), "name an empty one: --results DIR"
                    )
                _replace(folder / MANIFEST, manifest)
            else:
                _refuse_other(there, manifest, folder)
            for left in folder.glob(TEMPORARY + "*"):  # of a run that was killed; the lock says that none is writing
                left.unlink()
        yield Results(folder, manifest)
    finally:
        os.close(lock)


def existing(folder: Path) -> Results:
    """The results in a directory, to be read. Refused when there are none."""
    with _saying(folder):
        there = _manifest(folder)
    if there is None:
        raise Refused("there are no results here", str(folder), "hosttune bench run PLAN --results %s" % folder)
    return Results(folder, there)


def same_plan(folder: Path, plan: Plan) -> Results:
    """As `existing`, and Refused when they are of another plan."""
    results = existing(folder)
    _refuse_other(results.manifest, {**results.manifest, "digest": plan.digest, "plan": plan.as_dict()}, folder)
    return results


def _manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise _foreign(path, "it is not JSON")
    if not isinstance(found, dict) or found.get("schema") != MANIFEST_SCHEMA or "digest" not in found:
        raise _foreign(path, "it is not of schema %s" % MANIFEST_SCHEMA)
    return found


def _refuse_other(there: Mapping[str, Any], mine: Mapping[str, Any], folder: Path) -> None:
    way_out = "name another directory: --results DIR"
    if there["digest"] != mine["digest"]:
        old, new = there.get("plan") or {}, mine["plan"]
        keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        what = "it holds results of another plan, which differs in: %s" % (", ".join(keys) or "its digest")
        raise Refused(what, str(folder), way_out)
    if there.get("model") != mine["model"]:
        raise Refused(
            "it holds results of the model %s, this is %s" % (there.get("model"), mine["model"]), str(folder), way_out
        )


def _foreign(path: Path, why: str) -> Refused:
    return Refused(
        "this is no result of this plan: %s" % why, str(path), "look at it, then move it away: mv %s{,.odd}" % path
    )


def _wrong(found: Any, key: str, digest: str) -> str:
    if not isinstance(found, Mapping) or found.get("schema") != SCHEMA:
        return "it is not of schema %s" % SCHEMA
    if found.get("key") != key:
        return "it is of configuration %s" % found.get("key")
    if found.get("plan_digest") != digest:
        return "it is of another plan"
    if found.get("status") == VALID:
        return (
            "" if found.get("figures") and not found.get("reasons") else "it is valid without figures, or with reasons"
        )
    if found.get("status") == INVALID:
        return (
            "" if found.get("reasons") and "figures" not in found else "it is invalid without reasons, or with figures"
        )
    return "its status is %s" % found.get("status")


def _keep(path: Path) -> None:
    """Give what is there a second name, NAME.earlier-N. A run that was killed right after that did so already."""
    for n in itertools.count(1):
        kept = path.with_name("%s.earlier-%d" % (path.stem, n))
        try:
            os.link(path, kept)
            return
        except FileExistsError:
            if kept.samefile(path):
                return


def _replace(path: Path, data: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a temporary file, its bytes on disk, then renamed, and the rename on disk. Refused if it cannot be."""
    temporary = path.with_name("%s%d-%s" % (TEMPORARY, os.getpid(), path.name))
    with _saying(path):
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                rest = memoryview(text.encode())
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _saying(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        again = "; then run the same command again: it goes on where it stopped"
        where = str(e.filename or path)
        if e.errno in FULL:
            raise Refused(
                "the file system is full (%s); nothing half-written was left" % e.strerror,
                where,
                "make room: df -h %s%s" % (path, again),
            )
        raise Refused(e.strerror or str(e), where, "name a place that you may write")
