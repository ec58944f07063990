# SPDX-License-Identifier: Apache-2.0
"""Under which circumstances a result was measured: what of this machine must be equal for two results to be compared.

`stable` is that; `moment` is what differs each time anyway (load, boot).
"""

from __future__ import annotations

import re
from typing import Any

from ..core import container
from ..core.host import Host, errname, list_or_empty, read_or_none
from ..core.knobs import KNOBS
from ..core.model import Refused

GPUS = "/proc/driver/nvidia/gpus"


def take(host: Host) -> dict[str, dict[str, str]]:
    """{"stable": {..}, "moment": {..}}, all texts. What cannot be told says so, and so differs from what could."""
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
    for name, knob in KNOBS.items():
        stable.update({"%s %s" % (name, subject): value for subject, value in _knob(host, knob).items()})
    moment = {
        "load average": _text(host, "/proc/loadavg"),
        "boot": _text(host, "/proc/sys/kernel/random/boot_id"),
    }
    return {"stable": {key: value for key, value in stable.items() if value}, "moment": moment}


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
