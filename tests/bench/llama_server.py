# SPDX-License-Identifier: Apache-2.0
"""A real OpenAI-compatible server (llama.cpp's own, from the xllamacpp wheel) on 127.0.0.1, for one GGUF file.

    python tests/bench/llama_server.py MODEL PORT [SLOTS]

Prints "serving" once it answers, then waits to be killed.
"""

from __future__ import annotations

import os
import signal
import sys

import xllamacpp


def main(model: str, port: int, slots: int = 1) -> None:
    """Serve `model` under the name tiny. Each slot has a context of 4096 tokens: llama.cpp divides n_ctx by the slots."""
    options = xllamacpp.CommonParams()
    options.model.path = model
    options.model_alias = ["tiny"]
    options.hostnames = ["127.0.0.1"]
    options.port = port
    options.n_parallel = slots
    options.n_ctx = 4096 * slots
    options.cpuparams.n_threads = 1  # by default one a core, which spins against everything else on the machine
    options.cpuparams_batch.n_threads = 1
    options.endpoint_metrics = True
    _keep = xllamacpp.Server(options)
    os.write(1, b"serving\n")
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], *(int(n) for n in sys.argv[2:4]))
