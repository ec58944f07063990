# SPDX-License-Identifier: Apache-2.0
"""Whose a GPU is, and whose a container is: named by number, address or UUID; given to a machine; started by the HA manager."""

from __future__ import annotations

import pytest

from hosttune.core.gpu import gpus
from hosttune.core.lxc import store, vms
from hosttune.core.model import Refused
from hosttune.core.recording.merge import merge
from tests.unit.test_lxc_cpus import two_sockets
from tests.unit.test_lxc_store import Paper, a_node

UUID = "GPU-0a1b2c3d-0000-4000-8000-00000000000b"
VFIO = "0000:41:00.0"


def host(**over: object) -> Paper:
    """Two GPUs of the nvidia driver, of which the second has a UUID, and one that is bound to vfio-pci."""
    base = "/sys/bus/pci/devices/%s/" % VFIO
    info = "/proc/driver/nvidia/gpus/0000:c1:00.0/information"
    more = {"files": {base + "vendor": "0x10de\n", base + "class": "0x030200\n", base + "numa_node": "0\n",
                      info: "GPU UUID: \t %s\nDevice Minor: \t 1\n" % UUID},
            "links": {base + "driver": "../../../bus/pci/drivers/vfio-pci"},
            "dirs": {"/sys/bus/pci/devices": ["0000:11:00.0", "0000:c1:00.0", VFIO]}}  # fmt: skip
    return two_sockets(b"", **merge(more, over))


@pytest.mark.parametrize(("said", "want"), [
    ("1,0", (0, 1)), ("0000:c1:00.0", (1,)), ("C1:00.0", (1,)), (UUID, (1,)), ("0,%s,c1:00.0" % UUID, (0, 1)), ("numa:1", (1,)),
])
def test_a_gpu_by_any_of_its_names(said: str, want: tuple[int, ...]) -> None:
    assert gpus.chosen(host(), said) == want


@pytest.mark.parametrize(("said", "what"), [
    (VFIO, "0000:41:00.0 is bound to vfio-pci, not to nvidia"), ("0000:ff:00.0", "the driver has no GPU 0000:ff:00.0"),
    ("GPU-ffffffff", "the driver has no GPU GPU-ffffffff"),
])
def test_a_gpu_that_the_driver_does_not_have(said: str, what: str) -> None:
    with pytest.raises(Refused) as refused:
        gpus.chosen(host(), said)
    assert refused.value.what == what and "GPUs of the driver: " in refused.value.way_out


def test_a_hostpci_line_and_a_mapping_both_give_a_gpu_away() -> None:
    plain = {"files": {"/etc/pve/qemu-server/100.conf": "name: a\nhostpci0: c1:00,pcie=1\n\n[old]\nhostpci1: 11:00\n"},
             "dirs": {"/etc/pve/qemu-server": ["100.conf"]}}  # fmt: skip
    mapped = {"files": {"/etc/pve/qemu-server/100.conf": "hostpci0: mapping=card,pcie=1\n",
                        "/etc/pve/mapping/pci.cfg": "card\n\tmap id=10de:2bb5,node=pve1,path=0000:c1:00.0\n"},
              "dirs": {"/etc/pve/qemu-server": ["100.conf"]}}  # fmt: skip
    assert vms.assigned(host(**plain)) == {1: "/etc/pve/qemu-server/100.conf:2"}
    assert vms.assigned(host(**mapped)) == {1: "/etc/pve/qemu-server/100.conf:1"}
    assert vms.assigned(host()) == {}


@pytest.mark.parametrize(("text", "managed"), [
    ("ct: 200\n\tstate started\n", True), ("ct: 200\n", True), ("vm: 100\n\nct: 200\n\tgroup a\n\tstate stopped\n", True),
    ("ct: 200\n\tstate ignored\n", False), ("ct: 2000\n\tstate started\n", False), ("vm: 200\n\tstate started\n", False),
    ("ct: 200\n\tstate started\n\nct: 201\n\tstate ignored\n", True), ("", False),
])
def test_who_starts_a_container(text: str, managed: bool) -> None:
    assert store.is_ha_managed(a_node(files={"/etc/pve/ha/resources.cfg": text}), "200") is managed
