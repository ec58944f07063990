# SPDX-License-Identifier: Apache-2.0
"""The sets of settings that hosttune ships, each on top of the one it inherits from. `knobs: {profile: NAME}` takes one; keys of
its own lie over it, and the word "leave" takes one out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Tuple

LEAVE = "leave"
"""As a want: hosttune leaves this setting alone, whatever a profile that is inherited from says."""


@dataclass(frozen=True)
class Shipped:
    """doc: for whom. inherits: the name of another, "" for none. knobs: what it adds or sets otherwise."""

    doc: str
    inherits: str
    knobs: Mapping[str, str]


SHIPPED: Dict[str, Shipped] = {
    "report-only": Shipped("everything is looked at, nothing is changed", "", {}),
    "conservative": Shipped(
        "what is documented to help and can be taken back without a trace",
        "report-only",
        {
            "numa-balancing": "0",
            "zone-reclaim-mode": "0",
            "cpu-governor": "performance",
            "nvidia-persistence": "on",
            "boot-units": "on",
        },
    ),
    "pcie-inference": Shipped(
        "the values that the founding machine ran with: eight PCIe GPUs on two sockets, no NVLink",
        "conservative",
        {"pcie-max-read-request": "4096"},
    ),
}


def resolve(name: str) -> Dict[str, Tuple[str, str]]:
    """{knob: (want, the profile that says so)}, inherited ones included. KeyError for an unknown name."""
    shipped = SHIPPED[name]
    found = resolve(shipped.inherits) if shipped.inherits else {}
    found.update((knob, (want, name)) for knob, want in shipped.knobs.items())
    return found
