# SPDX-License-Identifier: Apache-2.0
"""Parts of /proc and /sys replaced by bind mounts, for this process, its children and, where asked, a container.

Binding needs an existing target: /proc and /sys take no new names. So a single file is bound over the real one, a folder
over its real (maybe empty) parent: /proc/driver, /sys/bus/pci. /sys/module becomes an overlay: the machine's own modules
stay and new ones can be added (sysfs may be an overlay's lower layer, procfs may not: measured).
Everything is taken back by `undo()`; the machine's own values are never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kernel.pci_tree import PciFunction, write_bus
from tests.kernel.view import mount, scratch, unmount

VERSION = "580.159.04"
"""Driver version of the trees and of the stand-in libraries."""
GPU_UUID = "GPU-00000000-0000-4000-8000-{index:012d}"
OTHER_CHARACTER_DEVICES = {
    1: ["mem"], 4: ["/dev/vc/0", "tty", "ttyS"], 5: ["/dev/tty", "/dev/console", "/dev/ptmx"], 10: ["misc"], 13: ["input"],
    29: ["fb"], 128: ["ptm"], 136: ["pts"], 226: ["drm"], 238: ["nvidia-nvlink"], 243: ["hidraw"], 249: ["watchdog"],
    254: ["gpiochip"],
}  # fmt: skip


def proc_devices_text(uvm: int | None = 511, nvidia: bool = True, caps: int | None = 234) -> str:
    """/proc/devices of a GPU host: None or False for a module that is not loaded."""
    table = dict(OTHER_CHARACTER_DEVICES)
    if nvidia:
        table[195] = ["nvidia", "nvidiactl"]
        if caps is not None:
            table[caps] = ["nvidia-caps"]
    if uvm is not None:
        table[uvm] = ["nvidia-uvm"]
    lines = [f"{major:3d} {name}" for major in sorted(table) for name in table[major]]
    return "\n".join(["Character devices:", *lines, "", "Block devices:", "  7 loop", "  8 sd", "259 blkext", ""])


def gpu_information(index: int, bdf: str) -> str:
    """/proc/driver/nvidia/gpus/BDF/information, with the driver's own padding (measured)."""
    return (
        "Model: \t\t NVIDIA RTX PRO 6000 Blackwell Server Edition\n"
        f"IRQ:   \t\t {100 + index}\nGPU UUID: \t {GPU_UUID.format(index=index)}\nVideo BIOS: \t 98.02.55.00.01\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t {bdf}\n"
        f"Device Minor: \t {index}\nGPU Firmware: \t {VERSION}\nGPU Excluded:\t No\n"
    )


MODULES = Path("/sys/module")


class FakeTrees:
    """What a test puts over /proc and /sys. Each method may be called again to change what it gave before."""

    def __init__(self) -> None:
        self._mounts: dict[Path, Path] = {}
        """Target in /proc or /sys -> the folder or file that is bound there, in mount order."""

    def file(self, path: str, text: str) -> Path:
        """Bind a file over an existing one; returns the file behind it (what a writer under test has left there)."""
        target = Path(path)
        if target not in self._mounts:
            behind = scratch(target.name) / target.name
            behind.write_text(text)
            self._bind(behind, target)
        self._mounts[target].write_text(text)
        return self._mounts[target]

    def folder(self, path: str, files: Mapping[str, str]) -> Path:
        """Bind a new folder with these files (relative path -> text) over an existing one; returns the folder behind it."""
        target = Path(path)
        if target in self._mounts:
            self._drop(target)
        behind = scratch(target.name)
        for name, text in files.items():
            (behind / name).parent.mkdir(parents=True, exist_ok=True)
            (behind / name).write_text(text)
        self._bind(behind, target)
        return behind

    def proc_devices(self, uvm: int | None = 511, nvidia: bool = True, caps: int | None = 234) -> Path:
        return self.file("/proc/devices", proc_devices_text(uvm, nvidia, caps))

    def driver(self, gpus: Sequence[str] = ("0000:11:00.0",), version: str | None = VERSION) -> Path:
        """/proc/driver/nvidia with these BDFs; version None: the module is not loaded, the folder is absent."""
        if version is None:
            return self.folder("/proc/driver", {})
        files = {
            "nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (builder)\n"
            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n",
            "nvidia/params": "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
        }
        for index, bdf in enumerate(gpus):
            files[f"nvidia/gpus/{bdf}/information"] = gpu_information(index, bdf)
        return self.folder("/proc/driver", files)

    def module(self, name: str, version: str | None = None, parameters: Mapping[str, str] | None = None) -> Path:
        """A loaded module in /sys/module, e.g. nvidia or nvidia_uvm."""
        modules = MODULES
        if modules not in self._mounts:
            upper, work = scratch("module"), scratch("module-work")
            mount("-t", "overlay", "-o", f"lowerdir={modules},upperdir={upper},workdir={work}", "overlay", str(modules))
            self._mounts[modules] = upper
        folder = modules / name
        (folder / "parameters").mkdir(parents=True, exist_ok=True)
        (folder / "refcnt").write_text("0\n")
        (folder / "initstate").write_text("live\n")
        if version is not None:
            (folder / "version").write_text(version + "\n")
        for key, value in (parameters or {}).items():
            (folder / "parameters" / key).write_text(value + "\n")
        return folder

    def pci(self, functions: Sequence[PciFunction]) -> Path:
        """/sys/bus/pci with these functions and no others; returns the folder behind it."""
        behind = self.folder("/sys/bus/pci", {})
        write_bus(behind, functions)
        return behind

    def gpu_host(self, gpus: int = 1, uvm: int | None = 511) -> None:
        """A healthy GPU host with `gpus` cards (at most 8): /proc/devices, the driver's folder and modules, the PCI bus."""
        functions = self.functions(gpus)
        self.proc_devices(uvm=uvm)
        self.driver([function.bdf for function in functions])
        self.module("nvidia", VERSION, {"NVreg_ModifyDeviceFiles": "1"})
        if uvm is not None:
            self.module("nvidia_uvm", VERSION, {"uvm_disable_hmm": "N"})
        self.pci(functions)

    @staticmethod
    def functions(gpus: int) -> list[PciFunction]:
        """The GPUs of that host: 0 to 3 on NUMA node 0, 4 to 7 on node 1."""
        return [PciFunction(f"0000:{number + 1}1:00.0", numa_node=0 if number < 4 else 1) for number in range(gpus)]

    def container_entries(self) -> str:
        """LXC config lines that show the faked parts of /proc and /sys inside a container too.

        Needed because a container mounts a /proc and a /sys of its own; on a real host these files are not namespaced,
        so the container sees the host's truth, as it does with these lines. What is shown of an overlay is its merged
        view, hence the target itself.
        """
        return "".join(
            f"lxc.mount.entry = {target if target == MODULES else behind} {str(target).lstrip('/')} none bind,ro\n"
            for target, behind in self._mounts.items()
            if not target.is_relative_to("/proc/sys")
        )

    def undo(self) -> None:
        for target in reversed(list(self._mounts)):
            self._drop(target)

    def _bind(self, behind: Path, target: Path) -> None:
        if not target.exists():
            raise FileNotFoundError(f"{target} is not on this machine, and nothing can be bound over a missing path")
        mount("--bind", str(behind), str(target))
        self._mounts[target] = behind

    def _drop(self, target: Path) -> None:
        unmount(target)
        del self._mounts[target]
