# SPDX-License-Identifier: Apache-2.0
"""YAML whose every value knows its file, line and key, so that an error can name them. A key that stands twice is an error."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from ..core.model import Refused


@dataclass(frozen=True)
class Marked:
    """A value (scalar, dict or list of Marked) and its place. Methods refuse with that place."""

    value: Any
    file: str
    line: int
    key: str

    def refuse(self, what: str, way_out: str = "") -> NoReturn:
        """Raise Refused: "plan.yml:7: trials: ..."."""
        raise Refused((self.key + ": " if self.key else "") + what, "%s:%d" % (self.file, self.line), way_out)

    def seen(self) -> str:
        """What stands here, as a person says it."""
        words = {
            bool: "true or false",
            int: "a number",
            float: "a number",
            str: "a text",
            list: "a list",
            dict: "a map",
        }
        plain = "" if isinstance(self.value, (list, dict)) else " (%.40s)" % self.value
        return next((word for kind, word in words.items() if isinstance(self.value, kind)), "nothing") + plain

    def keys(self, known: Sequence[str], required: Sequence[str] = ()) -> None:
        """Refused unless this is a map with no other key than those and all of the required ones."""
        for key, _ in self.pairs():
            if key.value not in known:
                near = difflib.get_close_matches(str(key.value), known, 1)
                key.refuse("no such key (known: %s)" % ", ".join(known), "did you mean %s?" % near[0] if near else "")
        for name in required:
            if name not in self:
                self.refuse("the key %s is missing" % name)

    def pairs(self) -> Iterator[tuple[Marked, Marked]]:
        """Keys and values of a map."""
        if not isinstance(self.value, dict):
            self.refuse("%s stands here, a map is wanted" % self.seen())
        for name, item in self.value.items():
            yield Marked(name, self.file, item.line, item.key), item

    def items(self) -> list[Marked]:
        """Items of a list."""
        if not isinstance(self.value, list):
            self.refuse("%s stands here, a list is wanted" % self.seen())
        return list(self.value)

    def __contains__(self, name: str) -> bool:
        return isinstance(self.value, dict) and name in self.value

    def __getitem__(self, name: str) -> Marked:
        item: Marked = self.value[name]
        return item

    def get(self, name: str, default: Any) -> Marked:
        """The value of a key, or a default at this place."""
        return self[name] if name in self else _mark(default, self.file, self.line, name)

    def text(self) -> str:
        """A text; a number is not one, so that 1.10 never becomes 1.1 unseen."""
        if not isinstance(self.value, str):
            self.refuse("%s stands here, a text is wanted" % self.seen(), "put it in quotes")
        return self.value

    def whole(self, low: int, high: int) -> int:
        """A whole number in a range."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse("%s stands here, a whole number from %d to %d is wanted" % (self.seen(), low, high))
        return int(self.number(low, high))

    def number(self, low: float, high: float) -> float:
        """A number in a range."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            self.refuse("%s stands here, a number from %g to %g is wanted" % (self.seen(), low, high))
        if not low <= self.value <= high:
            self.refuse("%s is not between %g and %g" % (self.value, low, high))
        return self.value


def parse(text: str, file: str) -> Marked:
    """The top map of a YAML text. Refused with the line of what is wrong."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise Refused("the file is empty", file)
        return _marked(loader, node, file, "")
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        raise Refused("this is not YAML: %s" % e.problem, "%s:%d" % (file, line))
    except RecursionError:
        raise Refused("an alias (*) points at what contains it", file)
    except yaml.YAMLError as e:
        raise Refused("this is not YAML: %s" % e, file)
    finally:
        loader.dispose()


def _marked(loader: yaml.SafeLoader, node: yaml.Node, file: str, key: str) -> Marked:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        out: dict[str, Marked] = {}
        for name_node, value_node in node.value:
            name = str(loader.construct_object(name_node, deep=True))
            place = "%s.%s" % (key, name) if key else name
            if name in out:
                Marked(None, file, name_node.start_mark.line + 1, place).refuse("the key stands here a second time")
            item = _marked(loader, value_node, file, place)
            out[name] = Marked(item.value, file, name_node.start_mark.line + 1, place)
        return Marked(out, file, line, key)
    if isinstance(node, yaml.SequenceNode):
        return Marked(
            [_marked(loader, n, file, "%s[%d]" % (key, i)) for i, n in enumerate(node.value)], file, line, key
        )
    return Marked(loader.construct_object(node), file, line, key)


def _mark(value: Any, file: str, line: int, key: str) -> Marked:
    if isinstance(value, dict):
        return Marked({k: _mark(v, file, line, "%s.%s" % (key, k)) for k, v in value.items()}, file, line, key)
    if isinstance(value, list):
        return Marked([_mark(v, file, line, "%s[%d]" % (key, i)) for i, v in enumerate(value)], file, line, key)
    return Marked(value, file, line, key)
