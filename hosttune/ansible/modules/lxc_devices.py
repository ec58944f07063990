#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of LXC containers, as one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lxc_devices
short_description: Keep the GPU devices of LXC containers right
version_added: "0.1.0"
description:
  - Compares the device rules of containers, live and in their config files, with the device numbers that the drivers of
    the host have now, and makes the smallest change that gives each container its GPUs.
  - A running container is healed live first; then its config is edited, so that the next start is right too. Only lines of
    the main section are added or removed; all others stay byte for byte.
  - A container is restarted only if its policy says so. Otherwise RV(actions) says what a restart would destroy.
  - Afterwards every node is opened inside the container, and CUDA devices are counted against what is declared.
  - Works on the node that owns a container, on Proxmox VE and with plain LXC.
author:
  - hosttune contributors
requirements:
  - Python 3.9 or newer on the target, and nothing else
  - Python 3.9 or newer in a container, to look inside; without it that is an error, and the host's view stands
options:
  profile:
    description:
      - What is wanted of this machine, the whole C(hosttune) variable of the inventory. An unknown key or a wrong type
        is refused with its place.
    type: dict
    default: {}
  containers:
    description:
      - Containers by vmid or name, laid over those of O(profile), each with the keys C(gpus), C(gpu), C(form), C(restart)
        and C(caps) of the profile.
    type: dict
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
    description: One diff for each config file.
    support: full
notes:
  - Files below C(/etc/pve) take neither a chmod nor a rename from elsewhere, and Proxmox VE locks them in its own way.
    C(lineinfile) and C(copy) know nothing of that; this module does.
seealso:
  - module: hosttune.hosttune.tune
  - module: hosttune.hosttune.doctor
"""

EXAMPLES = r"""
- name: See what would be done for all containers that the inventory names
  hosttune.hosttune.lxc_devices:
    profile: "{{ hosttune }}"

- name: Give a container the GPUs of one NUMA node, and restart it if nothing would be lost
  hosttune.hosttune.lxc_devices:
    mode: apply
    containers:
      "200": {gpus: "numa:0", restart: idle}
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
  description: What is wrong with each container, as it is after the changes.
  type: list
  elements: dict
  returned: success
  sample:
    - {id: HT421, name: lxc-missing-rule, status: fail, machine: "ct:200", subject: /dev/nvidia-uvm,
       summary: "no rule allows 511:0"}
steps:
  description: The edits of config files, done or (in check mode and under V(plan)) to be done.
  type: list
  elements: dict
  returned: success
actions:
  description: Live rules and restarts, each with what it destroys, done or to be done.
  type: list
  elements: dict
  returned: success
  sample:
    - {name: live-rule, subject: "ct:200", argv: [lxc-cgroup, -n, "200", devices.allow, "c 511:* rwm"], destroys: []}
effects:
  description: All that was written on the machine, in order, told by the code that wrote it. Empty if nothing was.
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

import dataclasses
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import host, live, model, profile, task
from ..module_utils.core.lxc import outlook, sync

SPEC = {
    "profile": {"type": "dict", "default": {}},
    "containers": {"type": "dict"},
    "mode": {"type": "str", "choices": ["plan", "apply"]},
    "ignore": {"type": "list", "elements": "dict"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        module.exit_json(**devices(live.LiveHost(), module.params, module.check_mode))
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))


def devices(door: host.Host, params: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    """The task's return values. Raises Refused for a profile that is wrong."""
    own = {key: params[key] for key in ("containers", "mode", "ignore")}
    wanted = profile.validate(task.profile_data(params["profile"], **own))
    dry = check_mode or wanted.mode == "plan"
    reports = [one(door, ct_id, declared, dry) for ct_id, declared in wanted.containers.items()]
    findings = task.mark_ignored([f for r in reports for f in r.findings], wanted.ignore, door.clock())
    steps = [s for r in reports for s in r.steps]
    actions = [a for r in reports for a in r.actions]
    return task.result(door, findings, steps, actions, mode=wanted.mode, check_mode=check_mode)


def one(door: host.Host, ct_id: str, declared: profile.Container, dry: bool) -> model.Report:
    """One container. One that is refused must not keep the others from being healed."""
    try:
        wanted = outlook.wanted_of(door, declared)
        report = sync.sync(door, ct_id, wanted, declared.restart, dry)
    except model.Refused as e:
        return model.Report("lxc sync", findings=(sync.refused(ct_id, e),))
    except OSError as e:
        refused = model.Refused(e.strerror or str(e), str(e.filename or ""), "run it as root (become: true)")
        return model.Report("lxc sync", findings=(sync.refused(ct_id, refused),))
    # A restart that the policy forbids is not to be done: it stands in the findings, with what it would destroy.
    return dataclasses.replace(report, actions=tuple(a for a in report.actions if may(a, declared.restart)))


def may(action: model.Action, policy: str) -> bool:
    """Whether the policy (never, idle, always) lets an action be."""
    return action.name != "restart" or policy == "always" or (policy == "idle" and not action.destroys)


if __name__ == "__main__":
    main()
