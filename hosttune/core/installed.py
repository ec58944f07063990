# SPDX-License-Identifier: Apache-2.0
"""The installed hosttune command, asked by an Ansible module: what needs more than the standard library runs there.

The profile goes in through standard input, so it stands in no argument list and in no file; the report comes back as JSON.
"""

from __future__ import annotations

import json
from typing import Any, Mapping, Sequence

from .catalogue import finding
from .door.host import Host
from .model import ERROR, Action, Finding, Hint, Refused, Report, Step

PLAYBOOK = "ansible-playbook hosttune.hosttune.serving, with `mode: apply`, installs it"


def run(host: Host, path: str, words: Sequence[str], profile: Mapping[str, Any], timeout: float) -> Report:
    """The report of `hosttune WORDS`. A command that is not there is HT907. Raises Refused for what it refused."""
    argv = [path, *words, "--profile", "/dev/stdin", "-o", "json"]
    ran = host.run(argv, timeout, json.dumps(profile).encode("ascii"))
    if ran.rc in (126, 127):
        return _missing(path, "the command is not there (%s)" % (ran.err.strip().splitlines() or ["not found"])[-1])
    if ran.timeout:
        raise Refused("%s gave no answer within %g s" % (" ".join([path, *words]), timeout), path)
    try:
        told = json.loads(ran.out)
    except ValueError:
        said = (ran.err.strip().splitlines() or ["exit code %d" % ran.rc])[-1]
        return _missing(path, "the command made no report: %s" % said)
    if "error" in told:
        raise Refused(told["error"]["what"], told["error"]["where"], told["error"]["way_out"])
    (one,) = told["hosts"]
    return Report(
        told["command"],
        one["name"],
        one["facts"],
        tuple(_finding(row) for row in one["findings"]),
        tuple(_known(Step, row, ("argv", "undo")) for row in one["steps"]),
        tuple(_known(Action, row, ("argv", "destroys")) for row in one["actions"]),
        tuple(one["effects"]),
        told["changed"],
        told["mode"],
        told["tool"]["version"],
    )


def _missing(path: str, why: str) -> Report:
    return Report("", findings=(finding("HT907", ERROR, path, why, hint=Hint(PLAYBOOK, "the controller", "", "apply")),))


def _finding(row: Mapping[str, Any]) -> Finding:
    made: Finding = _known(Finding, dict(row, hint=_known(Hint, row["hint"], ())), ("because", "evidence"))
    return made


def _known(kind: Any, row: Mapping[str, Any], tuples: Sequence[str]) -> Any:
    """A noun of its JSON; keys that another version added are left out."""
    kept = {key: value for key, value in row.items() if key in kind.__dataclass_fields__}
    kept.update((key, tuple(kept[key])) for key in tuples if key in kept)
    return kind(**kept)
