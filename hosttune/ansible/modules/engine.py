#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Inference engines as systemd units, as one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine
short_description: Keep inference engines running as declared
version_added: "0.1.0"
description:
  - Renders a systemd unit for each declared engine (SGLang, vLLM, llama.cpp, xllamacpp), compares it with what is there, on
    the host or inside the engine's container, writes what differs, and starts engines that do not run.
  - An engine that runs is never restarted, unless O(state=restarted). A running engine whose unit is older than the declared
    one is a warning.
  - What stands in the way of a start (model not in memory, port taken, GPUs busy, no such user) is named before anything is
    written.
author:
  - hosttune contributors
requirements:
  - the C(hosttune) command on the target, which needs Python 3.11 or newer; C(hosttune.hosttune.serving) brings it
options:
  profile:
    description:
      - What is wanted of this machine, the whole C(hosttune) variable of the inventory. An unknown key or a wrong type
        is refused with its place.
    type: dict
    default: {}
  engines:
    description:
      - Engines by name, laid over those of O(profile).
    type: dict
  only:
    description:
      - Only these engines. All that are declared, when empty.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(started) writes the units that differ and starts what does not run. With O(wait), it also does what V(healthy) does.
      - V(healthy) waits until each answers, at most O(timeout) seconds, and says why when one dies.
      - V(stopped) and V(restarted) end the engines of O(only), which must then be named; RV(actions) says what that ends.
    type: str
    choices: [started, healthy, stopped, restarted]
    default: started
  wait:
    description:
      - With V(started), give each engine O(timeout) seconds to answer. One that then runs without an answer is a failed
        C(HT605) in RV(findings).
    type: bool
    default: false
  timeout:
    description:
      - Seconds to wait, for V(healthy) and O(wait).
    type: int
    default: 60
  command:
    description:
      - The C(hosttune) command on the target.
    type: path
    default: /usr/local/bin/hosttune
  mode:
    description:
      - V(plan) never writes. What V(apply) would do stands in RV(steps), RV(actions) and RV(lines), and the task is not
        C(changed).
      - Without it the mode is that of O(profile), and V(plan) where that says nothing either.
    type: str
    choices: [plan, apply]
  ignore:
    description:
      - Findings that are known and accepted, added to those of O(profile). They stay in RV(findings), marked, and make
        no task fail.
    type: list
    elements: dict
attributes:
  check_mode:
    description: The code that changes things also predicts the changes.
    support: full
  diff_mode:
    description: One diff for each unit file.
    support: full
seealso:
  - module: hosttune.hosttune.preflight
  - module: hosttune.hosttune.model
"""

EXAMPLES = r"""
- name: Keep all engines of the inventory
  hosttune.hosttune.engine:
    profile: "{{ hosttune }}"

- name: Restart one, now
  hosttune.hosttune.engine:
    profile: "{{ hosttune }}"
    only: [tp4-b15]
    state: restarted
"""

RETURN = r"""
changed:
  description: Something was changed; in check mode, something would be. Never true under RV(mode=plan).
  type: bool
  returned: always
ok:
  description: Nothing is known to be wrong, and nothing could not be told.
  type: bool
  returned: success
mode:
  description: V(plan) or V(apply), as it was in force.
  type: str
  returned: success
findings:
  description: What is wrong with each engine, as it is after the changes.
  type: list
  elements: dict
  returned: success
  sample:
    - {id: HT606, name: engine-died, status: fail, machine: "ct:200", subject: tp4-b15,
       summary: "it is dead: exit code 1: no memory is left for a single request after weights and state cache"}
steps:
  description: Unit files, written or (in check mode and under V(plan)) to be written.
  type: list
  elements: dict
  returned: success
actions:
  description: Starts and stops, each with what it ends, done or to be done.
  type: list
  elements: dict
  returned: success
effects:
  description: All that was written on the machine and in its containers, in order. Empty if nothing was.
  type: list
  elements: dict
  returned: success
diff:
  description: Before and after of each file, as C(--diff) prints it.
  type: list
  elements: dict
  returned: success
lines:
  description: What is wrong and what was done or would be, a line each, for people.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import installed, model, task
from ..module_utils.core.door import host, live
from ..module_utils.core.wanted import profile

SPEC = {
    "profile": {"type": "dict", "default": {}},
    "engines": {"type": "dict"},
    "only": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["started", "healthy", "stopped", "restarted"], "default": "started"},
    "wait": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 60},
    "command": {"type": "path", "default": "/usr/local/bin/hosttune"},
    "mode": {"type": "str", "choices": ["plan", "apply"]},
    "ignore": {"type": "list", "elements": "dict"},
}
VERBS = {"started": "start", "healthy": "wait", "stopped": "stop", "restarted": "restart"}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        module.exit_json(**engine(live.LiveHost(), module.params, module.check_mode))
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))


def engine(door: host.Host, params: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    """The task's return values. Raises Refused for a profile that is wrong, or when the command made no report."""
    data = task.profile_data(params["profile"], **{key: params[key] for key in ("engines", "mode", "ignore")})
    wanted = profile.validate(data)
    state, names = params["state"], list(params["only"])
    if state in ("stopped", "restarted") and not names:
        raise model.Refused("state %s ends engines: name them" % state, "only", "only: [NAME]")
    dry = check_mode or wanted.mode == "plan"
    if not wanted.engines:
        return task.result(door, [], mode=wanted.mode, check_mode=check_mode)
    report = installed.run(door, params["command"], words(state, names, dry, params), data, 600 + params["timeout"])
    findings = task.mark_ignored(report.findings, wanted.ignore, door.clock())
    door.effects.extend(dict(effect) for effect in report.effects)
    return task.result(door, findings, report.steps, report.actions, mode=wanted.mode, check_mode=check_mode)


def words(state: str, names: List[str], dry: bool, params: Dict[str, Any]) -> List[str]:
    """The command's arguments. Waiting changes nothing, so it has no dry run."""
    limit = ["--timeout", str(params["timeout"])]
    begin = ["--dry-run"] if dry else ["--wait", *limit] if params["wait"] and state == "started" else []
    return ["unit", VERBS[state], *(limit if state == "healthy" else begin), *names]


if __name__ == "__main__":
    main()
