# SPDX-License-Identifier: Apache-2.0
"""The circumstances of a benchmark on a real GPU: settings that decide speed are in them, as the driver tells them."""

from __future__ import annotations

import subprocess

from hosttune import nvml
from hosttune.bench import snapshot
from hosttune.core.door.live import LiveHost


def test_the_gpu_part_is_what_the_drivers_tool_tells(gpu_count: int) -> None:
    taken = snapshot.take(LiveHost(), nvml.ask())
    query = "--query-gpu=pci.bus_id,name,power.limit,persistence_mode,ecc.mode.current,driver_version"
    rows = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    lines = [[cell.strip() for cell in line.split(",")] for line in rows.stdout.splitlines()]
    assert len(lines) == gpu_count
    for bus, name, limit, persistence, ecc, driver in lines:
        bdf = bus.lower()[-len("0000:00:00.0") :]
        assert f"{bdf} {name}" in taken["stable"]["GPUs"]
        settings = taken["stable"][f"GPU {bdf} settings"]
        assert f"power limit {float(limit):.0f} W" in settings
        assert f"persistence {'on' if persistence == 'Enabled' else 'off'}" in settings
        assert f"ECC {'on' if ecc == 'Enabled' else 'off'}" in settings
        assert taken["stable"]["NVIDIA driver"] == driver
        assert taken["stable"][f"pcie-max-read-request {bdf}"] in ("128", "256", "512", "1024", "2048", "4096")
        assert "MiB in use" in taken["moment"][f"GPU {bdf}"]
