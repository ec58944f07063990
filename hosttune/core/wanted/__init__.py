# SPDX-License-Identifier: Apache-2.0
"""What is wanted of a machine: a profile's keys, their values, the sets of settings that are shipped, what is accepted."""
