# SPDX-License-Identifier: Apache-2.0
"""The settings that hosttune keeps. One file each; to add one, write it and name it here."""

from __future__ import annotations

from typing import Dict

from ..model import Knob
from .boot_units import BOOT_UNITS
from .numa_balancing import NUMA_BALANCING
from .pcie_max_read_request import PCIE_MAX_READ_REQUEST

KNOBS: Dict[str, Knob] = {knob.name: knob for knob in (NUMA_BALANCING, PCIE_MAX_READ_REQUEST, BOOT_UNITS)}
BY_ID: Dict[str, Knob] = {knob.id: knob for knob in KNOBS.values()}
