# SPDX-License-Identifier: Apache-2.0
"""Benchmarks whose numbers can be trusted: a plan, a load client, a gate that rejects what is no measurement, a report."""
