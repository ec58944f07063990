# SPDX-License-Identifier: Apache-2.0
"""One engine as the profile declares it, with its model resolved to a path and everything impossible refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..core import units
from ..core.model import Refused
from ..core.wanted.profile import Profile

STAGED, STAGED_INSIDE = "/dev/shm/models", "/srv/models"
"""Where staged models lie on the host, and read-only in its containers."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
RESERVED = ("knobs", "devices", "stage")
"""Names of hosttune's own boot units."""
SECRET = "secret:"
_LOOKS_SECRET = re.compile(r"(?i)(^|[_-])(token|secret|password|passwd|api[_-]?key)$")


@dataclass(frozen=True)
class Engine:
    """One declaration. `place` is where it runs (host, ct:200), `model_path` the path of its model there; `model_name` names
    the staged model, "" for a path of one's own."""

    name: str
    place: str
    kind: str
    venv: str
    model: str
    model_name: str
    model_path: str
    tp: int
    gpus: str
    listen: str
    port: int
    user: str
    nccl: str
    memlock: str
    affinity: str
    restart: str
    wait: int
    args: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """hosttune-NAME.service"""
        return "hosttune-%s.service" % self.name

    @property
    def path(self) -> str:
        """Where its unit file lies, on the machine where it runs."""
        return "%s/%s" % (units.FOLDER, self.unit)

    @property
    def ct_id(self) -> str:
        """The container that it runs in, "" for the host."""
        return self.place[len("ct:") :] if self.place.startswith("ct:") else ""

    @property
    def address(self) -> str:
        """Where to reach it from its own machine: a wildcard address is no destination."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)


def engine(profile: Profile, name: str, where: str = "engines") -> Engine:
    """The declaration of that name. Refused when there is none, or when it cannot be."""
    if name not in profile.engines:
        known = ", ".join(sorted(profile.engines)) or "none"
        raise Refused(
            "no such engine: %s (declared: %s)" % (name, known), where, "name it under engines: in the profile"
        )
    here = "%s.%s" % (where, name)
    if not NAME.fullmatch(name):
        raise Refused("%r cannot be part of a unit's name" % name, here, "letters, digits, dot, dash and underscore")
    if name in RESERVED:
        raise Refused("hosttune-%s is a unit of hosttune itself" % name, here, "give the engine another name")
    plain = dict(profile.engines[name])
    place = plain.pop("in")
    model_name, model_path = _model(profile, plain["model"], place, here, plain["gpus"])
    made = Engine(name, place, plain.pop("engine"), model_name=model_name, model_path=model_path, **plain)
    _refuse_secrets(made, here)
    if made.kind in ("sglang", "vllm", "xllamacpp") and not made.venv:
        raise Refused("%s needs its virtual environment" % made.kind, here + ".venv", "venv: /opt/%s" % made.kind)
    return made


def engines(profile: Profile) -> list[Engine]:
    """All of them, in the order of the profile."""
    return [engine(profile, name) for name in profile.engines]


def _model(profile: Profile, model: str, place: str, here: str, gpus: str) -> tuple[str, str]:
    if model.startswith("/"):
        return "", model
    name, slash, file = model.partition("/")
    if name not in profile.models:
        known = ", ".join(sorted(profile.models)) or "none"
        raise Refused(
            "no such model: %s (declared: %s)" % (name, known),
            here + ".model",
            "name it under models: in the profile, or give an absolute path",
        )
    if slash and (not file or ".." in file.split("/")):
        raise Refused("%s is no file of the model %s" % (file or "nothing", name), here + ".model")
    node = re.fullmatch(r"numa:([1-9]\d*)", gpus)
    if node and profile.models[name].get("placement") == "per-node":
        name_there = "%s@node%s%s%s" % (name, node[1], slash, file)  # the copy on the node of its GPUs (core/stage/nodes.py)
    else:
        name_there = model
    inside = str(profile.models[name].get("inside", STAGED_INSIDE))
    return name, "%s/%s" % (inside if place.startswith("ct:") else STAGED, name_there)


def _refuse_secrets(made: Engine, here: str) -> None:
    """A secret in argv or in Environment= can be read by every user of the machine (ps; systemctl show)."""
    for kind, given in (("args", made.args), ("env", made.env)):
        for name, value in given.items():
            if value.startswith(SECRET) and value[len(SECRET) :] not in made.secrets:
                raise Refused("%s is not declared" % value, "%s.%s.%s" % (here, kind, name), "name it under secrets:")
            if value and not value.startswith(SECRET) and _LOOKS_SECRET.search(name):
                raise Refused(
                    "a secret does not belong here: every user of that machine could read it",
                    "%s.%s.%s" % (here, kind, name),
                    'put it into a file of mode 0600, name that under secrets:, and write "secret:NAME" where the '
                    "engine takes a file (api-key-file, HF_TOKEN_PATH)",
                )
    for name in made.secrets:
        if not NAME.fullmatch(name):
            raise Refused("%r is no name of a credential" % name, here + ".secrets")
