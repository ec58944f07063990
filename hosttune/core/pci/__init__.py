# SPDX-License-Identifier: Apache-2.0
"""PCI as sysfs and config space tell it: functions, registers, links, error counters, and the way from socket to GPU."""
