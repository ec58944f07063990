# SPDX-License-Identifier: Apache-2.0
"""From a source tree to a running module, link by link: each of these has broken somewhere without a word.

sdist -> wheel made from that sdist -> an environment that holds nothing but the wheel and its requirements -> Ansible
in an empty folder without configuration -> a module on the target, which starts a child process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import hosttune

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = "ansible_collections/hosttune/hosttune/"
MODULES = sorted(p.stem for p in (ROOT / "hosttune/ansible/modules").glob("*.py"))


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return out


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment with the wheel and what it requires, and nothing else. pip's cache makes it cheap."""
    env = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    argv = [sys.executable, "-m", "pip", "--python", str(env / "bin/python"), "install", "--no-compile"]
    subprocess.run([*argv, str(wheel)], check=True, capture_output=True)
    return env / "bin"


def run(argv: list[str], cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command as a stranger would run it: no variables of this checkout, a home of its own."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(cwd), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, cwd=cwd, env=env, text=True, capture_output=True, **more)
    assert done.returncode == 0, "%s\n%s\n%s" % (argv, done.stdout, done.stderr)
    return done


def sources(folder: str) -> dict[str, bytes]:
    """The Python files below a folder of the checkout, by their path in it."""
    top = ROOT / folder
    return {str(p.relative_to(top)): p.read_bytes() for p in sorted(top.rglob("*.py"))}


@pytest.mark.parametrize("prefix", ["hosttune/core/", COLLECTION + "plugins/module_utils/core/"])
def test_wheel_from_sdist_holds_each_copy_of_the_core(wheel: Path, prefix: str) -> None:
    assert packed(wheel, prefix) == sources("hosttune/core")


@pytest.mark.parametrize("prefix", ["hosttune/ansible/modules/", COLLECTION + "plugins/modules/"])
def test_wheel_from_sdist_holds_each_copy_of_the_modules(wheel: Path, prefix: str) -> None:
    assert packed(wheel, prefix) == sources("hosttune/ansible/modules")


def packed(wheel: Path, prefix: str) -> dict[str, bytes]:
    """The Python files below a folder of the wheel, by their path in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith(prefix) and n.endswith(".py")]
        return {name[len(prefix) :]: archive.read(name) for name in names}


def test_wheel_holds_what_an_installed_hosttune_reads(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("playbooks", "templates"):
        here = {COLLECTION + str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert here <= names, folder
    assert {COLLECTION + n for n in ("galaxy.yml", "meta/runtime.yml", "README.md", "CHANGELOG.md")} <= names


def test_sdist_holds_what_the_tests_need(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    assert {"pyproject.toml", "LICENSE", "ansible.cfg", "site.yml", "tests/packaging/test_chain.py"} <= names


def test_collection_and_package_have_one_version() -> None:
    galaxy = yaml.safe_load((ROOT / COLLECTION / "galaxy.yml").read_text())
    assert galaxy["version"] == hosttune.__version__


@pytest.mark.parametrize("module", MODULES)
def test_ansible_doc_finds_the_module_of_an_installed_wheel(clean: Path, tmp_path: Path, module: str) -> None:
    name = "hosttune.hosttune.%s" % module
    told = json.loads(run([str(clean / "ansible-doc"), "--json", name], tmp_path).stdout)
    assert Path(told[name]["doc"]["filename"]).is_relative_to(clean.parent)
    assert told[name]["doc"]["short_description"] and told[name]["examples"] and told[name]["return"]


def test_installed_playbook_runs_from_an_empty_folder_in_check_mode(clean: Path, tmp_path: Path) -> None:
    inventory = {
        "all": {
            "hosts": {
                "here": {
                    "ansible_connection": "local",
                    "ansible_python_interpreter": sys.executable,
                    "hosttune": {"mode": "plan", "knobs": {"numa-balancing": "0"}},
                }
            }
        }
    }
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
    told = run([str(clean / "ansible-playbook"), "-i", "inventory.yml", "hosttune.hosttune.site", "--check"], tmp_path)
    assert "failed=0" in told.stdout and "changed=0" in told.stdout


def test_installed_command_answers(clean: Path, tmp_path: Path) -> None:
    assert run([str(clean / "hosttune"), "--version"], tmp_path).stdout == "hosttune %s\n" % hosttune.__version__
    assert "Usage:" in run([str(clean / "hosttune"), "--help"], tmp_path).stdout


def test_python_of_the_environment_is_the_one_that_was_made(clean: Path) -> None:
    """Guards the tests above: had the wheel come from the checkout's environment, they would prove nothing."""
    code = "import hosttune, sys; print(hosttune.__file__)"
    where = run([str(clean / "python"), "-c", code], clean.parent).stdout.strip()
    assert Path(where).is_relative_to(clean.parent) and not os.path.islink(where)
