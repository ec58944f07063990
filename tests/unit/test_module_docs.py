# SPDX-License-Identifier: Apache-2.0
"""What ansible-doc shows of a module is what the module takes and gives."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hosttune.core import task
from hosttune.core.door.live import LiveHost

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = "ansible_collections.hosttune.hosttune.plugins.modules."
MODULES = sorted(p.stem for p in (ROOT / "hosttune/ansible/modules").glob("*.py"))
COMPARED = ("type", "elements", "choices", "default", "required")


def load(name: str) -> Any:
    return importlib.import_module(PLUGINS + name)


@pytest.mark.parametrize("name", MODULES)
def test_documented_options_are_those_of_the_module(name: str) -> None:
    module = load(name)
    documented = yaml.safe_load(module.DOCUMENTATION)
    assert documented["module"] == name
    told = {key: {k: row[k] for k in COMPARED if k in row} for key, row in documented["options"].items()}
    assert told == module.SPEC


@pytest.mark.parametrize("name", MODULES)
def test_examples_use_options_that_exist(name: str) -> None:
    module = load(name)
    for example in yaml.safe_load(module.EXAMPLES):
        assert set(example["hosttune.hosttune." + name] or {}) <= set(module.SPEC)


@pytest.mark.parametrize("name", MODULES)
def test_every_documented_return_value_is_returned(name: str) -> None:
    returned = set(task.result(LiveHost(), [], mode="plan", check_mode=False)) | {"first_cause"}
    assert set(yaml.safe_load(load(name).RETURN)) <= returned


def test_collection_lists_its_modules_for_module_defaults() -> None:
    folder = ROOT / "ansible_collections/hosttune/hosttune"
    assert sorted(yaml.safe_load((folder / "meta/runtime.yml").read_text())["action_groups"]["all"]) == MODULES
    readme = (folder / "README.md").read_text()
    assert all("`hosttune.hosttune.%s`" % name in readme for name in MODULES)
