# SPDX-License-Identifier: Apache-2.0
"""The device programs refuse what they say they refuse, by the errno that the doctor reads."""

from __future__ import annotations

import pytest

from tests.kernel.cgroup_device import DeviceCgroup, Rule
from tests.kernel.nodes import GpuNodes

OPEN_ALL = """\
import errno, os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print("ok")
    except OSError as refusal:
        print(errno.errorcode[refusal.errno])
"""
NODES = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/null"]
HARMLESS = [Rule(1, 3), Rule(1, 8), Rule(1, 9)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["ENXIO", "ENXIO", "ENXIO", "ENXIO", "ok"]),
        ({"refuse": [Rule(511)]}, ["ENXIO", "ENXIO", "EPERM", "EPERM", "ok"]),
        ({"refuse": [Rule(511, 0)]}, ["ENXIO", "ENXIO", "EPERM", "ENXIO", "ok"]),
        ({"refuse": [Rule(195, 255), Rule(195, 0)]}, ["EPERM", "EPERM", "ENXIO", "ENXIO", "ok"]),
        ({"refuse": [Rule(511, kind="b")]}, ["ENXIO", "ENXIO", "ENXIO", "ENXIO", "ok"]),
        ({"allow": [*HARMLESS, Rule(195), Rule(509)]}, ["ENXIO", "ENXIO", "EPERM", "EPERM", "ok"]),
        ({"allow": [*HARMLESS, Rule(511, 0)]}, ["EPERM", "EPERM", "ENXIO", "EPERM", "ok"]),
    ],
)
def test_eperm_is_a_missing_rule_and_enxio_a_missing_driver(
    nodes: GpuNodes, device_programs: type[DeviceCgroup], arguments: dict[str, list[Rule]], expected: list[str]
) -> None:
    nodes.make_all(uvm=511)
    with device_programs(**arguments) as cgroup:
        done = cgroup.run(["python3", "-c", OPEN_ALL, *NODES])
        assert done.stdout.split() == expected, done.stderr


def test_nothing_is_refused_outside_and_the_cgroup_is_gone_afterwards(
    nodes: GpuNodes, device_programs: type[DeviceCgroup]
) -> None:
    path = nodes.make("nvidia-uvm", 511, 0)
    with device_programs(refuse=[Rule(511)]) as cgroup:
        assert cgroup.run(["cat", "/proc/self/cgroup"]).stdout.splitlines()[-1] == f"0::/{cgroup.path.name}"
        with pytest.raises(OSError, match="No such device or address"):
            path.open("rb")
    assert not cgroup.path.exists()
