# SPDX-License-Identifier: Apache-2.0
"""One file per layer between a program and its GPU, from the PCI bus up. Each probe judges what survey.py found."""

from __future__ import annotations

from . import (
    build,
    codes,
    cuda,
    driver,
    environment,
    gpu,
    libraries,
    log,
    mode,
    module,
    nodes,
    permission,
    runtime,
    unit,
)

PROBES = (
    unit.PROBE,
    gpu.PROBE,
    build.PROBE,
    module.PROBE,
    nodes.PROBE,
    mode.PROBE,
    permission.PROBE,
    log.PROBE,
    driver.PROBE,
    libraries.PROBE,
    environment.PROBE,
    codes.PROBE,
    cuda.PROBE,
    runtime.PROBE,
)
"""In the order of needs: the first failure is the cause."""
