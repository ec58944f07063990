# SPDX-License-Identifier: Apache-2.0
"""Which models go when another needs their room: said before it is done, and never one that somebody has mapped.

Order: what was copied in part and no run goes on with, then models that are not declared any more, then declared ones; among
equals the one that was staged first. As many as are needed, and none if all together would not be enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, List, Tuple

from ..door.host import Host
from ..model import Refused
from . import manifest, use
from .tmpfs import Place


@dataclass(frozen=True)
class Evictable:
    """A model in memory that nobody uses. size: bytes. rank: the lowest goes first."""

    name: str
    size: int
    rank: Tuple[int, float]


def choose(host: Host, place: Place, model: str, node: str, declared: Collection[str], short: int) -> Tuple[Evictable, ...]:
    """Models but `model` itself that together free `short` bytes (on that node, "" for any), in the order in which they
    would go; () when all together do not. declared: names that go last."""
    found: List[Evictable] = []
    for name in manifest.names(host):
        if manifest.model_of(name) == model or use.users(host, place, name):
            continue
        try:
            staged = manifest.load(host, name)
        except Refused:
            staged = None
        folders = [f for f in (manifest.folder_of(name), manifest.partial_path(name)) if manifest.exists(host, f)]
        if staged is not None and node and staged.node not in ("", node):
            continue  # it would free the memory of another node
        rank = 0 if staged is None else 2 if manifest.model_of(name) in declared else 1
        found.append(Evictable(name, sum(manifest.bytes_below(host, f) for f in folders), (rank, staged.at if staged else 0.0)))
    chosen: List[Evictable] = []
    for one in sorted(found, key=lambda one: one.rank):
        if sum(other.size for other in chosen) >= short:
            break
        chosen.append(one)
    return tuple(chosen) if sum(one.size for one in chosen) >= short else ()
