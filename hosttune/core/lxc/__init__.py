# SPDX-License-Identifier: Apache-2.0
"""Container configs: what a file says, what Proxmox VE and LXC make of it, and the smallest edit that heals it."""
