# SPDX-License-Identifier: Apache-2.0
"""Who downloads into a source now. huggingface_hub holds a lock for each file that it brings (filelock: flock(2) of a file that
it keeps open as long, and leaves behind), in CACHE/.locks/models--ORG--NAME, or beside its notes of a local_dir."""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

from ..door.host import Host, list_or_empty
from . import source, use
from .source import NotWhole

_REPOSITORY = re.compile(r"(?P<cache>.*)/(?P<repository>models--[^/]+)/snapshots/[^/]+\Z", re.DOTALL)


def now(host: Host, spec: str, caches: Sequence[str] = ()) -> List[Tuple[int, str]]:
    """Processes (pid, command name) that download what this source means; [] for none that can be seen: only root sees others'.
    Nothing is asked of processes where no lock was ever made."""
    found: List[Tuple[int, str]] = []
    for folder in _locks(spec, caches):
        if any(name.endswith(".lock") for name in list_or_empty(host, folder)):
            found += use.holders(host, re.compile(re.escape(source.real_path(host, folder)) + r"/.*\.lock\Z", re.DOTALL))
    return sorted(set(found))


def _locks(spec: str, caches: Sequence[str]) -> List[str]:
    hub, snapshot = source.hub_of(spec), _REPOSITORY.match(spec)
    if hub:
        return ["%s/.locks/models--%s" % (cache, hub[0].replace("/", "--")) for cache in caches]
    if snapshot:
        return ["%s/.locks/%s" % (snapshot["cache"], snapshot["repository"])]
    return [spec + source.LOCAL + "/download"] if spec.startswith("/") else []


def told(host: Host, spec: str, caches: Sequence[str], wrong: NotWhole) -> NotWhole:
    """The same with who is at it: what is missing may be on its way."""
    who = now(host, spec, caches)
    if not who:
        return wrong
    what = "%s; a download is running now: %s" % (wrong.what, use.words(who))
    return NotWhole(wrong.code, what, wrong.where, "let it end, then run this again")
