# SPDX-License-Identifier: Apache-2.0
"""What holds for every edit of every config: of hypothesis' making, of a thousand seeded ones, and of those that there are."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosttune.core.lxc import document as doc
from hosttune.core.lxc import pve
from hosttune.core.lxc.document import DROPPED, Document
from hosttune.core.lxc.edit import Edit, edit
from hosttune.core.lxc.entries import ALLOW, DEV_KEY, MOUNT, entries, is_dev_line
from hosttune.core.lxc.needs import Wanted
from hosttune.core.machine.devices import DeviceTable, device_table
from hosttune.core.model import Refused
from tests.conftest import MORE
from tests.unit.lxc_cases import NODES, PROC_DEVICES, a_host, inputs
from tests.unit.lxc_grammar import config, configs

CPUS = "lxc.cgroup2.cpuset.cpus"
EXAMPLES = settings(max_examples=MORE or 120)

WANTS = {
    "keep": Wanted(), "all": Wanted(gpus=None), "one": Wanted(gpus=(1,)), "required": Wanted(gpus=None, required=True),
    "caps": Wanted(caps=True), "drop": Wanted(drop=(506, 511)),
    **{form: Wanted(gpus=None, form=form) for form in ("dev", "path", "number")},
    "cpus": Wanted(gpus=None, cpus="0-3"), "dri": Wanted(gpus=None, dri=("/dev/dri/renderD128",)),
    "dri dev": Wanted(gpus=None, form="dev", dri=("/dev/dri/card0", "/dev/dri/renderD128")),
    "prune": Wanted(prune=True), "refused": Wanted(gpus=None, refused=True),
    "path one": Wanted(gpus=(0,), form="path"), "dev as it is": Wanted(form="dev"),
}  # fmt: skip
HOSTS = {
    "whole": a_host(),
    "numbers only": device_table(PROC_DEVICES),
    "no uvm": device_table(PROC_DEVICES.replace("511 nvidia-uvm\n", ""), {p: n for p, n in NODES.items() if "uvm" not in p}),
    "no driver": device_table("Character devices:\n  1 mem\n", {}),
    "old Proxmox VE": device_table(PROC_DEVICES, NODES, (4, 4, 7)),
}
wants = st.sampled_from(sorted(WANTS)).map(WANTS.__getitem__)
hosts = st.sampled_from(sorted(HOSTS)).map(HOSTS.__getitem__)
dialects = st.sampled_from([doc.PVE, doc.PVE, doc.PVE, doc.LXC])


def run(data: bytes, wanted: Wanted, host: DeviceTable, dialect: str = doc.PVE) -> Edit | None:
    """None: refused."""
    try:
        return edit(doc.parse(data, dialect, path="200.conf"), wanted, host, "ct:200")
    except Refused as refused:
        assert refused.what and refused.where and refused.way_out
        return None


def is_managed(line: doc.Line) -> bool:
    """Lines that an edit may add or take away; all others it must leave where they are."""
    if line.kind != doc.RAW:
        return is_dev_line(line)
    return line.key in (ALLOW, CPUS) or line.key == MOUNT and ("/dev/nvidia" in line.value or "/dev/dri" in line.value)


def hold(data: bytes, wanted: Wanted, host: DeviceTable, dialect: str = doc.PVE) -> Edit | None:
    """Everything that must hold for one edit."""
    old = doc.parse(data, dialect)
    assert doc.render(old) == data
    result = run(data, wanted, host, dialect)
    if result is None:
        return None
    if not result.changes:
        assert result.data == data, "nothing to do, and not a byte is touched"
        return result
    new = doc.parse(result.data, dialect)
    assert_same(bytes_of(old), bytes_of(new))
    assert_order(old, new)
    again = run(result.data, wanted, host, dialect)
    assert again is not None and again.changes == () and again.data == result.data, again and again.changes
    if dialect == doc.PVE:
        assert_kept(old, new)
        assert clashes(result) or not clashes(again), "no new one"
    return result


def clashes(result: Edit) -> set[str]:
    """Start-breakers, without their line numbers."""
    return {re.sub(r"line \d+", "a line", f.summary) for f in result.findings if f.id == "HT426"}


def bytes_of(document: Document) -> list[bytes]:
    """The lines that are not ours to touch, whole."""
    return [line.raw for line in document.lines if line.part or not is_managed(line)]


def assert_same(old: list[bytes], new: list[bytes]) -> None:
    """Every line of others stays, in its place and order; only a last one without an ending gets one if it must."""
    assert len(old) == len(new)
    for before, after in zip(old, new, strict=True):
        assert after == before or not before.endswith(b"\n") and after.rstrip(b"\r\n") == before


def assert_order(old: Document, new: Document) -> None:
    """Of equal lines any may have gone: each that is left must be found below the one before it."""
    here, there = ([line.text for line in one.main if is_managed(line)] for one in (old, new))
    stays = iter(there)
    left = Counter(here) & Counter(there)
    for text in here:
        if left[text]:
            left[text] -= 1
            assert text in stays, "what stays of the managed lines stays in its order, too"


def assert_kept(old: Document, new: Document) -> None:
    """As Proxmox VE will read both: sections, notes, keys and raw lines, but for what is managed."""
    before, after = pve.kept(old), pve.kept(new)
    main_before, main_after = before.pop(""), after.pop("")
    assert before == after, "snapshots and pending"
    assert main_before.notes == main_after.notes
    for part in (others_keys, others_raw, others_devs):
        assert part(main_before) == part(main_after)


def others_keys(main: pve.Section) -> dict[str, str]:
    return {key: value for key, value in main.keys.items() if not DEV_KEY.match(key)}


def others_raw(main: pve.Section) -> list[tuple[str, str]]:
    ours = [pair for pair in main.raw if pair[0] in (ALLOW, CPUS) or "/dev/nvidia" in pair[1] or "/dev/dri" in pair[1]]
    return [pair for pair in main.raw if pair not in ours]


def others_devs(main: pve.Section) -> list[str]:
    """devN entries of other devices; their numbers stay, too, but two of one number are one."""
    pairs = [key + value for key, value in main.keys.items() if DEV_KEY.match(key)]
    return sorted(pair for pair in pairs if "/nvidia" not in pair and "/dri" not in pair)


# ---- what was found once

FREE = b"arch: amd64\nlxc.idmap: u 0 100000 65536\n"
ALLOWED, DENIED = b"lxc.cgroup2.devices.allow: c 195:* rwm\n", b"lxc.cgroup2.devices.deny: c 195:* rwm\n"


@pytest.mark.parametrize("rules", [ALLOWED + DENIED, ALLOWED + ALLOWED + DENIED, DENIED + ALLOWED])
@pytest.mark.parametrize("form", ["path", "dev"])
def test_where_all_is_open_a_rule_that_takes_back_a_denial_is_not_the_forms_to_remove(rules: bytes, form: str) -> None:
    """It was removed as said again by the new form, found to be missing, and added: each run changed the file."""
    hold(FREE + rules, WANTS[form], device_table("Character devices:\n  1 mem\n", {}), "pve")


# ---- any config

@EXAMPLES
@given(configs(), wants, hosts, dialects)
def test_an_edit_says_what_it_does_does_it_once_and_touches_nothing_else(
    data: bytes, wanted: Wanted, host: DeviceTable, dialect: str
) -> None:
    hold(data, wanted, host, dialect)


@EXAMPLES
@given(configs(), wants, hosts)
def test_what_proxmox_writes_between_two_edits_changes_neither(data: bytes, wanted: Wanted, host: DeviceTable) -> None:
    """Proxmox VE moves notes to the top, sorts keys and forgets lines. Edit, then its write, or the other way round."""
    edited = run(data, wanted, host)
    rewritten = run(pve.written(doc.parse(data)), wanted, host)
    if edited is None or rewritten is None:
        return
    assert read(settled(edited.data)) == read(settled(rewritten.data))


def read(data: bytes) -> dict[str, pve.Section]:
    """As Proxmox VE reads it; between raw lines of different keys no order counts."""
    sections = pve.kept(doc.parse(data))
    for section in sections.values():
        section.raw.sort(key=lambda pair: pair[0])
    return sections


def settled(data: bytes) -> bytes:
    """After two writes of Proxmox VE: the first one may leave an empty pending section, which the second forgets."""
    return pve.written(doc.parse(pve.written(doc.parse(data))))


@EXAMPLES
@given(configs(), st.sampled_from(["whole", "numbers only", "no uvm"]).map(HOSTS.__getitem__), st.permutations(range(3)))
def test_the_order_of_edits_does_not_matter(data: bytes, host: DeviceTable, order: list[int]) -> None:
    edits = (Wanted(gpus=(1,)), Wanted(gpus=(1,), caps=True), Wanted(gpus=(1,), drop=(506, 239)))
    ends = []
    for turns in (sorted(order), order):
        now: bytes | None = data
        for turn in turns:
            result = run(now, edits[turn], host) if now is not None else None
            now = result.data if result else None
        ends.append(now)
    if None in ends:
        return
    first, second = (doc.parse(end) for end in ends if end is not None)
    assert given_by(first) == given_by(second)
    assert [line.rstrip(b"\r\n") for line in bytes_of(first)] == [line.rstrip(b"\r\n") for line in bytes_of(second)]


def given_by(document: Document) -> dict[str, bool]:
    """The nodes that the container is shown, and whether it may open each."""
    have = entries(document, document.main)
    return {path: have.opens(path, node.major, node.minor)
            for path, node in NODES.items() if node.type == "char" and (have.dev(path) or have.binds(path))}  # fmt: skip


@EXAMPLES
@given(configs(), hosts, st.sampled_from(["dev", "path", "number"]), st.sampled_from(["dev", "path", "number"]))
def test_a_conversion_loses_no_node(data: bytes, host: DeviceTable, first: str, second: str) -> None:
    """From whatever is there to one form, and on to another: what was shown inside and opened still is."""
    now = data
    for form in (first, second):
        result = run(now, Wanted(form=form), host)
        if result is None or clashes(result):
            return
        before, after = (entries(one, one.main) for one in (doc.parse(now), doc.parse(result.data)))
        named = [node for path in before.nvidia_paths for node in [inner for inner, _ in host.below(path)] or [path]]
        for path in sorted(named):
            if before.dev(path) or before.binds(path):
                assert after.hook or after.dev(path) or after.binds(path), path
        for need in result.needs:
            if need.major is not None and before.opens(need.path, need.major, need.minor):
                assert after.opens(need.path, need.major, need.minor), need
        now = result.data


# ---- a thousand at once

def test_a_thousand_generated_configs_round_trip() -> None:
    """200 whose parse and rewrite by Proxmox VE are known (test_lxc_document), 800 of the wider grammar."""
    source = random.Random(8)
    files = [data for name, data in inputs().items() if name.startswith("generated")] + [config(source) for _ in range(800)]
    assert len(files) == 1000 and len(set(files)) > 950
    changed = refused = dropped = 0
    names = sorted(WANTS)
    for number, data in enumerate(files):
        result = hold(data, WANTS[names[number % len(names)]], HOSTS["whole"])
        refused += result is None
        changed += bool(result and result.changes)
        document = doc.parse(data)
        dropped += any(line.kind == DROPPED for line in document.lines)
        assert pve.written(doc.parse(settled(data))) == settled(data)
    assert changed > 500 and 20 < refused < 300 and dropped > 300, (changed, refused, dropped)


@pytest.mark.parametrize("name", sorted(WANTS))
def test_every_config_that_there_is_holds(name: str) -> None:
    for data in inputs().values():
        hold(data, WANTS[name], HOSTS["whole"])
