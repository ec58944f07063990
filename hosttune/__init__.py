# SPDX-License-Identifier: Apache-2.0
"""hosttune: see, judge and change multi-GPU Linux hosts. Nothing heavy is imported here: start-up is felt every time."""

from .core import __version__ as __version__
