# SPDX-License-Identifier: Apache-2.0
"""Where the command line finds what is wanted: --profile FILE, else /etc/hosttune/profile.json, else nothing."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..core.knobs import KNOBS
from ..core.model import Finding, Refused
from ..core.wanted.places import json_lines
from ..core.wanted.profile import PATH, Profile, validate

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


TAKES_PROFILE = re.compile(
    r"(?<![\w/.-])hosttune (apply|check|doctor|preflight|status|topo|bench run|lxc (live|show|sync)|stage (add|status|verify)"
    r"|unit (check|diff|render|restart|start|stop|wait))(?![\w-])(?!.* --profile)"
)
"""In a command that a finding names: what takes --profile, and does not name one already."""


def naming(finding: Finding, path: str) -> Finding:
    """The same finding, whose commands want what this one wants: pasted without --profile they would apply another value."""

    def named(command: str) -> str:
        return TAKES_PROFILE.sub(lambda found: "%s --profile %s" % (found.group(), shlex.quote(path)), command)

    hint = replace(finding.hint, command=named(finding.hint.command))
    return replace(finding, hint=hint, decide=named(finding.decide))


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
    place = path or PATH
    data, lines = _parse_yaml(text, place) if place.endswith((".yml", ".yaml")) else _parse_json(text, place)
    if isinstance(data, dict) and set(data) == {"hosttune"}:
        data = data["hosttune"]
        lines = {key[len("hosttune.") :]: line for key, line in lines.items() if key.startswith("hosttune.")}
    return validate(data, place, KNOBS, lines)


def _parse_json(text: str, path: str) -> tuple[Any, dict[str, int]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        yaml = "" if path.endswith(".json") else "name it FILE.yml if it is YAML"
        raise Refused("this is not JSON: %s" % getattr(e, "msg", e), "%s:%d" % (path, getattr(e, "lineno", 1)), yaml)
    return data, json_lines(text, path)


def _parse_yaml(text: str, path: str) -> tuple[Any, dict[str, int]]:
    import yaml

    try:
        node = yaml.compose(text, yaml.SafeLoader)
        lines = dict(_yaml_lines(node, "", path, set())) if node else {}
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        raise Refused("this is not YAML: %s" % e.problem, "%s:%d" % (path, line))
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise Refused("this is not YAML: %s" % str(e).splitlines()[0], path)


def _yaml_lines(node: Any, place: str, path: str, walked: set[int]) -> Iterator[tuple[str, int]]:
    """(place, line) of each key and list item. Refused for a key that stands twice in one map: YAML would take the last.

    walked: nodes that were gone through; what an alias points at is not gone through again.
    """
    if id(node) in walked:
        return
    walked.add(id(node))
    if node.id == "mapping":
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == MERGE:
                continue
            if str(key.value) in seen:
                raise Refused(
                    "the key %s stands here a second time" % key.value, "%s:%d" % (path, line), "take one of them out"
                )
            seen.add(str(key.value))
            here = "%s.%s" % (place, key.value) if place else str(key.value)
            yield here, line
            yield from _yaml_lines(value, here, path, walked)
    elif node.id == "sequence":
        for n, item in enumerate(node.value):
            here = "%s[%d]" % (place, n)
            yield here, item.start_mark.line + 1
            yield from _yaml_lines(item, here, path, walked)
