# SPDX-License-Identifier: Apache-2.0
"""`pct set` and `pct unlock`, as in pve-container 5.3 (PVE 8): there a dev[n] of a running container waits for its next start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from . import conf, guest, lxcconfig
from .conf import Config
from .guest import Failure

AT_ONCE = frozenset(
    ("description", "onboot", "startup", "protection", "hostname", "hookscript", "cores", "cpulimit", "cpuunits", "memory",
     "swap", "tags")
)  # fmt: skip
"""Settings that a running container takes without a restart (the lab notes cores and memory in the file only)."""


def change(vmid: int, values: Mapping[str, str], delete: Sequence[str], revert: Sequence[str], digest: str = "") -> None:
    """Put values, deletions and reverts into pending, then apply what can be. Raises Failure; then nothing is written."""
    _verify(values, delete)
    guest.load(vmid)
    with guest.locked(vmid):
        if digest and digest != guest.digest(vmid):
            raise Failure("detected modified configuration - file changed by other user? Try again.")
        config = guest.load(vmid)
        guest.check_lock(config)
        for key in revert:
            _forget(config, key)
        for key in delete:
            if key not in config.main.values and key not in config.pending.values and key != "description":
                guest.warn(f"cannot delete '{key}' - not set in current configuration!")
            _forget(config, key)
            if key in config.main.values or (key == "description" and config.main.description):
                _doomed(config, [*_doomed(config), key])
        for key, value in values.items():
            _forget(config, key)
            if key == "description":
                config.pending.description = value.rstrip("\n") + "\n"
            elif config.main.values.get(key) != value:
                config.pending.values[key] = conf.normal(key, value)
        running = guest.running(vmid)
        if running:
            _apply_at_once(config)
        else:
            guest.apply_pending(config)
        guest.save(vmid, config)
        if not running:
            lxcconfig.update(vmid, guest.load(vmid))


def unlock(vmid: int) -> None:
    """Remove `lock:`. Raises Failure where there is none."""
    with guest.locked(vmid):
        config = guest.load(vmid)
        if "lock" not in config.main.values:
            raise Failure("no lock found trying to remove lock ''")
        del config.main.values["lock"]
        guest.save(vmid, config)


def _verify(values: Mapping[str, str], delete: Sequence[str]) -> None:
    for key, value in values.items():
        if not (key == "description" or conf.known(key)):
            raise Failure(f"Unknown option: {key}\n400 unable to parse option")
        complaint = None if key == "description" else conf.complaint_about(key, value)
        if complaint:
            raise Failure(f"400 Parameter verification failed.\n{key}: {complaint}")
        if re.fullmatch(r"dev\d+", key):
            lxcconfig.node_of(conf.device(value).path)  # checked since pve-container 5.0.10
    for key in delete:
        if not (key == "description" or conf.known(key)):
            raise Failure(f"400 Parameter verification failed.\ndelete: unknown option '{key}'")
        if key in values:
            raise Failure(f"400 Parameter verification failed.\ndelete: Can't use '-{key}' and '-delete {key}' at the same time")


def _doomed(config: Config, keys: Sequence[str] | None = None) -> list[str]:
    """The pending deletions; given `keys`, those from now on."""
    if keys is not None:
        config.pending.values.pop("delete", None)
        if keys:
            config.pending.values["delete"] = ",".join(sorted(set(keys)))
    return [key for key in config.pending.values.get("delete", "").split(",") if key]


def _forget(config: Config, key: str) -> None:
    """Take a key out of pending, its deletion too."""
    if key == "description":
        config.pending.description = ""
    config.pending.values.pop(key, None)
    _doomed(config, [other for other in _doomed(config) if other != key])


def _apply_at_once(config: Config) -> None:
    for key in [key for key in config.pending.values if key in AT_ONCE]:
        config.main.values[key] = config.pending.values.pop(key)
    if config.pending.description:
        config.main.description, config.pending.description = config.pending.description, ""
    for key in [key for key in _doomed(config) if key in AT_ONCE]:
        config.main.values.pop(key, None)
        if key == "description":
            config.main.description = ""
        _doomed(config, [other for other in _doomed(config) if other != key])
