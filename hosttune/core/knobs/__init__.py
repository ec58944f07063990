# SPDX-License-Identifier: Apache-2.0
"""The settings that hosttune keeps. One file each; to add one, write it and name it here."""

from __future__ import annotations

from typing import Dict

from ..model import Knob
from .boot_units import BOOT_UNITS
from .cpu_boost import CPU_BOOST
from .cpu_energy_preference import CPU_ENERGY_PREFERENCE
from .cpu_governor import CPU_GOVERNOR
from .cpu_idle_latency import CPU_IDLE_LATENCY
from .iommu_mode import IOMMU_MODE
from .irqbalance import IRQBALANCE
from .max_map_count import MAX_MAP_COUNT
from .memlock import MEMLOCK
from .numa_balancing import NUMA_BALANCING
from .nvidia_clocks import NVIDIA_CLOCKS
from .nvidia_compute_mode import NVIDIA_COMPUTE_MODE
from .nvidia_dynamic_power import NVIDIA_DYNAMIC_POWER
from .nvidia_ecc import NVIDIA_ECC
from .nvidia_hmm import NVIDIA_HMM
from .nvidia_mig import NVIDIA_MIG
from .nvidia_module_parameters import NVIDIA_MODULE_PARAMETERS
from .nvidia_persistence import NVIDIA_PERSISTENCE
from .nvidia_power_limit import NVIDIA_POWER_LIMIT
from .nvidia_relaxed_ordering import NVIDIA_RELAXED_ORDERING
from .nvidia_resizable_bar import NVIDIA_RESIZABLE_BAR
from .overcommit_memory import OVERCOMMIT_MEMORY
from .pcie_acs import PCIE_ACS
from .pcie_aspm import PCIE_ASPM
from .pcie_bar1 import PCIE_BAR1
from .pcie_errors import PCIE_ERRORS
from .pcie_extended_tags import PCIE_EXTENDED_TAGS
from .pcie_link_speed import PCIE_LINK_SPEED
from .pcie_link_width import PCIE_LINK_WIDTH
from .pcie_max_payload import PCIE_MAX_PAYLOAD
from .pcie_max_read_request import PCIE_MAX_READ_REQUEST
from .pcie_power_control import PCIE_POWER_CONTROL
from .pcie_relaxed_ordering import PCIE_RELAXED_ORDERING
from .remove_ipc import REMOVE_IPC
from .reserved_hugepages import RESERVED_HUGEPAGES
from .shmem_hugepages import SHMEM_HUGEPAGES
from .smt import SMT
from .swappiness import SWAPPINESS
from .transparent_hugepages import TRANSPARENT_HUGEPAGES
from .zfs_arc import ZFS_ARC
from .zone_reclaim_mode import ZONE_RECLAIM_MODE

MEMORY = (
    NUMA_BALANCING, ZONE_RECLAIM_MODE, TRANSPARENT_HUGEPAGES, SHMEM_HUGEPAGES, SWAPPINESS, MAX_MAP_COUNT, OVERCOMMIT_MEMORY,
    MEMLOCK, RESERVED_HUGEPAGES, ZFS_ARC, REMOVE_IPC,
)  # fmt: skip
CPU = (CPU_GOVERNOR, CPU_ENERGY_PREFERENCE, CPU_BOOST, CPU_IDLE_LATENCY, IRQBALANCE, SMT)

PCIE = (
    PCIE_MAX_READ_REQUEST, PCIE_MAX_PAYLOAD, PCIE_LINK_WIDTH, PCIE_LINK_SPEED, PCIE_ERRORS, PCIE_RELAXED_ORDERING,
    PCIE_EXTENDED_TAGS, PCIE_ACS, IOMMU_MODE, PCIE_ASPM, PCIE_BAR1, PCIE_POWER_CONTROL,
)  # fmt: skip
NVIDIA = (
    NVIDIA_PERSISTENCE, NVIDIA_MODULE_PARAMETERS, NVIDIA_HMM, NVIDIA_RESIZABLE_BAR, NVIDIA_RELAXED_ORDERING, NVIDIA_DYNAMIC_POWER,
    NVIDIA_COMPUTE_MODE, NVIDIA_MIG, NVIDIA_ECC, NVIDIA_POWER_LIMIT, NVIDIA_CLOCKS,
)  # fmt: skip

KNOBS: Dict[str, Knob] = {knob.name: knob for knob in (*MEMORY, *CPU, *PCIE, *NVIDIA, BOOT_UNITS)}
BY_ID: Dict[str, Knob] = {knob.id: knob for knob in KNOBS.values()}
