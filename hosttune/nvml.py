# SPDX-License-Identifier: Apache-2.0
"""GPU facts through NVML (nvidia-ml-py): who computes, how much memory is used, what throttles.

Loading libnvidia-ml can repair device nodes (it makes wrong ones anew), so it is asked after the nodes were looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReason* (nvml.h) that slow a GPU down; idle (0x1) and set clocks (0x2) are no throttling."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory in bytes, temperature in degrees Celsius, power in watts; None for what this GPU does not tell.

    processes: (pid, bytes or None) of each process that computes, as the host numbers them; another PID namespace sees its
    own, or none. bdf: as in /sys/bus/pci/devices.
    """

    index: int
    uuid: str
    bdf: str
    name: str
    memory: int
    used: int
    processes: tuple[tuple[int, int | None], ...] = ()
    busy_percent: int | None = None
    temperature: int | None = None
    power: float | None = None
    throttled: tuple[str, ...] = ()
    persistence: bool | None = None
    power_limit: float | None = None
    ecc: bool | None = None
    mig: bool | None = None


@dataclass(frozen=True)
class Answer:
    """The GPUs and the driver's version; or `why` there is no answer."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    why: str = ""


def ask() -> Answer:
    """All GPUs that NVML sees from here. Never raises: a machine without a driver is an answer, too."""
    try:
        import pynvml
    except ImportError:
        return Answer(why="nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        return Answer(why=str(e))
    try:
        count = pynvml.nvmlDeviceGetCount()
        return Answer(tuple(_gpu(pynvml, n) for n in range(count)), _text(pynvml.nvmlSystemGetDriverVersion()))
    except pynvml.NVMLError as e:
        return Answer(why=str(e))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    reasons = _maybe(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    power = _maybe(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    rates = _maybe(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    running = _maybe(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    persistence = _maybe(nvml, lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    limit = _maybe(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    ecc = _maybe(nvml, lambda: nvml.nvmlDeviceGetEccMode(handle))
    mig = _maybe(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return Gpu(
        index,
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _bdf(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        _text(nvml.nvmlDeviceGetName(handle)),
        int(memory.total),
        int(memory.used),
        tuple((int(p.pid), p.usedGpuMemory) for p in running or ()),
        None if rates is None else int(rates.gpu),
        _maybe(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        None if power is None else power / 1000,
        tuple(words for bit, words in THROTTLE.items() if reasons & bit),
        None if persistence is None else bool(persistence),
        None if limit is None else limit / 1000,
        None if ecc is None else bool(ecc[0]),
        None if mig is None else bool(mig[0]),
    )  # fmt: skip


def _maybe(nvml: Any, ask: Callable[[], Any]) -> Any:
    """None for what this GPU or driver does not support."""
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bdf(text: str) -> str:
    """NVML writes a domain of eight digits in capitals, sysfs one of four in small letters."""
    domain, _, rest = text.lower().partition(":")
    return "%04x:%s" % (int(domain, 16), rest)
