# SPDX-License-Identifier: Apache-2.0
"""Where an engine lives: this host, or a container of it. The same questions and effects either way (units.py).

A file in a container is named "ct:200:/etc/..." in steps and in the journal; `Reaching` is the door that such names go
through, so that backup, journal, read-back and revert are those of every other change.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from . import units
from .door.host import Host
from .door.live import LiveHost
from .lxc import inside
from .model import Refused

_INSIDE = re.compile(r"ct:([A-Za-z0-9][A-Za-z0-9._-]*):(/.*)")


@dataclass(frozen=True)
class Place:
    """This host (ct_id ""), or a container of it."""

    host: Host
    ct_id: str = ""

    @property
    def machine(self) -> str:
        """As reports name it: host, or ct:200."""
        return "ct:" + self.ct_id if self.ct_id else "host"

    def target(self, path: str) -> str:
        """How a step names a file there."""
        return "%s:%s" % (self.machine, path) if self.ct_id else path

    def ask(self, do: str, timeout: float = 240, **fields: Any) -> Dict[str, Any]:
        """One operation of units.py, here or inside; what it wrote is added to this host's effects. Raises Refused."""
        request = dict(fields, do=do)
        if not self.ct_id:
            return units.DO[do](self.host, request)
        answer = inside.ask(self.host, self.ct_id, dict(request, op="unit"), timeout)
        try:
            told: Dict[str, Any] = answer["told"]
            effects = [{"effect": str(e["effect"]), "target": str(e["target"])} for e in answer["effects"]]
            told.keys()
        except (AttributeError, KeyError, TypeError):
            # Whoever is root in the container decides what its python3 answers.
            raise Refused("it gave an answer of another shape", self.machine, "is its python3 the real one?") from None
        self.host.effects.extend(dict(e, machine=self.machine) for e in effects)
        return told


def place_of(host: Host, where: str) -> Place:
    """The place that `in:` of an engine names: host, or ct:200."""
    return Place(host, where[len("ct:") :] if where.startswith("ct:") else "")


class Reaching(LiveHost):
    """This machine, and hosttune's own files inside its containers by names such as ct:200:/etc/systemd/system/..."""

    def reaches(self, target: str) -> bool:
        return True

    def read_bytes(self, path: str, limit: int = 0) -> bytes:
        place, inner = self._split(path)
        if not place.ct_id:
            return super().read_bytes(path, limit)
        text = place.ask("read", path=inner)["text"]
        if text is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        data: bytes = text.encode("utf-8", "surrogateescape")
        return data

    def replace(self, path: str, data: bytes, expect: Optional[str], mode: int = 0o644) -> None:
        place, inner = self._split(path)
        if place.ct_id:
            place.ask("put", path=inner, text=data.decode("utf-8", "surrogateescape"), expect=expect)
        else:
            super().replace(path, data, expect, mode)
            units.reload(self, path)

    def remove(self, path: str, expect: str) -> None:
        place, inner = self._split(path)
        if place.ct_id:
            place.ask("put", path=inner, text=None, expect=expect)
        else:
            super().remove(path, expect)
            units.removed(self, path)

    def _split(self, path: str) -> Tuple[Place, str]:
        return split(self, path)


def split(host: Host, target: str) -> Tuple[Place, str]:
    """The place and the path there that the target of a step names."""
    found = _INSIDE.fullmatch(target)
    return (Place(host, found.group(1)), found.group(2)) if found else (Place(host), target)
