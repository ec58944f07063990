# SPDX-License-Identifier: Apache-2.0
"""Faces of a Report: pure functions, no machine access, no exit code."""
