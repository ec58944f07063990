# SPDX-License-Identifier: Apache-2.0
"""Who else sets a value, and in which file and line: sysctl.d, tmpfiles.d, modprobe.d, systemd, tuned, kernel command line."""
