# SPDX-License-Identifier: Apache-2.0
"""Inference engines as systemd units: declared once, rendered, linted, placed, started, awaited."""
