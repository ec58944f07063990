# SPDX-License-Identifier: Apache-2.0
"""The kernel command line: read, and the edit for the next boot, which bash, sed and a real file judge here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hosttune.core.configured import cmdline
from hosttune.core.recording.replay import ReplayHost

ABSENT = {"errno": "ENOENT"}
LOADER_INFO = "07000000" + "systemd-boot 257.9".encode("utf-16-le").hex()


def machine(line: str, systemd_boot: bool = False, proxmox: bool = True) -> ReplayHost:
    files: dict[str, Any] = {
        cmdline.NOW: line + "\n",
        cmdline.LOADER_INFO: {"hex": LOADER_INFO} if systemd_boot else ABSENT,
        cmdline.PROXMOX_ESPS: "1234-ABCD\n" if proxmox else ABSENT,
    }
    return ReplayHost({"files": files})


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("ro quiet", "iommu", None), ("ro iommu=pt quiet", "iommu", "pt"), ("ro iommu=off iommu=pt", "iommu", "pt"),
        ("ro quiet", "quiet", ""), ("intel-idle.max_cstate=1", "intel_idle.max_cstate", "1"), ("amd_iommu=on", "iommu", None),
    ],
)  # fmt: skip
def test_the_last_value_counts_and_names_are_whole(line: str, name: str, value: str | None) -> None:
    assert cmdline.value(machine(line), name) == value


GRUB = 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="{}"\nGRUB_CMDLINE_LINUX=""\n'


@pytest.mark.parametrize(
    ("before", "add", "drop", "after"),
    [
        ("quiet", "iommu=pt", "", "iommu=pt quiet"),
        ("quiet iommu=off x", "iommu=pt", "", "quiet iommu=pt x"),
        ("iommu=off", "iommu=pt", "", "iommu=pt"),
        ("quiet amd_iommu=on pci=pcie_bus_perf", "", "pci", "quiet amd_iommu=on "),
        (
            "quiet a=b",
            "pci=disable_acs_redir=0000:c0:01.1;pci:12d8/1",
            "",
            "pci=disable_acs_redir=0000:c0:01.1;pci:12d8/1 quiet a=b",
        ),
    ],
)
@pytest.mark.parametrize("systemd_boot", [False, True])
def test_the_edit_is_one_that_a_shell_and_sed_do(
    before: str, add: str, drop: str, after: str, systemd_boot: bool, tmp_path: Path
) -> None:
    where, line = cmdline.edit(machine(before, systemd_boot), add, drop)
    file = tmp_path / "file"
    file.write_text("root=ZFS=rpool/ROOT/pve-1 boot=zfs " + before + "\n" if systemd_boot else GRUB.format(before))
    command, _, renew = line.replace(where, str(file)).partition(" && ")
    subprocess.run(["bash", "-c", command], check=True)
    if systemd_boot:
        assert (where, renew) == ("/etc/kernel/cmdline", "proxmox-boot-tool refresh")
        assert sorted(file.read_text().split()) == sorted(["root=ZFS=rpool/ROOT/pve-1", "boot=zfs", *after.split()])
        assert file.read_text().count("\n") == 1
    else:
        assert (where, renew, file.read_text()) == ("/etc/default/grub", "update-grub", GRUB.format(after))


def test_systemd_boot_without_proxmox_is_renewed_by_its_own_tool() -> None:
    assert cmdline.edit(machine("ro", True, proxmox=False), "iommu=pt")[1].endswith("kernel-install add-all")
