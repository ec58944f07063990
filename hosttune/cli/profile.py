# SPDX-License-Identifier: Apache-2.0
"""Where the command line finds what is wanted: --profile FILE, else /etc/hosttune/profile.json, else nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..core.knobs import KNOBS
from ..core.model import Refused
from ..core.profile import PATH, Profile, validate

MERGE = "tag:yaml.org,2002:merge"


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --profile FILE."""
    return click.option(
        "--profile",
        "profile_path",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="What is wanted, JSON or YAML. Default: %s if there is one." % PATH,
    )(command)


def load(path: str | None) -> Profile:
    """The validated profile. Refused with file and place; a default of no wants when there is no file and none was named."""
    try:
        text = Path(path or PATH).read_text(encoding="utf-8")
    except FileNotFoundError:
        if path:
            raise Refused("there is no such file", path)
        return Profile()
    except OSError as e:
        raise Refused(e.strerror or str(e), path or PATH, "run it as root, or name another with --profile")
    except UnicodeDecodeError:
        raise Refused("it is not UTF-8 text", path or PATH)
    data = _parse(text, path or PATH)
    if isinstance(data, dict) and set(data) == {"hosttune"}:
        data = data["hosttune"]
    return validate(data, path or PATH, tuple(KNOBS))


def _parse(text: str, path: str) -> Any:
    if path.endswith((".yml", ".yaml")):
        return _parse_yaml(text, path)
    try:
        return json.loads(text, object_pairs_hook=partial(_unique, path))
    except (ValueError, RecursionError) as e:
        raise Refused("this is not JSON: %s" % getattr(e, "msg", e), "%s:%d" % (path, getattr(e, "lineno", 1)))


def _unique(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A map of JSON. Refused for a key that stands in it twice: json would take the last one in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Refused("the key %s stands twice in one map" % json.dumps(twice), path, "take one of them out")
    return found


def _parse_yaml(text: str, path: str) -> Any:
    import yaml

    class Unique(yaml.SafeLoader):
        """Refuses a key that stands twice, as for JSON."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen and key.tag != MERGE:
                    place = "%s:%d" % (path, key.start_mark.line + 1)
                    raise Refused("the key %s stands here a second time" % key.value, place, "take one of them out")
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Unique)
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        raise Refused("this is not YAML: %s" % e.problem, "%s:%d" % (path, line))
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise Refused("this is not YAML: %s" % str(e).splitlines()[0], path)
