#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Models in memory, as one task."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model
short_description: Keep models in memory, whole and verified
version_added: "0.1.0"
description:
  - Copies the declared models from a local directory, from a snapshot in a Hugging Face cache of the machine, or from
    another machine over its own C(ssh), into a tmpfs of its own at C(/dev/shm/models), and hashes each byte on its way. With
    C(hash=later) of a model nothing is hashed, and HT512 in RV(findings) says so until C(hosttune stage verify) has compared.
  - A revision of the hub that the cache lacks is downloaded by the C(hosttune) command of the target, which needs a Python
    with C(huggingface_hub) there. What is whole on the disk is used before the network.
  - A model appears under its name when all of it is there. A copy that was cut short goes on with the files that were whole.
    A model that is whole already is told by names, sizes and times; nothing is read then.
  - A container whose engine uses a model gets one read-only mount entry, and sees the models at C(/srv/models) from its next
    start on. It is restarted only if its policy says so. Otherwise RV(findings) says what a restart would destroy.
  - A model that does not fit is refused with the sum, before anything is copied, and with the names of those that would go
    for it under O(evict).
author:
  - hosttune contributors
requirements:
  - Python 3.9 or newer on the target, and nothing else
options:
  profile:
    description:
      - What is wanted of this machine, the whole C(hosttune) variable of the inventory. An unknown key or a wrong type
        is refused with its place.
    type: dict
    default: {}
  models:
    description:
      - Models by name, laid over those of O(profile), each with the keys of the profile, C(source), C(placement), C(hash) (V(now)
        or V(later)), C(limit) (V(2GB/s)) and C(nice) (V(10)) among them.
    type: dict
  only:
    description:
      - Names of the declared models to stage. All of them by default.
    type: list
    elements: str
    default: []
  evict:
    description:
      - Take other models out of memory for one that does not fit. Those that are not declared go first, the oldest of them
        before others; one that a process has mapped never goes.
    type: bool
    default: false
  command:
    description:
      - The C(hosttune) command on the target, which downloads from the hub.
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
    description: The code that copies also predicts the copy.
    support: full
  diff_mode:
    description: One diff for each config file of a container. Models have none.
    support: full
notes:
  - A copy may take minutes. With C(async) and C(poll) no connection has to last that long; C(hosttune.hosttune.models) looks
    first and goes that way only if there is something to copy. A task that is ended leaves what is whole to the next one.
  - C(cache) of the model says where another cache is (C(HF_HOME) and C(HF_HUB_CACHE) in C(environment) do too, but not at the
    next boot). A token stands in a file of mode 0600 on the target, which C(token-file) of the model names.
seealso:
  - module: hosttune.hosttune.lxc_devices
"""

EXAMPLES = r"""
- name: See what would be copied
  hosttune.hosttune.model:
    profile: "{{ hosttune }}"

- name: Bring one model into memory, without a connection that has to last
  hosttune.hosttune.model:
    mode: apply
    models:
      qwen3.6-27b: {source: /srv/llm/qwen3.6-27b}
  async: 3600
  poll: 5
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
  description: What is in memory and what is wrong with it, as it is after the changes.
  type: list
  elements: dict
  returned: success
  sample:
    - {id: HT501, name: model-not-staged, status: ok, machine: host, subject: qwen3.6-27b,
       summary: "29 files, 51.8 GB in memory at /dev/shm/models/qwen3.6-27b"}
steps:
  description: The edits of config files, done or (in check mode and under V(plan)) to be done.
  type: list
  elements: dict
  returned: success
actions:
  description: Mounts, copies and restarts, each with what it destroys and costs, done or to be done.
  type: list
  elements: dict
  returned: success
  sample:
    - {name: copy, subject: qwen3.6-27b, argv: [hosttune, stage, add, qwen3.6-27b], costs: "51.8 GB of memory"}
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

import os
from typing import Any, Dict, Sequence

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.core import installed, model, task
from ..module_utils.core.door import host, live
from ..module_utils.core.stage import add, declared, plan, source
from ..module_utils.core.wanted import profile

DOWNLOAD_SECONDS = 86400
SPEC = {
    "profile": {"type": "dict", "default": {}},
    "models": {"type": "dict"},
    "only": {"type": "list", "elements": "str", "default": []},
    "evict": {"type": "bool", "default": False},
    "command": {"type": "path", "default": "/usr/local/bin/hosttune"},
    "mode": {"type": "str", "choices": ["plan", "apply"]},
    "ignore": {"type": "list", "elements": "dict"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    try:
        module.exit_json(**models(live.LiveHost(), module.params, module.check_mode))
    except (model.Refused, OSError) as e:
        module.fail_json(msg=task.message(e))


def models(door: host.Host, params: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    """The task's return values. Raises Refused for a profile that is wrong."""
    own = {key: params[key] for key in ("models", "mode", "ignore")}
    wanted = profile.validate(task.profile_data(params["profile"], **own))
    dry = check_mode or wanted.mode == "plan"
    reports = [one(door, wanted, name, params, dry) for name in declared.all_of(wanted, params["only"])]
    findings = task.mark_ignored([f for r in reports for f in r.findings], wanted.ignore, door.clock())
    steps = list(dict.fromkeys(s for r in reports for s in r.steps))  # two models may need one entry of one container
    actions = list(dict.fromkeys(a for r in reports for a in r.actions))
    told = task.result(door, findings, steps, actions, mode=wanted.mode, check_mode=check_mode)
    if not dry:
        told["changed"] = any(r.changed for r in reports)
    return told


def one(door: host.Host, wanted: profile.Profile, name: str, params: Dict[str, Any], dry: bool) -> model.Report:
    """One model. One that is refused must not keep the others from being staged."""
    caches, evict = source.hub_caches(os.environ, os.path.expanduser("~")), params["evict"]
    try:
        return declared.bring(door, wanted, name, "", caches, dry_run=dry, evict=evict, fetch=planned if dry else None)
    except (model.Refused, OSError) as e:
        if not dry and plan.is_missing(declared.sources(wanted)[name], e) and there(door, params["command"]):
            words = ["stage", "add", name] + (["--evict"] if evict else [])
            try:
                return installed.run(door, params["command"], words, dict(wanted.plain), DOWNLOAD_SECONDS)
            except model.Refused as refused:
                e = refused
        return model.Report("stage add", findings=(add.refused(name, e),))


def planned(repository: str, revision: str, caches: Sequence[str]) -> None:
    """What would be fetched is told; nothing is."""


def there(door: host.Host, path: str) -> bool:
    """Whether the command is on this machine."""
    try:
        return bool(door.lstat(path))
    except OSError:
        return False


if __name__ == "__main__":
    main()
