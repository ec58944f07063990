# SPDX-License-Identifier: Apache-2.0
"""What surrounds the driver: kernel log, limits, parameters, services. Asked only when CUDA does not start, and only what the
code that it returned makes worth knowing; after the calls, because nothing here depends on the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple, TypeVar

from ..configured import modprobe
from ..door.host import Host, Unrecorded, list_or_empty, read_or_none
from ..gpu import gpus
from ..machine import kernel_log, trace
from ..pci.bus import DEVICES, NVIDIA

HMM, UVM_USERS = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "/sys/module/nvidia_uvm/refcnt"
PARAMS, SUSPENDS = "/proc/driver/nvidia/params", "/sys/power/suspend_stats/success"
PRELOAD, LIMITS, STATUS = "/etc/ld.so.preload", "/proc/self/limits", "/proc/self/status"
OVERCOMMIT, MODULES = "/proc/sys/vm/overcommit_memory", "/lib/modules"
FABRIC, MODES, COMPUTING, LIST, DKMS = "fabric manager", "modes", "computing", "list", "dkms"
_COMMANDS = {
    FABRIC: ("systemctl", "show", "nvidia-fabricmanager.service", "-p", "LoadState,ActiveState"),
    MODES: ("nvidia-smi", "--query-gpu=index,name,compute_mode,mig.mode.current,uuid", "--format=csv,noheader"),
    COMPUTING: ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"),
    LIST: ("nvidia-smi", "-L"),
    DKMS: ("dkms", "status"),
}
CLASS_BRIDGE = "0x0680"
"""An NVSwitch is an NVIDIA function of this class."""

_FILES: Mapping[Any, Tuple[str, ...]] = {
    2: (LIMITS, OVERCOMMIT), 3: (HMM,), 304: (STATUS,), 999: (SUSPENDS, PARAMS, PRELOAD, UVM_USERS),
}  # fmt: skip
_ASKED: Mapping[Any, Tuple[str, ...]] = {802: (FABRIC,), 100: (MODES, LIST), 46: (MODES, COMPUTING)}
"""Code of cuInit, or of a context -> files, commands."""
_SETUID = "nvidia-smi"
"""Loads the module, makes and remakes nodes of GPUs where it finds them wrong: only asked where NVML has just found all of
that right, since a doctor heals nothing."""

T = TypeVar("T")


@dataclass(frozen=True)
class Surroundings:
    """log: lines of the kernel log about GPUs, oldest first; None when it may not be read or nobody asked.

    files      {path: text} of those that are there
    commands   {FABRIC, MODES ...: what it printed}
    nvswitches PCI addresses of NVIDIA bridges
    alone      {UUID: what cuInit returns when this GPU alone is visible}
    built      {kernel release: has it an nvidia module}; asked while none is loaded
    release    the kernel that runs, arch: its machine
    trace      the last system calls of cuInit that failed, as strace tells them
    """

    log: Optional[Tuple[str, ...]] = None
    files: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    nvswitches: Tuple[str, ...] = ()
    alone: Mapping[str, Any] = field(default_factory=dict)
    built: Mapping[str, bool] = field(default_factory=dict)
    release: str = ""
    arch: str = ""
    trace: Tuple[str, ...] = ()


def look(
    host: Host, calls: Mapping[str, Any], loaded: bool, sick: bool, deep: bool = False, whole: bool = True
) -> Surroundings:
    """calls: what the driver's libraries returned. loaded: is the nvidia module, sick: is a GPU or a node not as it should be.
    deep: trace a cuInit that fails. whole: every node of a GPU is there and opens.
    Never raises for what the machine answers: what has no answer is left out."""
    codes = {name: value for name, value in calls.items() if isinstance(value, int)}
    code = codes.get("cuInit", -1)
    context = next((value for name, value in codes.items() if name.startswith("cuCtxCreate@") and value), 0)
    if code == 0 and not context and not sick and loaded:
        return Surroundings()
    files = {path: _quiet(read_or_none, host, path) for path in _FILES.get(code, ())}
    names = _ASKED.get(code, ()) + _ASKED.get(context, ()) + (() if loaded else (DKMS,))
    harmless = loaded and whole and codes.get("nvmlInit") == 0
    commands = {name: _run(host, _COMMANDS[name]) for name in names if harmless or _COMMANDS[name][0] != _SETUID}
    return Surroundings(
        _quiet(kernel_log.lines, host),
        {path: text for path, text in files.items() if text is not None},
        {name: text for name, text in commands.items() if text},
        _nvswitches(host) if code == 802 else (),
        _alone(host) if code == 999 else {},
        {} if loaded else _built(host),
        *host.uname()[1:],
        tuple(_quiet(trace.failed, host) or ()) if deep and code > 0 else (),
    )


def _quiet(ask: Callable[..., T], *arguments: Any) -> Optional[T]:
    try:
        return ask(*arguments)
    except (OSError, Unrecorded, ValueError, TypeError, LookupError):
        return None


def _run(host: Host, argv: Sequence[str]) -> str:
    ran = _quiet(host.run, argv)
    return "" if ran is None or ran.rc else ran.out


def _nvswitches(host: Host) -> Tuple[str, ...]:
    def word(bdf: str, name: str) -> str:
        return (_quiet(host.read, "%s/%s/%s" % (DEVICES, bdf, name)) or "").strip()

    names = _quiet(list_or_empty, host, DEVICES) or []
    return tuple(bdf for bdf in names if word(bdf, "vendor") == NVIDIA and word(bdf, "class").startswith(CLASS_BRIDGE))


def _alone(host: Host) -> Dict[str, Any]:
    """One sick GPU can make cuInit fail for all: each is asked alone. Nothing where there is only one."""
    uuids = sorted((_quiet(gpus.uuids, host) or {}).values())
    if len(uuids) < 2:
        return {}
    got = _quiet(host.inquire, (), ["cuInit@" + uuid for uuid in uuids], None, None, 10)
    return {uuid: got.calls["cuInit@" + uuid] for uuid in uuids if "cuInit@" + uuid in got.calls} if got else {}


def _built(host: Host) -> Dict[str, bool]:
    """By modinfo, which reads files and loads nothing."""
    found: Dict[str, bool] = {}
    name = (_quiet(modprobe.behind, host, "nvidia") or ["nvidia"])[-1]
    for release in _quiet(list_or_empty, host, MODULES) or []:
        ran = _quiet(host.run, ("modinfo", "-k", release, "-F", "filename", name))
        if ran is not None and ran.rc != 127 and not ran.timeout:
            found[release] = ran.rc == 0
    return found
