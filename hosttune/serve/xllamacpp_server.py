# SPDX-License-Identifier: Apache-2.0
"""Serves one GGUF file with xllamacpp (llama.cpp's own server as a library), until it is stopped. hosttune puts this file
beside the unit that runs it; it needs xllamacpp and nothing else.

    xllamacpp_server.py --model FILE --host ADDRESS --port N --alias NAME [--ATTRIBUTE VALUE]...

ATTRIBUTE is one of xllamacpp.CommonParams, with a dot for inner ones: --n_ctx 4096 --cpuparams.n_threads 1. One that stands
alone is switched on.
"""

import signal
import sys
from typing import Any, List


def main(argv: List[str]) -> None:
    """Serve. Ends with a message for an argument that xllamacpp does not know."""
    import xllamacpp  # type: ignore[import-not-found, unused-ignore]

    options = xllamacpp.CommonParams()
    options.endpoint_metrics = True
    while argv:
        name = argv.pop(0)
        value = argv.pop(0) if argv and not argv[0].startswith("--") else "true"
        _set(options, name[2:], value)
    _keep = xllamacpp.Server(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        signal.pause()


def _set(options: Any, name: str, value: str) -> None:
    if name == "model":
        options.model.path = value
    elif name == "host":
        options.hostnames = [value]
    elif name == "alias":
        options.model_alias = [value]
    else:
        *inner, last = name.split(".")
        for part in inner:
            options = getattr(options, part, None)
        kind = type(getattr(options, last, None))
        if kind not in (bool, int, float, str):
            sys.exit("xllamacpp has no plain option %s" % name)
        setattr(options, last, value.lower() in ("true", "1", "yes") if kind is bool else kind(value))


if __name__ == "__main__":
    main(sys.argv[1:])
