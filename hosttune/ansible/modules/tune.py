#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The settings of a host, as one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tune
short_description: Keep the settings of a GPU host
version_added: "0.1.0"
description:
  - Reads every wanted setting of a host, compares, and writes only what differs. Each change is read back.
  - One task does the work of many, so that a run over a slow connection stays short.
  - C(hosttune list) shows the settings, C(hosttune explain NAME) says why one matters.
author:
  - hosttune contributors
requirements:
  - Python 3.9 or newer on the target, and nothing else
  - setpci (package pciutils) on the target for C(pcie-max-read-request)
options:
  profile:
    description:
      - What is wanted of this machine, the whole C(hosttune) variable of the inventory. An unknown key or a wrong type
        is refused with its place.
    type: dict
    default: {}
  knobs:
    description:
      - Settings and their wanted values, laid over those of O(profile). Values are texts; write V("0"), not V(0).
      - The key C(profile) names a set of wants, such as V(pcie-inference).
    type: dict
  mode:
    description:
      - V(plan) never writes. What V(apply) would do stands in RV(steps) and RV(lines), and the task is not C(changed).
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
    description: One diff for each change.
    support: full
seealso:
  - module: hosttune.hosttune.lxc_devices
  - module: hosttune.hosttune.doctor
"""

EXAMPLES = r"""
- name: See what would be done
  hosttune.hosttune.tune:
    knobs:
      profile: pcie-inference

- name: Keep all settings that the inventory names
  hosttune.hosttune.tune:
    profile: "{{ hosttune }}"

- name: Keep NUMA balancing off, now and after the next boot
  hosttune.hosttune.tune:
    mode: apply
    knobs:
      numa-balancing: "0"
"""

RETURN = r"""
changed:
  description: Something was changed; in check mode, something would be. Never true under RV(mode=plan).
  type: bool
  returned: always
ok:
  description: No setting is known to be wrong, and none could not be told. Under V(plan) a wrong one fails no task.
  type: bool
  returned: success
mode:
  description: V(plan) or V(apply), as it was in force.
  type: str
  returned: success
findings:
  description:
    - One judgement for each setting and subject (each GPU; now and at boot), as it is after the changes.
  type: list
  elements: dict
  returned: success
  sample:
    - {id: HT101, name: numa-balancing, status: fail, subject: now, have: "1", want: "0",
       summary: "kernel.numa_balancing is 1, want 0"}
steps:
  description: The changes, done or (in check mode and under V(plan)) to be done.
  type: list
  elements: dict
  returned: success
  sample:
    - {knob: HT101, subject: now, effect: poke, target: /proc/sys/kernel/numa_balancing, before: "1", after: "0"}
actions:
  description: What writing an old value back cannot undo. This module has none.
  type: list
  elements: dict
  returned: success
effects:
  description: All that was written on the machine, in order, told by the code that wrote it. Empty if nothing was.
  type: list
  elements: dict
  returned: success
diff:
  description: Before and after of each change, as C(--diff) prints it.
  type: list
  elements: dict
  returned: success
lines:
  description: What is wrong and what was done or would be, a line each, for people.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import engine, knobs, model, task
from ..module_utils.core.door import host, live
from ..module_utils.core.unattended import bound
from ..module_utils.core.wanted import profile

SPEC = {
    "profile": {"type": "dict", "default": {}},
    "knobs": {"type": "dict"},
    "mode": {"type": "str", "choices": ["plan", "apply"]},
    "ignore": {"type": "list", "elements": "dict"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        module.exit_json(**tune(live.LiveHost(), module.params, module.check_mode))
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))


def tune(door: host.Host, params: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    """The task's return values. Raises Refused for a profile that is wrong."""
    own = {key: params[key] for key in ("knobs", "mode", "ignore")}
    wanted = profile.validate(task.profile_data(params["profile"], **own), "hosttune", knobs.KNOBS)
    by_name, by_id = bound.with_profile(wanted)
    wants = engine.wants_of((), wanted.knobs or {}, by_name)
    dry = check_mode or wanted.mode == "plan"
    done = engine.tune(door, wants, by_name, by_id, dry)
    findings = task.mark_ignored(done.findings, wanted.ignore, door.clock())
    return task.result(door, findings, done.steps, mode=wanted.mode, check_mode=check_mode)


if __name__ == "__main__":
    main()
