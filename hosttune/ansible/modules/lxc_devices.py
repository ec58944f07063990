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
  - A rule that leaves the file because it is stale, or opens an undeclared GPU, is taken from the running container too.
  - After a change every node is opened inside the container, and CUDA is started and its devices are counted against what is
    declared.
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
      - Containers by vmid or name, laid over those of O(profile), each with the keys C(gpus), C(gpu), C(form), C(restart),
        C(caps), C(dri) and C(cpus) of the profile.
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
  all:
    description:
      - Also every container of this host whose config has anything of NVIDIA's, whoever declared it. One that is not declared
        keeps the GPUs that its config names, and is never restarted.
    type: bool
    default: false
  drop:
    description:
      - Majors that are stale, whatever they once were for. Their rules leave each of the containers. One that a container needs
        is refused.
    type: list
    elements: int
    default: []
  repair:
    description:
      - Also mend lines that Proxmox VE would drop at its next write, where their meaning is plain (a blank before the key).
    type: bool
    default: false
  prune:
    description:
      - Also drop stale rules of which nobody can tell what they were for. Rules for another driver's devices that people give
        to containers (a TPU, kfd) are never touched.
    type: bool
    default: false
  wait_quorum:
    description:
      - Seconds to wait for the cluster's quorum, if there is something to write. Without quorum C(/etc/pve) takes no write.
    type: int
    default: 0
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

- name: After a driver update, heal every container that has a GPU, and what Proxmox VE would lose of their configs
  hosttune.hosttune.lxc_devices:
    mode: apply
    all: true
    repair: true
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

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import model, task
from ..module_utils.core.door import host, live
from ..module_utils.core.lxc import cuda, fleet, outlook, patience, see, vms
from ..module_utils.core.wanted import profile

SPEC = {
    "profile": {"type": "dict", "default": {}},
    "containers": {"type": "dict"},
    "mode": {"type": "str", "choices": ["plan", "apply"]},
    "ignore": {"type": "list", "elements": "dict"},
    "all": {"type": "bool", "default": False},
    "drop": {"type": "list", "elements": "int", "default": []},
    "repair": {"type": "bool", "default": False},
    "prune": {"type": "bool", "default": False},
    "wait_quorum": {"type": "int", "default": 0},
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        module.exit_json(**synced(live.LiveHost(), module.params, module.check_mode))
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))


def synced(door: host.Host, params: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    """The task's return values. Raises Refused for a profile that is wrong."""
    own = {key: params[key] for key in ("containers", "mode", "ignore")}
    wanted = profile.validate(task.profile_data(params["profile"], **own))
    dry = check_mode or wanted.mode == "plan"
    table = see.device_table_of(door) if params["all"] else None
    ids = tuple(wanted.containers) if table is None else fleet.every(door, table, wanted.containers)
    given = vms.assigned(door) if ids else {}
    orders = {ct_id: order(door, wanted, ct_id, params, given) for ct_id in ids}
    reports = fleet.sync_each(door, orders, dry, cuda.starts, patience.Patience(params["wait_quorum"]), table)
    findings = task.mark_ignored([f for r in reports for f in r.findings], wanted.ignore, door.clock())
    steps = [s for r in reports for s in r.steps]
    # A restart that the policy forbids is not to be done: it stands in the findings, with what it would destroy.
    actions = [a for r, o in zip(reports, orders.values()) for a in r.actions if fleet.may(a, o.restart)]
    return task.result(door, findings, steps, actions, mode=wanted.mode, check_mode=check_mode)


def order(door: host.Host, wanted: profile.Profile, ct_id: str, params: Dict[str, Any], given: Dict[int, str]) -> fleet.Order:
    """What is wanted of one container; what is refused when its turn comes is a finding, and keeps no other back."""
    declared, serves = wanted.containers.get(ct_id), outlook.serves(wanted.engines, ct_id)
    drop, prune, repair = tuple(params["drop"]), params["prune"], params["repair"]
    return fleet.Order(lambda: outlook.wanted_of(door, declared, drop, prune, serves, given, repair),
                       declared.restart if declared else outlook.NEVER)


if __name__ == "__main__":
    main()
