# SPDX-License-Identifier: Apache-2.0
"""Guests of the lab. `guest` is resumed from a snapshot (some two seconds), `rebooting_guest` is the same thing for tests that
reboot it and then share what a boot costs. A failing test prints the console's last lines and the journal.

Without root or a package a test is skipped with the reason; with HOSTTUNE_KERNEL=required in the environment, as `make test`
sets it for root, that is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from lab import LabError, cache, needs, snapshot
from lab.image.build import Image, image
from lab.machine import Machine

PATIENCE = 900
"""Seconds to wait until at most one other guest runs on this machine."""
MachineReport = pytest.StashKey[list[Machine]]()


def _cannot(reason: str) -> NoReturn:
    if os.environ.get("HOSTTUNE_KERNEL") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def lab_image() -> Image:
    """The image of this checkout with its snapshot, built if need be."""
    try:
        needs.to_build(cache())
    except LabError as e:
        _cannot(str(e))
    built = image()
    snapshot.ready(built)
    return built


@pytest.fixture(scope="module")
def module_guest(lab_image: Image, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """One guest for the tests of a file that leave it as they found it, or say in what order they run."""
    yield from _guest(lab_image, request.node.name, request)


@pytest.fixture
def guest(lab_image: Image, request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A guest of this test's own, as after its first boot: container 200 runs, nvidia-uvm has major 509."""
    yield from _guest(lab_image, request.node.name, request)


@pytest.fixture
def boot(lab_image: Image, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Machine]]:
    """`boot("hosttune=off")` -> a guest that has just booted for the first time, with these words for its kernel."""
    made: list[Machine] = []

    def start(append: str = "") -> Machine:
        machine = Machine(f"test-{os.getpid()}-b{len(made)}", lab_image).create()
        made.append(machine)
        _report(request, machine)
        machine.start(append=append, slot_patience=PATIENCE)
        machine.settle()
        return machine

    yield start
    for machine in made:
        machine.destroy()


def _guest(built: Image, name: str, request: pytest.FixtureRequest) -> Iterator[Machine]:
    machine = Machine(f"test-{os.getpid()}-{abs(hash(name)) % 10000}", built).create(snapshot.ready(built))
    _report(request, machine)
    try:
        yield machine.start(snapshot=snapshot.NAME, slot_patience=PATIENCE)
    finally:
        machine.destroy()


def _report(request: pytest.FixtureRequest, machine: Machine) -> None:
    request.node.stash.setdefault(MachineReport, []).append(machine)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Ask the guest for its story while it still lives."""
    report = yield
    if report.when in ("setup", "call") and report.failed:  # type: ignore[attr-defined]
        nodes = (item, *item.listchain())
        for machine in [machine for node in dict.fromkeys(nodes) for machine in node.stash.get(MachineReport, [])]:
            if machine.folder.exists():
                report.sections.append((f"console of {machine.folder.name}", machine.console()))  # type: ignore[attr-defined]
                if machine.alive():
                    report.sections.append((f"journal of {machine.folder.name}", machine.journal()))  # type: ignore[attr-defined]
    return report
