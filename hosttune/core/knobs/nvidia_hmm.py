# SPDX-License-Identifier: Apache-2.0
"""Heterogeneous memory management of nvidia-uvm: whether GPUs share memory that a program took with malloc.

uvm_disable_hmm, a bool that cannot be changed while the module is loaded; on x86 it is off, so HMM is on where the kernel can.
"""

from __future__ import annotations

from ..door.host import Host, read_or_none
from . import shape_kept
from .shape_module import module_knob

NOW = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"


def skip(host: Host) -> str:
    """Not in a container, and not without a module that has the parameter."""
    reason = shape_kept.of_the_host(host)
    there = reason or read_or_none(host, NOW) is not None
    return reason if there else "nvidia-uvm is not loaded, or too old to have it"


NVIDIA_HMM = module_knob(
    id="HT332",
    name="nvidia-hmm",
    title="HMM",
    module="nvidia_uvm",
    parameter="uvm_disable_hmm",
    now=lambda host: host.read(NOW).strip(),
    words={"on": "0", "off": "1"},
    default="on",
    want="off",
    skip=skip,
    why="some peer-to-peer hangs of NCCL went away without it; inference engines do not use it",
    cost="programs that hand malloc'ed memory to the GPU without copying it fail while it is off",
    evidence="user reports of NCCL hangs only; no measurement of speed",
)
