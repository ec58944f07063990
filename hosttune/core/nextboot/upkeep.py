# SPDX-License-Identifier: Apache-2.0
"""What is not settled on disk: driver packages half installed, upgrades that wait, upgrades that happen unasked (HT712)."""

from __future__ import annotations

import re
import shlex
from typing import List, Sequence, Set, Tuple

from ..catalogue import finding
from ..door.host import Host, Ran
from ..model import ERROR, FAIL, FITS, OK, PROVED, WARN, Finding, Hint

PATTERNS = ("*nvidia*", "libcuda1*", "proxmox-kernel-*", "pve-kernel-*", "linux-image-*")
QUERY = ("dpkg-query", "-W", "-f", "${Package}\\t${Status}\\t${Version}\\n", *PATTERNS)
POLICY = ("apt-cache", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "policy")
"""Needs no lock and, told not to keep its caches, writes nothing; a simulated dist-upgrade takes three times as long."""
SETTINGS = (
    "apt-config",
    "dump",
    "--format",
    "%f=%v%n",
    "APT::Periodic::Unattended-Upgrade",
    "Unattended-Upgrade::Package-Blacklist",
)
_DRIVER = re.compile(r"nvidia|libcuda")


def judge(host: Host) -> List[Finding]:
    """HT712. Nothing on a machine without dpkg."""
    ran = host.run(QUERY)
    if ran.rc == 127:
        return []
    packages = [tuple(line.split("\t")) for line in ran.out.splitlines() if line.count("\t") == 2]
    broken = [row for row in packages if not row[1].endswith((" installed", " config-files", " not-installed"))]
    if broken:
        return [
            finding(
                "HT712",
                FAIL,
                broken[0][0],
                "%d package%s half installed" % (len(broken), " is" if len(broken) == 1 else "s are"),
                have=broken[0][1],
                want="install ok installed",
                proof=PROVED,
                evidence=tuple("%s: %s" % (name, status) for name, status, _ in broken[:3]),
                hint=Hint("dpkg --configure -a", "host", "may build modules, which takes minutes", "apply"),
            )
        ]
    held = {name for name, status, _ in packages if status.startswith("hold ")}
    driver = [name for name, status, _ in packages if _DRIVER.search(name) and status.endswith(" installed")]
    names = [name for name, status, _ in packages if status.endswith(" installed") and name not in held]
    found = _waiting(host, names) + _unasked(host, held, driver)
    return found or [finding("HT712", OK, "packages", "no upgrade of driver or kernel waits, and none happens unasked")]


def _waiting(host: Host, names: Sequence[str]) -> List[Finding]:
    ran = host.run((*POLICY, *names), timeout=60) if names else Ran(0)
    if ran.rc or ran.timeout:
        said = (ran.err.strip().splitlines() or ["exit code %d" % ran.rc])[-1]
        return [
            finding(
                "HT712",
                ERROR,
                "packages",
                "apt-cache does not say what can be upgraded: %s" % said,
                hint=Hint("apt-cache policy %s" % " ".join(map(shlex.quote, names)), "host", "", "look"),
            )
        ]
    rows: List[Tuple[str, str, str]] = re.findall(r"(?m)^(\S+):\n +Installed: (\S+)\n +Candidate: (\S+)", ran.out)
    waiting = [(name, candidate) for name, installed, candidate in rows if candidate not in (installed, "(none)")]
    if not waiting:
        return []
    return [
        finding(
            "HT712",
            WARN,
            waiting[0][0],
            "%d upgrade%s of driver or kernel wait%s: install them before the reboot, or after it"
            % (len(waiting), "s"[: len(waiting) > 1], "s"[: len(waiting) == 1]),
            have="waiting",
            want="installed or held",
            proof=PROVED,
            evidence=tuple("%s -> %s" % row for row in waiting[:3]),
            hint=Hint(
                "apt dist-upgrade && hosttune doctor --next-boot", "host", "a driver update is in use after the reboot"
            ),
        )
    ]


def _unasked(host: Host, held: Set[str], driver: List[str]) -> List[Finding]:
    """Unattended upgrades that may change the driver's half on disk while the other half is loaded."""
    ran = host.run(SETTINGS)
    rows = [line.partition("=")[::2] for line in ran.out.splitlines()]
    on = any(name == "APT::Periodic::Unattended-Upgrade" and value not in ("0", "") for name, value in rows)
    kept_out = [value for name, value in rows if name == "Unattended-Upgrade::Package-Blacklist::" and value]
    free = [name for name in driver if name not in held and not any(_matches(pattern, name) for pattern in kept_out)]
    if not on or not free:
        return []
    return [
        finding(
            "HT712",
            WARN,
            free[0],
            "unattended upgrades may change the driver under the loaded module",
            have="on",
            want="held",
            proof=FITS,
            decide="unattended-upgrade --dry-run --debug",
            evidence=("APT::Periodic::Unattended-Upgrade is on", "not held: %s" % ", ".join(free[:3])),
            hint=Hint("apt-mark hold %s" % " ".join(map(shlex.quote, free)), "host", "upgrade them by hand: apt-mark unhold ..."),
        )
    ]


def _matches(pattern: str, name: str) -> bool:
    try:
        return bool(re.match(pattern, name))
    except re.error:
        return False
