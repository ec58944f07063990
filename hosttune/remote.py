# SPDX-License-Identifier: Apache-2.0
"""Run the core on another machine over ssh (fabric) and bring its answer back. Nothing is installed over there."""

from __future__ import annotations

import json
import shlex
from io import BytesIO
from typing import Any

from .core import corezip
from .core.model import Refused


def ask(target: str, request: dict[str, Any], timeout: float = 120) -> Any:
    """The `result` of one request on `target` ([user@]host[:port], aliases of ~/.ssh/config count).

    Host keys are checked against known_hosts: an unknown or changed one is Refused, never accepted. Refused also for a
    host that cannot be reached, a login that fails, and what the other side refuses.
    """
    import fabric
    import invoke
    import paramiko

    client = fabric.Connection(target, connect_timeout=15)
    client.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.client.load_system_host_keys()
    try:
        client.open()
        ran = client.run(
            shlex.join(corezip.argv()),
            hide=True,
            warn=True,
            in_stream=BytesIO(corezip.stdin(request)),
            timeout=timeout,
            encoding="utf-8",
            echo_stdin=False,
        )
    except paramiko.BadHostKeyException:
        raise Refused("its host key has changed", target, "find out why; then: ssh-keygen -R %s" % client.host)
    except paramiko.AuthenticationException:
        raise Refused("it does not let us in", target, "ssh %s must work without a password" % target)
    except paramiko.SSHException as e:
        unknown = "not found in known_hosts" in str(e)
        raise Refused(
            "its host key is not known" if unknown else "ssh: %s" % e,
            target,
            "ssh %s once and compare the key's fingerprint" % target if unknown else "",
        )
    except (OSError, EOFError) as e:
        raise Refused("cannot be reached: %s" % (e.strerror if isinstance(e, OSError) and e.strerror else e), target)
    except invoke.exceptions.CommandTimedOut:
        raise Refused("gave no answer within %g s" % timeout, target)
    finally:
        client.close()
    return _result(ran.stdout, ran.stderr, ran.exited, target)


def _result(out: str, err: str, code: int, target: str) -> Any:
    line = next((line for line in reversed(out.splitlines()) if line.startswith("{")), "")
    if not line:
        why = (err.strip().splitlines() or ["exit code %d" % code])[-1]
        raise Refused("no answer: %s" % why, target, "python3 3.9 or newer must be there" if code == 127 else "")
    told = json.loads(line)
    if "error" in told:
        error = told["error"]
        raise Refused(error["what"], "%s %s" % (target, error["where"]) if error["where"] else target, error["way_out"])
    return told["result"]
