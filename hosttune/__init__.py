# SPDX-License-Identifier: Apache-2.0
"""hosttune: see, judge and change multi-GPU Linux hosts. Nothing is imported here: start-up is felt every time."""

__version__ = "0.1.0"
