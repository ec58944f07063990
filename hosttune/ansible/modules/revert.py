#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Everything that hosttune changed on a host, taken back in one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: revert
short_description: Take back what hosttune changed on a host
version_added: "0.1.0"
description:
  - Goes through hosttune's journal of a host, newest change first, and puts back what was there before, byte for byte.
  - What somebody else has changed since is left alone and named, with the line that restores it.
  - What a reboot has undone already is left alone too.
author:
  - hosttune contributors
requirements:
  - Python 3.9 or newer on the target, and nothing else
options:
  to:
    description: Take back only what came after this entry of C(hosttune journal).
    type: int
    default: 0
attributes:
  check_mode:
    description: Names what would be put back.
    support: full
  diff_mode:
    description: One diff for each change.
    support: full
seealso:
  - module: hosttune.hosttune.tune
  - module: hosttune.hosttune.lxc_devices
"""

EXAMPLES = r"""
- name: Take back all of it
  hosttune.hosttune.revert:

- name: Take back what came after entry 12
  hosttune.hosttune.revert:
    to: 12
"""

RETURN = r"""
changed:
  description: Something was put back; in check mode, something would be.
  type: bool
  returned: always
ok:
  description: All of it was taken back.
  type: bool
  returned: success
findings:
  description: What was left alone, and why.
  type: list
  elements: dict
  returned: success
steps:
  description: The changes, done or (in check mode) to be done.
  type: list
  elements: dict
  returned: success
  sample:
    - {knob: HT101, subject: now, effect: poke, target: /proc/sys/kernel/numa_balancing, before: "0", after: "1"}
effects:
  description: All that was written on the machine, in order. Empty if nothing was.
  type: list
  elements: dict
  returned: success
diff:
  description: Before and after of each change, as C(--diff) prints it.
  type: list
  elements: dict
  returned: success
lines:
  description: What was put back or left alone, a line each, for people.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import afterlife, engine, knobs, model, place, task

SPEC = {"to": {"type": "int", "default": 0}}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    door = place.Reaching()
    try:
        steps, findings = engine.revert(door, knobs.BY_ID, module.params["to"], module.check_mode)
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))
    lives = afterlife.left(door, steps)
    told = task.result(door, [*findings, *lives], steps, mode="apply", check_mode=module.check_mode)
    told["lines"] += afterlife.told(lives)
    module.exit_json(**told)


if __name__ == "__main__":
    main()
