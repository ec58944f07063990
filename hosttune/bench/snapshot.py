# SPDX-License-Identifier: Apache-2.0
"""Under which circumstances a result was measured: what of this machine must be equal for two results to be compared.

`stable` is that; `moment` is what differs each time anyway (load, boot).
"""

from __future__ import annotations

import re
from typing import Any

from .. import nvml
from ..core.door.glance import Glance
from ..core.door.host import Host, errname, list_or_empty, read_or_none
from ..core.knobs import KNOBS
from ..core.machine import container
from ..core.model import Refused

GPUS = "/proc/driver/nvidia/gpus"


def take(host: Host, gpus: nvml.Answer | None = None) -> dict[str, dict[str, str]]:
    """{"stable": {..}, "moment": {..}}, all texts. What cannot be told says so, and so differs from what could.

    gpus: what NVML says; None leaves it out (no GPU is used).
    """
    node, kernel, machine = host.uname()
    stable = {
        "host": node,
        "kernel": kernel,
        "machine": machine,
        "kernel command line": _text(host, "/proc/cmdline"),
        "container": container.inside(host) or "no",
        "system": _line(_text(host, "/etc/os-release"), r'^PRETTY_NAME="?([^"\n]*)'),
        "processor": _line(_text(host, "/proc/cpuinfo"), r"^model name\s*:\s*(.*)"),
        "processors online": _text(host, "/sys/devices/system/cpu/online"),
        "frequency governor": _governors(host),
        "NUMA nodes": _text(host, "/sys/devices/system/node/online"),
        "memory": _line(_text(host, "/proc/meminfo"), r"^MemTotal:\s*(.*)"),
        "NVIDIA driver": _line(_text(host, "/proc/driver/nvidia/version"), r"Module\s+(?:for \S+\s+)?([\d.]+)"),
        "GPUs": _gpus(host),
    }
    look = Glance(host)
    for name, knob in KNOBS.items():
        if not knob.starts and not knob.passing:
            stable.update({"%s %s" % (name, subject): value for subject, value in _knob(look, knob).items()})
    for gpu in gpus.gpus if gpus else ():
        stable["GPU %s settings" % gpu.bdf] = _settings(gpu)
    moment = {
        "load average": _text(host, "/proc/loadavg"),
        "boot": _text(host, "/proc/sys/kernel/random/boot_id"),
    }
    for gpu in gpus.gpus if gpus else ():
        moment["GPU %s" % gpu.bdf] = _condition(gpu)
    return {"stable": {key: value for key, value in stable.items() if value}, "moment": moment}


def _settings(gpu: nvml.Gpu) -> str:
    """What an owner sets and a reboot may lose: it decides speed, so two results with other settings are not compared."""
    told = {"power limit": None if gpu.power_limit is None else "%.0f W" % gpu.power_limit, "persistence": _on(gpu.persistence),
            "ECC": _on(gpu.ecc), "MIG": _on(gpu.mig)}  # fmt: skip
    return ", ".join("%s %s" % (key, value) for key, value in told.items() if value is not None)


def _on(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _condition(gpu: nvml.Gpu) -> str:
    told = ["%d MiB in use" % (gpu.used >> 20)]
    told += [] if gpu.temperature is None else ["%d degrees" % gpu.temperature]
    told += [] if gpu.power is None else ["%.0f W" % gpu.power]
    return ", ".join(told + ["slowed down: %s" % ", ".join(gpu.throttled)] * bool(gpu.throttled))


def _text(host: Host, path: str) -> str:
    try:
        return (read_or_none(host, path) or "").strip()
    except OSError as e:
        return "could not tell (%s)" % errname(e)


def _line(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1).strip() if found else text if text.startswith("could not tell") else ""


def _governors(host: Host) -> str:
    folder = "/sys/devices/system/cpu/cpufreq"
    found = {_text(host, "%s/%s/scaling_governor" % (folder, name)) for name in list_or_empty(host, folder)}
    return ", ".join(sorted(found - {""}))


def _gpus(host: Host) -> str:
    found = [
        "%s %s" % (bdf, _line(_text(host, "%s/%s/information" % (GPUS, bdf)), r"^Model:\s*(.*)"))
        for bdf in list_or_empty(host, GPUS)
    ]
    return "; ".join(found)


def _knob(host: Host, knob: Any) -> dict[str, str]:
    try:
        if knob.skip(host):
            return {}
        readings = knob.read(host)
    except (OSError, Refused) as e:
        return {"": "could not tell (%s)" % (errname(e) if isinstance(e, OSError) else e.what)}
    return {subject: r.have or ("could not tell (%s)" % r.error if r.error else "") for subject, r in readings.items()}
