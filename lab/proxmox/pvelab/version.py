# SPDX-License-Identifier: Apache-2.0
"""`pveversion`: one line, or with -v the packages that hosttune looks at."""

from __future__ import annotations

import os

MANAGER, CONTAINER = "8.4.14", "5.3.5"


def main(argv: list[str]) -> int:
    kernel = os.uname().release
    if argv and argv[0] in ("-v", "--verbose"):
        print(f"proxmox-ve: 8.4.0 (running kernel: {kernel})")
        print(f"pve-manager: {MANAGER} (running version: {MANAGER}/b502d23c55afcba1)")
        print("lxc-pve: 6.0.0-1")
        print("pve-cluster: 8.1.2")
        print(f"pve-container: {CONTAINER}")
        return 0
    print(f"pve-manager/{MANAGER}/b502d23c55afcba1 (running kernel: {kernel})")
    return 0
