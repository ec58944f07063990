# SPDX-License-Identifier: Apache-2.0
"""Why an engine died, from the lines it left: the known ways, then the last error.

Fragments as the engines print them (SGLang 0.5, vLLM 0.33, llama.cpp). Order is from the particular to the general: the line
that names a cause stands above the one that only says that a child failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Death:
    """A fragment of a line, what it means, and what to do."""

    fragment: str
    means: str
    fix: str


KNOWN = (
    Death("Address already in use", "another server has the port", "ss -ltnp shows who; stop it, or take another port"),
    Death("couldn't bind", "another server has the port", "ss -ltnp shows who; stop it, or take another port"),
    Death("max_running_request is zero", "no memory is left for a single request after weights and state cache",
          "lower max-running-requests or the draft tokens, raise mem-fraction-static"),
    Death("Not enough GPU memory for hybrid", "the state cache of the recurrent layers does not fit",
          "lower max-running-requests or the draft tokens; mamba-ssm-dtype: bfloat16"),
    Death("state cache is too small", "the state cache of the recurrent layers does not fit",
          "lower max-running-requests or the draft tokens, or set max-mamba-cache-size"),
    Death("Memory pool size is too small", "the KV cache does not fit", "raise mem-fraction-static, lower context-length"),
    Death("Loaded weights leave no GPU memory", "the weights fill the GPUs", "more GPUs (tp), or a smaller model"),
    Death("Please try to increase --mem-fraction-static", "the KV cache does not fit", "raise mem-fraction-static"),
    Death("No available memory for the cache blocks", "the KV cache does not fit",
          "raise gpu-memory-utilization, lower max-model-len"),
    Death("To serve at least one request with the model's max seq len", "one request of the full length does not fit",
          "lower max-model-len to the number that the line names"),
    Death("less than desired GPU memory utilization", "the GPUs are not empty", "hosttune preflight names who uses them"),
    Death("Possible solutions:", "CUDA graphs could not be captured", "lower mem-fraction-static or cuda-graph-max-bs"),
    Death("is less than the minimum required version", "a package of the virtual environment is too old",
          "install the version that the line names"),
    Death("No compressed-tensors compatible scheme was found", "compressed-tensors is too old for this checkpoint",
          "pip install -U compressed-tensors in the virtual environment"),
    Death("is not a valid QuantizationStrategy", "compressed-tensors is too old for this checkpoint",
          "pip install -U compressed-tensors in the virtual environment"),
    Death("is not a valid CompressionFormat", "compressed-tensors is too old for this checkpoint",
          "pip install -U compressed-tensors in the virtual environment"),
    Death("is greater than the derived", "the context is longer than the model's", "lower context-length"),
    Death("Unknown speculative algorithm name", "this engine does not know that algorithm", "choose one that it lists"),
    Death("torch.OutOfMemoryError", "GPU memory ran out", "lower the memory fraction, or free the GPUs (nvidia-smi)"),
    Death("CUDA out of memory", "GPU memory ran out", "lower the memory fraction, or free the GPUs (nvidia-smi)"),
    Death("illegal instruction was encountered", "a kernel is not made for this GPU", "another attention backend or version"),
    Death("no kernel image is available", "a package was not built for this GPU", "a build for its compute capability"),
    Death("CUDA unknown error", "CUDA does not start here", "hosttune doctor"),
    Death("CUDA error: unknown error", "CUDA does not start here", "hosttune doctor"),
    Death("No CUDA GPUs are available", "CUDA sees no GPU here", "hosttune doctor"),
    Death("ncclUnhandledCudaError", "NCCL met a CUDA error", "start once with NCCL_DEBUG=INFO in env: it names the call"),
    Death("ncclInvalidUsage", "NCCL refuses a variable or a combination", "hosttune unit check names it"),
    Death("NCCL error", "NCCL failed", "start once with NCCL_DEBUG=INFO in env: it names the call"),
    Death("unrecognized arguments", "the engine does not know an argument", "compare `args` with the engine's --help"),
    Death("error: invalid argument", "the engine does not know an argument", "compare `args` with the engine's --help"),
    Death("xllamacpp has no plain option", "the engine does not know an argument", "compare `args` with xllamacpp.CommonParams"),
    Death("ModuleNotFoundError", "a package is not in the virtual environment", "install it there"),
    Death("failed to load model", "the model file could not be loaded", "hosttune stage verify"),
    Death("CUDA error:", "CUDA failed", "dmesg | grep Xid on the host"),
    Death("EngineCore encountered a fatal error", "the engine died while it served", "the lines above it name the cause"),
    Death("Scheduler hit an exception", "a rank failed", "the traceback below that line names the cause"),
    Death("Engine core initialization failed", "the cause stands above", "journalctl -u UNIT"),
    Death("Received sigquit from a child process", "a rank failed and the parent killed all; not the kernel's OOM killer",
          "the lines above it name the cause"),
)  # fmt: skip

_ERROR = re.compile(r"(?i)\b(error|exception|fatal|failed|cannot|can't|refused|denied|no such)\b")
_SIGNALS = {"4": "ILL", "6": "ABRT", "7": "BUS", "9": "KILL", "11": "SEGV", "15": "TERM"}


def known(lines: Sequence[str]) -> tuple[Death, str] | None:
    """The first known death and the line that shows it."""
    for death in KNOWN:
        line = next((line for line in lines if death.fragment in line), None)
        if line is not None:
            return death, line
    return None


def last_errors(lines: Sequence[str], most: int = 3) -> list[str]:
    """The last lines that speak of an error, oldest first; the very last lines when none does.

    A bare "AssertionError" says nothing: the code line above it comes along.
    """
    told = [line.strip() for line in lines if line.strip()]
    at = [n for n, line in enumerate(told) if _ERROR.search(line) or re.match(r"\w*Error\b", line)]
    if at and re.fullmatch(r"\w+Error:?", told[at[-1]]) and at[-1]:
        at.insert(-1, at[-1] - 1)
    picked = [told[n] for n in sorted(set(at))[-most:]] or told[-most:]
    return [line[:300] for line in picked]


def how(show: Mapping[str, Any]) -> str:
    """How systemd says that it ended: exit code 1, killed by SIGKILL (by the OOM killer), never started."""
    result, code, status = (str(show.get(k, "")) for k in ("Result", "ExecMainCode", "ExecMainStatus"))
    if result == "oom-kill":
        return "killed by the kernel: memory ran out"
    if result == "assert":
        return "not started: what the unit asserts is not there"
    if result == "resources":
        return "not started: systemd could not set it up"
    if code in ("2", "3", "killed", "dumped"):
        return "killed by SIG%s" % _SIGNALS.get(status, status)
    special = {"200": "its folder could not be entered", "203": "the program could not be executed",
               "216": "its group is unknown", "217": "its user is unknown", "226": "its namespace could not be made",
               "243": "a secret could not be read"}  # fmt: skip
    if status in special:
        return "exit code %s: %s" % (status, special[status])
    return "exit code %s" % status if status not in ("", "0") else "it ended by itself (exit code 0)"
