# SPDX-License-Identifier: Apache-2.0
"""`pve-guests startall|stopall`: what pve-guests.service runs at boot and at shutdown."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from . import conf, guest, ha, power
from .guest import Failure, warn

LAST = 2**31


def order(vmids: Sequence[int]) -> list[tuple[int, conf.Config]]:
    """By `startup: order=`, those without one last, then by vmid."""
    loaded = [(vmid, guest.load(vmid)) for vmid in vmids]
    return sorted(loaded, key=lambda one: (int(_startup(one[1]).get("order", LAST)), one[0]))


def _startup(config: conf.Config) -> dict[str, str]:
    return conf.properties(config.get("startup"), "order") if config.get("startup") else {}


def startall() -> int:
    """Wait for quorum, then start what has `onboot: 1`. One that fails is told and does not keep the others."""
    if not guest.quorate():
        print("waiting for quorum ...", flush=True)
        while not guest.quorate():
            time.sleep(1)
        print("got quorum", flush=True)
    wanted = [(vmid, config) for vmid, config in order(guest.vmids()) if config.get("onboot") == "1"]
    for vmid, config in wanted:
        if guest.running(vmid) or config.get("template") == "1" or ha.managed(vmid):
            continue
        print(f"Starting CT {vmid}", flush=True)
        try:
            power.start(vmid)
        except Failure as refusal:
            warn(f"Starting CT {vmid} failed: {refusal}")
        time.sleep(int(_startup(config).get("up", "0")))
    return 0


def stopall() -> int:
    """Shut all running ones down in the reverse order; what does not end in `down` seconds (60) is killed."""
    for vmid, config in reversed(order(guest.vmids())):
        if not guest.running(vmid):
            continue
        print(f"Stopping CT {vmid}", flush=True)
        try:
            power.shutdown(vmid, int(_startup(config).get("down", "60")), force=True)
        except Failure as refusal:
            warn(f"Stopping CT {vmid} failed: {refusal}")
    return 0


def main(argv: list[str]) -> int:
    if argv == ["startall"]:
        return startall()
    if argv == ["stopall"]:
        return stopall()
    sys.stderr.write("usage: pve-guests startall|stopall\n")
    return 2
