# SPDX-License-Identifier: Apache-2.0
"""What a doctor asks of a machine, in which order, and how one cause takes the place of ten symptoms."""
