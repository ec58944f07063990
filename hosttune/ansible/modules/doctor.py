#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Why CUDA does not start, as one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor
short_description: Say why CUDA does not start on a host or in its containers
version_added: "0.1.0"
description:
  - Looks at a host, and through it at its containers, from the PCI bus up to a call of cuInit, and names the first cause
    with its proof, the fix, and where to run it.
  - Changes nothing. CUDA is asked in a child process that may not repair device nodes, and RV(effects) stays empty.
  - Broken CUDA fails no task by itself; use C(failed_when) with RV(ok).
author:
  - hosttune contributors
requirements:
  - Python 3.9 or newer on the target and in its containers, and nothing else
options:
  profile:
    description:
      - What is wanted of this machine, the whole C(hosttune) variable of the inventory. Its containers are looked at, and
        must count the GPUs that they are declared to have.
    type: dict
    default: {}
  containers:
    description: Containers to look into, by vmid or name. Without it, those of O(profile).
    type: list
    elements: str
  gpus:
    description: How many GPUs CUDA shall count on the host itself. Without it, any number but none is right.
    type: int
  uid:
    description: Ask as this user, since root passes file modes that a service does not. Needs root.
    type: int
  deep:
    description: Make a context on a GPU too. It takes some hundred MiB of its memory for a moment.
    type: bool
    default: false
  ignore:
    description:
      - Findings that are known and accepted, added to those of O(profile). They stay in RV(findings), marked.
    type: list
    elements: dict
attributes:
  check_mode:
    description: It never changes anything.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
seealso:
  - module: hosttune.hosttune.tune
  - module: hosttune.hosttune.lxc_devices
"""

EXAMPLES = r"""
- name: Say why CUDA does not start
  hosttune.hosttune.doctor:
    profile: "{{ hosttune }}"
  register: seen
  failed_when: not seen.ok

- name: Look into one container as the user that serves
  hosttune.hosttune.doctor:
    containers: ["200"]
    uid: 1000
"""

RETURN = r"""
changed:
  description: Never true.
  type: bool
  returned: always
ok:
  description: Nothing is known to be wrong, and nothing could not be told.
  type: bool
  returned: success
first_cause:
  description: The first failure that no other finding explains. Empty when there is none.
  type: dict
  returned: success
  sample:
    id: HT401
    name: device-cgroup-refuses
    machine: "ct:200"
    subject: /dev/nvidia-uvm
    proof: proved
    summary: the device cgroup refuses /dev/nvidia-uvm (511:0)
findings:
  description: One judgement for each layer and subject, causes before symptoms.
  type: list
  elements: dict
  returned: success
effects:
  description: What was written on the machine. Always empty.
  type: list
  elements: dict
  returned: success
lines:
  description: What is wrong, a line each, for people, each with its fix.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, NoReturn

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import model, task
from ..module_utils.core.doctor import examine
from ..module_utils.core.door import host, live
from ..module_utils.core.gpu import gpus
from ..module_utils.core.wanted import profile

SPEC = {
    "profile": {"type": "dict", "default": {}},
    "containers": {"type": "list", "elements": "str"},
    "gpus": {"type": "int"},
    "uid": {"type": "int"},
    "deep": {"type": "bool", "default": False},
    "ignore": {"type": "list", "elements": "dict"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        module.exit_json(**doctor(live.LiveHost(), module.params))
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))


def doctor(door: host.Host, params: Dict[str, Any]) -> Dict[str, Any]:
    """The task's return values. Raises Refused for a profile that is wrong."""
    wanted = profile.validate(task.profile_data(params["profile"], ignore=params["ignore"]))
    ids = wanted.containers if params["containers"] is None else params["containers"]
    counted = {
        ct: gpus.declared(door, wanted.containers[ct].gpus) if ct in wanted.containers else None for ct in ids
    }
    declared = {"gpus": params["gpus"], "uid": params["uid"], "contexts": params["deep"]}
    recording = examine.examine(door, counted, examine.declared_of(declared))
    findings = task.mark_ignored(examine.judge(recording, no_base)[1], wanted.ignore, door.clock())
    cause = model.first_cause(tuple(findings))
    told = task.result(door, findings, mode="plan", check_mode=False)
    return {
        "changed": False,
        "ok": told["ok"],
        "first_cause": model.as_dict(cause) if cause else {},
        "findings": told["findings"],
        "effects": told["effects"],
        "lines": task.fixes(findings),
    }


def no_base(name: str) -> NoReturn:
    """A recording that was just made inherits from no shipped machine."""
    raise model.Refused("a recording of this machine names a base", name)


if __name__ == "__main__":
    main()
