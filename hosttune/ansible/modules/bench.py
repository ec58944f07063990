#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Measure the running engine by a plan, as one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench
short_description: Measure a running engine by a plan, and keep only valid results
version_added: "0.1.0"
description:
  - Carries out a benchmark plan against an engine of the profile, each configuration into one file, and goes on where an
    earlier run stopped. A configuration is valid, with figures, or invalid, with reasons; an invalid one has no figure.
  - It attaches to the engine that runs and stops nothing, unless the plan names engines to start; those are stopped again
    afterwards, and what ran before is brought back.
  - It may take as long as the plan says. Give it C(async) and C(poll), as playbooks/benchmark.yml does, so that no
    connection has to last.
author:
  - hosttune contributors
requirements:
  - the C(hosttune) command on the target, which needs Python 3.11 or newer; C(hosttune.hosttune.benchmark) as a playbook
    brings it
options:
  profile:
    description:
      - What is wanted of this machine, the whole C(hosttune) variable of the inventory. Its C(bench.plan) is the plan.
    type: dict
    default: {}
  plan:
    description:
      - Another plan, by name or by its path on the target.
    type: str
  engine:
    description:
      - The engine to attach to. When empty, C(bench.engine) of the profile, or the only one that is declared.
    type: str
  retry:
    description:
      - Measure again what is invalid. Without it an invalid result stands, and fails the task, until somebody has looked.
    type: bool
    default: false
  preflight:
    description:
      - Look first whether this machine is fit to be measured, as M(hosttune.hosttune.preflight) does. A no-go measures
        nothing, and its reasons stand in RV(findings). Where nothing is left to measure nothing is looked at.
    type: bool
    default: false
  mode:
    description:
      - V(plan) measures nothing and says what would be. Without it the mode is that of O(profile).
    type: str
    choices: [plan, apply]
  timeout:
    description:
      - Seconds after which it is given up. What was measured until then is kept.
    type: int
    default: 7200
  command:
    description:
      - The C(hosttune) command on the target.
    type: path
    default: /usr/local/bin/hosttune
attributes:
  check_mode:
    description: It says what would be measured.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
seealso:
  - module: hosttune.hosttune.preflight
  - module: hosttune.hosttune.engine
"""

EXAMPLES = r"""
- name: A minute of measuring, on the engine that runs
  hosttune.hosttune.bench:
    profile: "{{ hosttune }}"
    plan: smoke
  async: 7200
  poll: 10
  register: smoke
"""

RETURN = r"""
changed:
  description: Something was measured, or in check mode would be. Never true under RV(mode=plan).
  type: bool
  returned: always
ok:
  description: Every configuration of the plan has a valid result.
  type: bool
  returned: success
mode:
  description: V(plan) or V(apply), as it was in force.
  type: str
  returned: success
findings:
  description: One for each configuration, with its figures or with the reasons why it has none.
  type: list
  elements: dict
  returned: success
actions:
  description: The measuring that is to be done, in check mode and under V(plan), with what it costs. Empty if nothing is left.
  type: list
  elements: dict
  returned: success
effects:
  description: The results that were written. Empty if none was.
  type: list
  elements: dict
  returned: success
lines:
  description: The same for people, a line each.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, List, Sequence

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import installed, model, task
from ..module_utils.core.door import host, live
from ..module_utils.core.wanted import profile

SPEC = {
    "profile": {"type": "dict", "default": {}},
    "plan": {"type": "str"},
    "engine": {"type": "str"},
    "retry": {"type": "bool", "default": False},
    "preflight": {"type": "bool", "default": False},
    "mode": {"type": "str", "choices": ["plan", "apply"]},
    "timeout": {"type": "int", "default": 7200},
    "command": {"type": "path", "default": "/usr/local/bin/hosttune"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        module.exit_json(**bench(live.LiveHost(), module.params, module.check_mode))
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))


def bench(door: host.Host, params: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    """The task's return values. Raises Refused for a profile or plan that is wrong, or when the command made no report."""
    wanted = profile.validate(task.profile_data(params["profile"], mode=params["mode"]))
    plan = params["plan"] or wanted.bench.get("plan", "smoke")
    words = ["bench", "run", plan, *(["--engine", params["engine"]] if params["engine"] else [])]
    if params["retry"]:
        words.append("--retry")
    dry = check_mode or wanted.mode == "plan"
    if dry:
        words.append("--dry-run")
    elif params["preflight"]:
        words.append("--preflight")
    report = installed.run(door, params["command"], words, params["profile"], params["timeout"])
    findings = task.mark_ignored(report.findings, wanted.ignore, door.clock())
    told = task.result(door, findings, (), report.actions, mode=wanted.mode, check_mode=check_mode)
    told["lines"] = _lines(findings, report.actions if dry else ())
    return told if dry else dict(told, changed=report.changed, effects=[dict(effect) for effect in report.effects])


def _lines(findings: List[model.Finding], actions: Sequence[model.Action]) -> List[str]:
    told = [line for f in findings for line in task.fixes([f]) or ["%s: %s" % (f.subject, f.summary)]]
    return told + ["would measure: %s, %s" % (a.why, a.costs) for a in actions]


if __name__ == "__main__":
    main()
