# SPDX-License-Identifier: Apache-2.0
"""The Proxmox face of the lab: pmxcfs, pct and pve-guests as far as ../README.md says, on Debian's own LXC."""
