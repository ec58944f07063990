# SPDX-License-Identifier: Apache-2.0
"""Run the core on another machine over ssh (fabric) and bring its answer back. Nothing is installed over there."""

from __future__ import annotations

import json
import shlex
from typing import Any

from .core import corezip
from .core.model import Refused


def ask(target: str, request: dict[str, Any], timeout: float = 120) -> Any:
    """The `result` of one request on `target` ([user@]host[:port], aliases of ~/.ssh/config count).

    Host keys are checked against known_hosts: an unknown or changed one is Refused, never accepted. Refused also for a
    host that cannot be reached, a login that fails, and what the other side refuses.
    """
    import fabric
    import paramiko

    try:
        client = fabric.Connection(target, connect_timeout=15)
    except ValueError:
        raise Refused("this is no [user@]host[:port]", target, "hosttune doctor --host root@pve1")
    client.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    client.client.load_system_host_keys()
    try:
        client.open()
        # Not Connection.run: it hands its input over character by character, and the core is 200 kB.
        into, out, err = client.client.exec_command(shlex.join(corezip.argv()), timeout=timeout)
        into.write(corezip.stdin(request))
        into.channel.shutdown_write()
        told, said = out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace")
        code = out.channel.recv_exit_status()
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
    except UnicodeError:  # a label of a host name that no name service takes
        raise Refused("this is no host name", target, "hosttune doctor --host root@pve1")
    except TimeoutError:
        raise Refused("gave no answer within %g s" % timeout, target, "ssh ssh://%s true" % target)
    except (OSError, EOFError) as e:
        what = e.strerror if isinstance(e, OSError) and e.strerror else e
        raise Refused("cannot be reached: %s" % what, target, "ssh ssh://%s true" % target)
    finally:
        client.close()
    return _result(told, said, code, target)


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
