# SPDX-License-Identifier: Apache-2.0
"""One file per layer between a program and its GPU, from the PCI bus up. Each probe judges what survey.py found."""

from __future__ import annotations

from . import cuda, driver, environment, gpu, libraries, mode, module, nodes, permission

PROBES = (
    gpu.PROBE,
    module.PROBE,
    nodes.PROBE,
    mode.PROBE,
    permission.PROBE,
    driver.PROBE,
    libraries.PROBE,
    environment.PROBE,
    cuda.PROBE,
)
"""In the order of needs: the first failure is the cause."""
