# SPDX-License-Identifier: Apache-2.0
"""A machine on paper: what was asked and answered, in a file that people may write, read and show."""
