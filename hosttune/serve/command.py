# SPDX-License-Identifier: Apache-2.0
"""The command line of each engine, from one declaration: the same four facts under each engine's own argument names.

Names as of SGLang 0.5, vLLM 0.33, llama.cpp's llama-server, and xllamacpp, which is a library: launcher.py serves with it.
"""

from __future__ import annotations

from ..core import units
from ..core.model import Refused
from .declare import Engine

LAUNCHER = units.CODE + "/xllamacpp_server.py"
OWN = {
    "sglang": ("model-path", "model", "tp-size", "tp", "tensor-parallel-size", "host", "port", "served-model-name"),
    "vllm": ("model", "tensor-parallel-size", "tp", "host", "port", "served-model-name"),
    "llama.cpp": ("model", "m", "host", "port", "alias", "a"),
    "xllamacpp": ("model", "host", "port", "alias"),
}
"""Arguments that the declaration itself gives; in `args` they would contradict it."""

SHARED_FIELDS = {"tp-size": "tp", "tensor-parallel-size": "tp", "model-path": "model", "m": "model", "host": "listen"}


def argv(engine: Engine) -> list[str]:
    """The words of the command. Values stand as declared; "secret:NAME" is left for the renderer. Raises Refused."""
    for name in engine.args:
        bare = name.lstrip("-")
        if bare in OWN[engine.kind]:
            raise Refused(
                "hosttune gives this argument itself",
                "engines.%s.args.%s" % (engine.name, name),
                "set `%s:` of the engine instead" % SHARED_FIELDS.get(bare, bare),
            )
    return [*_BEGIN[engine.kind](engine), *_more(engine)]


def _sglang(e: Engine) -> list[str]:
    return [e.venv + "/bin/python", "-m", "sglang.launch_server", "--model-path", e.model_path, "--tp-size", str(e.tp),
            "--host", e.listen, "--port", str(e.port), "--served-model-name", served_name(e)]  # fmt: skip


def _vllm(e: Engine) -> list[str]:
    return [e.venv + "/bin/vllm", "serve", e.model_path, "--tensor-parallel-size", str(e.tp),
            "--host", e.listen, "--port", str(e.port), "--served-model-name", served_name(e)]  # fmt: skip


def _llama_cpp(e: Engine) -> list[str]:
    # By default it spreads whole layers over the visible GPUs; rows are its tensor parallelism.
    split = ["--split-mode", "row"] if e.tp > 1 and "split-mode" not in e.args else []
    program = e.venv + "/bin/llama-server" if e.venv else "llama-server"
    return [
        program,
        "--model",
        e.model_path,
        "--host",
        e.listen,
        "--port",
        str(e.port),
        "--alias",
        served_name(e),
        *split,
    ]


def _xllamacpp(e: Engine) -> list[str]:
    return [e.venv + "/bin/python", LAUNCHER, "--model", e.model_path, "--host", e.listen, "--port", str(e.port),
            "--alias", served_name(e)]  # fmt: skip


_BEGIN = {"sglang": _sglang, "vllm": _vllm, "llama.cpp": _llama_cpp, "xllamacpp": _xllamacpp}


def _more(e: Engine) -> list[str]:
    words = []
    for name, value in e.args.items():
        option = name if name.startswith("-") else "--" + name
        words += [option, value] if value else [option]
    return words


def served_name(e: Engine) -> str:
    """The name that clients ask for: the declared model's, else the last part of its path."""
    return e.model_name or e.model_path.rstrip("/").rpartition("/")[2]


def program(e: Engine) -> str:
    """The file that must be there for a start, "" if systemd searches for it."""
    first = argv(e)[0]
    return first if first.startswith("/") else ""
