# SPDX-License-Identifier: Apache-2.0
"""Models into memory: hosttune's own tmpfs, a copy hashed on its way, a manifest last; containers read it."""
