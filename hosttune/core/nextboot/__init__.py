# SPDX-License-Identifier: Apache-2.0
"""Will this host survive its next reboot? What is on disk now, judged as the kernel, the modules and the guests will meet it."""
