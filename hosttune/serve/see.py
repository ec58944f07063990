# SPDX-License-Identifier: Apache-2.0
"""One engine as it is: its files, its process, its port and its GPUs, looked at in one visit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.catalogue import finding
from ..core.door.host import Host
from ..core.model import ERROR, Finding, Hint, Refused, Step
from ..core.place import Place, place_of
from ..core.wanted.profile import Profile
from . import command
from .declare import Engine, engine
from .devices import Devices, devices
from .unit import Rendered, render

HEALTH = ("/health", "/v1/models")
LINES = 400
"""Lines of the journal that are looked at for the reason of a death: a traceback of eight ranks fits."""


@dataclass(frozen=True)
class Seen:
    """An engine, where it lives, what its files shall be, and what was found there (core/units.py, look)."""

    engine: Engine
    place: Place
    devices: Devices
    rendered: Rendered
    told: Mapping[str, Any]

    @property
    def state(self) -> str:
        """systemd's ActiveState: active, activating, inactive, failed ..."""
        return str(self.told["show"].get("ActiveState", "unknown"))

    @property
    def runs(self) -> bool:
        """Whether it has a process now, or systemd is about to give it one."""
        return self.state in ("active", "activating", "deactivating", "reloading")

    @property
    def same_files(self) -> bool:
        """Whether all its files are as rendered."""
        return all(self.told["files"].get(path) == text for path, text in self.rendered.files.items())


def see(host: Host, profile: Profile, name: str, health: bool = False) -> Seen:
    """Look at one declared engine. Raises Refused: not declared, impossible, or its container cannot be asked."""
    declared = engine(profile, name)
    place, gpus = place_of(host, declared.place), devices(host, declared, profile)
    rendered = render(declared, gpus)
    return Seen(declared, place, gpus, rendered, look(place, declared, rendered, health))


def look(
    place: Place, declared: Engine, rendered: Rendered, health: bool, after: str = "", lines: int = LINES
) -> Mapping[str, Any]:
    """What units.look tells of this engine. health: ask it, too. after: only lines of the journal after that cursor."""
    paths = [p for p in (command.program(declared), declared.model_path, *declared.secrets.values()) if p]
    asked = {"address": declared.address, "paths": HEALTH, "timeout": 25 if declared.kind == "sglang" else 5}
    return place.ask("look", unit=declared.unit, files=list(rendered.files), paths=paths, user=declared.user, port=declared.port,
                     health=asked if health else None, journal=lines, after=after,
                     venv=declared.venv, packages=list(declared.packages))  # fmt: skip


def steps(seen: Seen) -> list[Step]:
    """The files that differ, the unit itself last: systemd never reads one that names a file that is not there yet."""
    have = seen.told["files"]
    return [Step("HT601", seen.engine.name, "replace", seen.place.target(path), have.get(path), text)
            for path, text in seen.rendered.files.items() if have.get(path) != text]  # fmt: skip


def about(seen: Seen, id: str, status: str, summary: str, **more: Any) -> Finding:
    """A finding about this engine, of the machine it lives on."""
    return finding(id, status, seen.engine.name, summary, machine=seen.place.machine, **more)


def unseen(name: str, e: Refused) -> Finding:
    """HT602 for an engine that could not even be looked at."""
    return finding(
        "HT602",
        ERROR,
        name,
        e.what,
        evidence=(e.where,) if e.where else (),
        hint=Hint(e.way_out, "host", "", "reconfigure"),
    )
