# SPDX-License-Identifier: Apache-2.0
"""Which lines leave a config, and why: what the wanted form says again, what keeps the container from starting, what is stale.

Nothing else does (docs/adr/0019).
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from ..machine.devices import CAPS, DeviceTable, driver_of, expected_minor, is_nvidia_path
from ..model import Refused
from .access import ALLOW, DENY
from .document import KEY, Document
from .entries import Entries
from .narrow import undeclared
from .needs import CAPS_DIR, DEV, KEEP, NUMBER, PATH, Need, Wanted, is_concerned
from .rules import Rule
from .stale import FOREIGN, UNKNOWN, stale_rules


def leaving(document: Document, have: Entries, needed: Sequence[Need], wanted: Wanted, devices: DeviceTable,
            form: str) -> Dict[int, str]:
    """{line number: why it goes}. form: the one in which something missing is added. What an included file says stays, since
    other containers may live by it. Raises Refused for a major that is to be dropped and is needed."""
    gone = undeclared(have, wanted, devices)
    _broken(gone, have, needed, devices, form)
    if wanted.form != KEEP:
        _other_forms(gone, have, needed, devices, form)
    _stale(gone, have, needed, wanted, devices)
    gone = {number: why for number, why in gone.items() if number > 0}
    _duplicates(gone, document)
    return gone


def _other_forms(gone: Dict[int, str], have: Entries, needed: Sequence[Need], devices: DeviceTable, form: str) -> None:
    """Take out what the new form says again, and nothing else: a whole folder whose nodes are not known, a node that the
    host does not have now, NVSwitch and IMEX nodes, and a GPU shown at another one's place stay as they are."""
    why = "now in the form `%s`" % form
    here = devices.nodes is None or form != DEV
    again = {need.path for need in needed if need.minor is not None and (here or need.path in (devices.nodes or {}))}
    left = [need.path for need in needed if need.path not in again]
    for line, entry in have.devs:
        if form != DEV and entry.path in again:
            gone[line.number] = why
    for line, mount in have.mounts:
        if not mount.is_bind or not is_nvidia_path(mount.source) or line.number in gone:
            continue
        inner = {path for path, _ in devices.below(mount.source)} or {mount.source}
        if form == DEV and inner <= again and mount.target == mount.source.rstrip("/") and not line.origin:
            gone[line.number] = why
        elif form == DEV or not inner <= again:
            left += sorted(inner)
    ours = [line.number for line, _ in have.nvidia_rules(devices)]
    others = any(rule.major is not None and line.number not in ours for line, rule in have.access.opened)
    if have.access.cut and (form == DEV or form == PATH and not others):
        # A line above has emptied the list. The rules that Proxmox VE makes of devN went with it; and path rules alone are
        # none while their nodes are missing, which leaves the list empty, and every device open.
        return
    for line, rule in have.rules:
        if form != PATH and line.key == ALLOW and rule.path in again:
            gone[line.number] = why
    if form != NUMBER:
        stay = [(_major_of(path, devices), _minor_of(path, devices)) for path in left]
        denials = [rule for line, rule in have.rules if line.key == DENY] if have.free or have.everything else []
        gone.update((line.number, why) for line, rule in have.nvidia_rules(devices)
                    # Where all else is open, an allow rule is there to take back the denial of the same words.
                    if not any(rule.same(denial) for denial in denials)
                    and not any(_is_about(rule, major, minor) for major, minor in stay)
                    and (all(major for major, _ in stay) or rule.major in {need.major for need in needed}))


def _major_of(path: str, devices: DeviceTable) -> Optional[int]:
    """The number of NVIDIA's node at a path, None where nobody can tell."""
    node = (devices.nodes or {}).get(path)
    if path == CAPS_DIR:
        return devices.major(CAPS)
    return node.major if node is not None and node.type == "char" else devices.major(driver_of(path))


def _minor_of(path: str, devices: DeviceTable) -> Optional[int]:
    """The same for its second number."""
    node = (devices.nodes or {}).get(path)
    return node.minor if node is not None and node.type == "char" else expected_minor(path)


def _is_about(rule: Rule, major: Optional[int], minor: Optional[int]) -> bool:
    return rule.major == major and (rule.minor in (None, minor) or minor is None)


def _broken(gone: Dict[int, str], have: Entries, needed: Sequence[Need], devices: DeviceTable, form: str) -> None:
    """Entries of NVIDIA's that keep the container from starting, where another one gives the node, or will."""
    again = {need.path for need in needed if need.minor is not None}
    devs = sorted(have.devs, key=lambda pair: (int(pair[0].key[3:]), pair[0].key))
    for index, (line, entry) in enumerate(devs):
        if entry.bad and entry.path in again and form == DEV and entry.path in (
                again if devices.nodes is None else devices.nodes):
            gone[line.number] = "Proxmox VE cannot read it: %s" % entry.bad
        elif any(one.path == entry.path and not one.bad for _, one in devs[:index]) and entry.path in again:
            gone[line.number] = "%s is given twice" % entry.path
    for line, mount in have.mounts:
        if mount.misplaced and any((need.path + "/").startswith(mount.source + "/") for need in needed):
            gone[line.number] = mount.bad
        if not mount.is_bind or mount.target != mount.source or not is_nvidia_path(mount.source):
            continue
        stays = form == DEV or mount.source not in again
        for dev, entry in devs if stays else ():
            if entry.path == mount.source and not entry.bad and dev.number not in gone:
                gone[line.number] = "%s gives the node, and both cannot" % dev.key


def _stale(gone: Dict[int, str], have: Entries, needed: Sequence[Need], wanted: Wanted, devices: DeviceTable) -> None:
    if is_concerned(have, wanted, devices) and not have.free and not have.everything:
        for stale in stale_rules(have, devices):
            if stale.verdict not in (UNKNOWN, FOREIGN) or stale.verdict == UNKNOWN and wanted.prune:
                gone[stale.line.number] = "%d is %s now" % (stale.major, stale.owner or "nobody's")
    for need in needed:
        if need.major in wanted.drop:
            raise Refused("%d is %s now, and this container needs it" % (need.major or 0, need.driver), "--drop %s" % need.major,
                          "leave that major out: grep -w %s /proc/devices" % need.major)
    for line, rule in have.rules:
        if line.key == ALLOW and rule.type == "c" and rule.major in wanted.drop:
            gone[line.number] = "%d was named to be dropped" % rule.major


def _duplicates(gone: Dict[int, str], document: Document) -> None:
    """A key given twice: when the line that counts goes, the one above it must not come back to life."""
    keys = {line.key for line in document.main if line.number in gone and line.kind == KEY}
    gone.update((line.number, "a dead duplicate of %s" % line.key) for line in document.main
                if line.kind == KEY and line.key in keys and line.number not in gone)
