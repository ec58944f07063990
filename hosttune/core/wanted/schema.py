# SPDX-License-Identifier: Apache-2.0
"""The table of a profile's keys as a JSON schema (docs/profile.schema.json; a test holds the two together)."""

from __future__ import annotations

from typing import Any, Dict

from .keys import PROFILE
from .kinds import Flag, Listed, Named, Number, Record, Texts


def schema(spec: Any = PROFILE) -> Dict[str, Any]:
    """The table as a JSON schema (draft 2020-12)."""
    out: Dict[str, Any] = {"description": spec.doc}
    if isinstance(spec, Record):
        out.update(type="object", additionalProperties=False, properties={k: schema(v) for k, v in spec.keys.items()})
        if spec.required:
            out["required"] = list(spec.required)
    elif isinstance(spec, Named):
        out.update(
            type="object", additionalProperties=schema(spec.each), propertyNames={"pattern": "^(%s)$" % spec.pattern}
        )
    elif isinstance(spec, Listed):
        out.update(type="array", items=schema(spec.each))
    elif isinstance(spec, Texts):
        out.update(type="object", additionalProperties={"type": "string"})
    elif isinstance(spec, Flag):
        out.update(type="boolean")
    elif isinstance(spec, Number):
        out.update(type="integer", minimum=spec.low, maximum=spec.high)
    else:
        out.update(type="string")
        if spec.choices:
            out["enum"] = list(spec.choices)
        if spec.pattern:
            out["pattern"] = "^(%s)$" % spec.pattern
    if spec is PROFILE:
        out["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    default = getattr(spec, "default", None)
    if default is not None:
        out["default"] = default
    return out
