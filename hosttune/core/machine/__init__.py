# SPDX-License-Identifier: Apache-2.0
"""Thin edges of any Linux machine, one subject each: numbers, processes, ports, the kernel's words. They judge nothing."""
