# SPDX-License-Identifier: Apache-2.0
"""Docker inside a container: what NVIDIA's runtime needs there to pass the GPUs on.

In a user namespace it may not write device rules: `no-cgroups = true`. A CDI file names device numbers, which move like
those in the container's own config.
"""

from __future__ import annotations

import re
from typing import List

from ..catalogue import finding
from ..door.host import Host, read_or_none
from ..machine.devices import UVM, DeviceTable
from ..model import FAIL, OK, PROVED, WARN, Finding, Hint
from . import inside
from .entries import entries
from .store import Config

ID = "HT436"
RUNTIME, CDI = "/etc/nvidia-container-runtime/config.toml", ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")


def advice(host: Host, config: Config, devices: DeviceTable) -> List[Finding]:
    """Nothing unless dockerd runs in the container now (seen from the host; the container is entered only then)."""
    ran = host.run(["pgrep", "-x", "dockerd"])
    mark = re.compile(r"(/lxc/%s|/lxc\.payload\.%s)(/|\Z)" % ((re.escape(config.id),) * 2), re.MULTILINE)
    pids = [pid for pid in ran.out.split() if pid.isdigit()] if ran.rc == 0 else []
    if not any(mark.search(read_or_none(host, "/proc/%s/cgroup" % pid) or "") for pid in pids):
        return []
    out: List[Finding] = []
    words = inside.enter(host, config.id)
    runtime = host.run([*words, "cat", RUNTIME])
    enter = "pct exec %s --" % config.id if config.lock else "lxc-attach -n %s --" % config.id
    if runtime.rc == 0 and entries(config.document, config.document.judged).free:
        if not re.search(r"(?m)^\s*no-cgroups\s*=\s*true\b", runtime.out):
            command = enter + " nvidia-ctk config --set nvidia-container-cli.no-cgroups --in-place"
            out.append(finding(ID, WARN, config.subject, "Docker runs in it, and NVIDIA's runtime would write device rules, "
                               "which an unprivileged container may not", have="no-cgroups = false", want="no-cgroups = true",
                               hint=Hint(command, "host", "Docker's containers get it at their next start", "reconfigure"),
                               evidence=(RUNTIME,)))
    for path in CDI:
        spec = host.run([*words, "cat", path])
        for major in sorted(set(_uvm_majors(spec.out))) if spec.rc == 0 else []:
            if devices.major(UVM) is not None and major != devices.major(UVM):
                command = "%s nvidia-ctk cdi generate --output=%s" % (enter, path)
                out.append(finding(ID, FAIL, config.subject, "Docker runs in it, and its CDI file says that nvidia-uvm is %d: it "
                                   "is %d now" % (major, devices.major(UVM) or 0), have=str(major), want=str(devices.major(UVM)),
                                   hint=Hint(command, "host", "Docker's containers get it at their next start", "reconfigure"),
                                   evidence=(path,), proof=PROVED))
    return out or [finding(ID, OK, config.subject, "Docker runs in it, and nothing that it was told of the GPUs is out of date")]


def _uvm_majors(text: str) -> List[int]:
    """Majors that a CDI file gives for nvidia-uvm. Not parsed as YAML: the core has no such library, and one block of
    `path:` with its `major:` is all that is asked."""
    found = []
    for block in re.split(r"(?m)^\s*-\s", text):
        if re.search(r"(?m)path:\s*[\"']?/dev/nvidia-uvm[\"']?\s*$", block):
            found += [int(number) for number in re.findall(r"(?m)^\s*major:\s*(\d{1,4})\s*$", block)]
    return found
