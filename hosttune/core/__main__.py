# SPDX-License-Identifier: Apache-2.0
"""A JSON request a line on standard input, its answer a line on standard output: the same files run as a small zip anywhere.

Request   {"op": NAME, ...its own fields}
Answer    {"op": NAME, "version": TEXT, "result": ...} and exit code 0, or
          {"op": NAME, "version": TEXT, "error": {"what": TEXT, "where": TEXT, "way_out": TEXT}} and exit code 2.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import Any, BinaryIO, Callable, Dict, Iterator, Mapping, Tuple

from . import __version__
from .door.live import LiveHost
from .model import Refused, as_dict

Request = Mapping[str, Any]


def ping(request: Request) -> Dict[str, Any]:
    """Who answers: shows that the code arrived and runs."""
    version, uname = platform.python_version(), list(os.uname())
    return {"python": version, "executable": sys.executable, "pid": os.getpid(), "uname": uname}


def child(request: Request) -> Dict[str, Any]:
    """Put `nodes` and `calls` to a child process, as a doctor does; see Host.inquire."""
    asked = LiveHost().inquire(request.get("nodes", ()), request.get("calls", ()), timeout=request.get("timeout", 30))
    answer: Dict[str, Any] = as_dict(asked)
    return answer


def survey(request: Request) -> Dict[str, Any]:
    """Everything a doctor asks of one machine, as a machine of a recording."""
    from .doctor.examine import survey_here

    return survey_here(LiveHost(), request.get("declared", {}))


def examine(request: Request) -> Dict[str, Any]:
    """A recording of this host and of its named containers: {"containers": {id: GPUs or null}, "declared": {...}}."""
    from .doctor.examine import declared_of
    from .doctor.examine import examine as whole

    return whole(LiveHost(), request.get("containers", {}), declared_of(request.get("declared", {})))


def next_boot(request: Request) -> Dict[str, Any]:
    """A recording of all that decides this host's next boot: {"profile": what the caller declares}."""
    from .knobs import KNOBS
    from .nextboot.verdict import recorded
    from .wanted.profile import validate

    return recorded(LiveHost(), validate(request.get("profile", {}), "profile", KNOBS))


def unit(request: Request) -> Dict[str, Any]:
    """One of hosttune's own systemd units on this machine: see, place, start, stop (units.py)."""
    from . import units

    return units.serve(LiveHost(), request)


def model(request: Request) -> Dict[str, Any]:
    """A directory of this machine as a model's source, judged: its files, hashes and doubts (stage/over_ssh.py)."""
    from .stage import over_ssh

    return over_ssh.judged(str(request.get("folder", "")))


OPS: Dict[str, Callable[[Request], Any]] = {
    "ping": ping,
    "child": child,
    "survey": survey,
    "examine": examine,
    "next_boot": next_boot,
    "unit": unit,
    "model": model,
}


def answer(request: Request) -> Tuple[int, Dict[str, Any]]:
    """Exit code and answer for one request. Only a defect of ours raises."""
    op = request.get("op")
    head = {"op": op, "version": __version__}
    try:
        if op not in OPS:
            raise Refused("no such operation: %r" % (op,), "request", "use one of %s" % ", ".join(sorted(OPS)))
        return 0, dict(head, result=OPS[op](request))
    except Refused as e:
        return 2, dict(head, error={"what": e.what, "where": e.where, "way_out": e.way_out})
    except OSError as e:
        return 2, dict(head, error={"what": e.strerror or str(e), "where": str(e.filename or ""), "way_out": ""})


def _requests(stream: BinaryIO) -> Iterator[Request]:
    """A request a line; or one alone, in as many lines as it likes."""
    text = stream.readline()
    try:
        first = json.loads(text or b"{}")
    except ValueError:
        first = json.loads(text + stream.read())
    yield first
    yield from map(json.loads, stream)


def main() -> int:
    """Serve standard input until it ends: a request a line, each answered by a line. Exit code of the last one."""
    code = 0
    for request in _requests(sys.stdin.buffer):
        code, told = answer(request)
        # Through the byte stream: with the C locale of a bare container, a text stream may not hold all characters.
        sys.stdout.buffer.write(json.dumps(told, sort_keys=True).encode("ascii") + b"\n")
        sys.stdout.buffer.flush()
    return code
