# SPDX-License-Identifier: Apache-2.0
"""What travels to targets: standard library only, Python 3.9 or newer, relative imports, prints nothing."""

__version__ = "0.1.0"
