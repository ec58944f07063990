# SPDX-License-Identifier: Apache-2.0
"""The one door to a machine: its questions and effects (host), this very machine (live), and how each is asked safely."""
