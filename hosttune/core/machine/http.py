# SPDX-License-Identifier: Apache-2.0
"""One GET to a server on this machine's own loopback or address, asked by a child process: it cannot hang the caller, and it
is a command like any other, so a recording holds the answer."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from ..door.host import Host

LIMIT = 65536
_SCRIPT = (
    """\
import http.client, json, sys
host, port, path, limit = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
try:
    link = http.client.HTTPConnection(host, port, timeout=limit)
    link.request("GET", path)
    told = link.getresponse()
    print(json.dumps({"status": told.status, "body": told.read(%d).decode("utf-8", "replace")}))
except Exception as e:
    print(json.dumps({"error": "%%s: %%s" %% (type(e).__name__, e)}))
"""
    % LIMIT
)


@dataclass(frozen=True)
class Answer:
    """What a server said: its HTTP status and the beginning of the body; or `error`, why there was no answer."""

    status: int = 0
    body: str = ""
    error: str = ""


def get(host: Host, address: str, port: int, path: str, timeout: float = 5) -> Answer:
    """GET http://address:port/path. Never raises for what the server does."""
    argv = [sys.executable, "-I", "-c", _SCRIPT, address, str(port), path, str(timeout)]
    ran = host.run(argv, timeout + 5)
    try:
        told = json.loads(ran.out)
    except ValueError:
        return Answer(
            error="no answer within %g s" % timeout if ran.timeout else ran.err.strip() or "exit code %d" % ran.rc
        )
    return Answer(int(told.get("status", 0)), str(told.get("body", "")), str(told.get("error", "")))
