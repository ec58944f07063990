#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The settings of a host, as one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tune
short_description: Keep the settings of a GPU host
version_added: "0.1.0"
description: [Keeps settings.]
author: [hosttune contributors]
options:
  profile:
    description: The whole C(hosttune) variable of the inventory.
    type: dict
    required: true
attributes:
  check_mode:
    description: What would change is predicted by the code that changes it.
    support: full
"""

EXAMPLES = r"""
- name: Keep the settings of this host
  hosttune.hosttune.tune:
    profile: "{{ hosttune }}"
"""

RETURN = r"""
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import host


def main() -> None:
    module = AnsibleModule(argument_spec={"profile": {"type": "dict", "required": True}}, supports_check_mode=True)
    module.exit_json(changed=False, uname=host.LiveHost().uname())


if __name__ == "__main__":
    main()
