# SPDX-License-Identifier: Apache-2.0
"""/proc/devices, and who owns a number."""

from __future__ import annotations

import pytest

from hosttune.core.machine.devices import (
    device_table,
    driver_of,
    expected_minor,
    has_static_major,
    is_dynamic,
    parse_proc_devices,
)
from tests.unit.lxc_cases import PROC_DEVICES, a_host


def test_only_the_character_part_counts() -> None:
    table = device_table(PROC_DEVICES)
    assert table.owner(239) == "" and table.owner(509) == "hidraw"
    assert (1, "mem") in parse_proc_devices(PROC_DEVICES) and (8, "sd") not in parse_proc_devices(PROC_DEVICES)


def test_names_are_exact() -> None:
    table = device_table("Character devices:\n195 nvidia-frontend\n235 nvidia-caps-imex-channels\n")
    assert table.major("nvidia") == 195 and table.major("nvidia-caps") is None and table.major("nvidia-uvm") is None


def test_one_number_may_have_several_names() -> None:
    assert a_host().owner(195) == "nvidia, nvidiactl, nvidia-modeset"
    assert a_host().major("nvidia-uvm") == 511


def test_the_gpu_number_is_fixed_so_it_is_known_without_the_module() -> None:
    assert device_table("Character devices:\n  1 mem\n").major("nvidia") == 195


def test_gpus_are_those_with_a_node() -> None:
    assert a_host().gpus() == (0, 1)
    assert device_table(PROC_DEVICES).gpus() == ()


@pytest.mark.parametrize(("major", "dynamic"), [(195, False), (226, False), (233, False), (234, True), (254, True),
                                                (255, False), (383, False), (384, True), (511, True), (512, False)])
def test_dynamic_ranges(major: int, dynamic: bool) -> None:
    assert is_dynamic(major) is dynamic


@pytest.mark.parametrize(("path", "driver", "minor"), [
    ("/dev/nvidia7", "nvidia", 7), ("/dev/nvidiactl", "nvidia", 255), ("/dev/nvidia-modeset", "nvidia", 254),
    ("/dev/nvidia-uvm", "nvidia-uvm", 0), ("/dev/nvidia-uvm-tools", "nvidia-uvm", 1),
    ("/dev/nvidia-caps/nvidia-cap2", "nvidia-caps", None),
    ("/dev/nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels", None), ("/dev/dri/card0", "", None),
])
def test_nvidia_nodes(path: str, driver: str, minor: object) -> None:
    assert (driver_of(path), expected_minor(path)) == (driver, minor)


@pytest.mark.parametrize(("path", "static"), [("/dev/ttyUSB0", True), ("/dev/serial/by-id", True), ("/dev/dri", True),
                                              ("/dev/net/tun", True), ("/dev/apex_0", False), ("/dev/kfd", False),
                                              ("/dev/hidraw0", False), ("/dev", False)])
def test_devices_with_fixed_numbers_cannot_own_a_dynamic_one(path: str, static: bool) -> None:
    assert has_static_major(path) is static
