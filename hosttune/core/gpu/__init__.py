# SPDX-License-Identifier: Apache-2.0
"""GPUs: which are meant, which are this host's own, what their driver says, and which belong together."""
