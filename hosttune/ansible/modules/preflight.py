#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Go or no-go, as one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Go or no-go before anything is measured
version_added: "0.1.0"
description:
  - Looks in seconds at settings, device nodes and CUDA (inside the engines' containers, too), staged models, engines, idle
    GPUs, and room for results. Each no carries its fix.
  - Changes nothing, and does not fail on a no-go - RV(ok) says it.
author:
  - hosttune contributors
requirements:
  - the C(hosttune) command on the target, which needs Python 3.11 or newer; C(hosttune.hosttune.preflight) as a playbook
    brings it
options:
  profile:
    description:
      - What is wanted of this machine, the whole C(hosttune) variable of the inventory.
    type: dict
    default: {}
  plan:
    description:
      - A benchmark plan, by name or path on the target, whose mistakes are named too.
    type: str
  only:
    description:
      - Only these engines. All that are declared, when empty.
    type: list
    elements: str
    default: []
  command:
    description:
      - The C(hosttune) command on the target.
    type: path
    default: /usr/local/bin/hosttune
attributes:
  check_mode:
    description: It changes nothing in any mode.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
seealso:
  - module: hosttune.hosttune.doctor
  - module: hosttune.hosttune.engine
"""

EXAMPLES = r"""
- name: Look before measuring
  hosttune.hosttune.preflight:
    profile: "{{ hosttune }}"
    plan: smoke
  register: preflight
"""

RETURN = r"""
changed:
  description: Never true.
  type: bool
  returned: always
ok:
  description: Go. False is a no-go, for the reasons in RV(findings).
  type: bool
  returned: success
findings:
  description: What speaks against it, and what is well.
  type: list
  elements: dict
  returned: success
lines:
  description: What speaks against it, each with its fix, for people.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import installed, model, task
from ..module_utils.core.door import host, live
from ..module_utils.core.wanted import profile

SPEC = {
    "profile": {"type": "dict", "default": {}},
    "plan": {"type": "str"},
    "only": {"type": "list", "elements": "str", "default": []},
    "command": {"type": "path", "default": "/usr/local/bin/hosttune"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        module.exit_json(**preflight(live.LiveHost(), module.params))
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))


def preflight(door: host.Host, params: Dict[str, Any]) -> Dict[str, Any]:
    """The task's return values. Raises Refused for a profile or plan that is wrong, or when the command made no report."""
    wanted = profile.validate(params["profile"])
    named = [word for name in params["only"] for word in ("--engine", name)]
    words = ["preflight", *named, *([params["plan"]] if params["plan"] else [])]
    report = installed.run(door, params["command"], words, params["profile"], 300)
    findings = task.mark_ignored(report.findings, wanted.ignore, door.clock())
    told = task.result(door, findings, mode="plan", check_mode=True)
    return dict(told, lines=task.fixes(findings))


if __name__ == "__main__":
    main()
