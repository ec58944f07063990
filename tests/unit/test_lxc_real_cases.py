# SPDX-License-Identifier: Apache-2.0
"""The eight real configs in all four forms, on the host that they are described for: one row a case and form.

A row says the whole edit: which lines go, which come (nothing else may, and the order of the rest is kept), and what has
to be said. What is right comes from what Proxmox VE, LXC and the driver do with such a file, not from our own output.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hosttune.core.lxc import document as doc
from hosttune.core.lxc import pve
from hosttune.core.lxc.edit import Edit, edit
from hosttune.core.lxc.entries import entries
from hosttune.core.lxc.needs import Wanted
from hosttune.core.model import Refused
from tests.unit.lxc_cases import a_host, real

CTL, UVM, TOOLS = "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"
CAP1, CAP2 = "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"


def rules(*values: str) -> tuple[str, ...]:
    return tuple("lxc.cgroup2.devices.allow: " + value for value in values)


def majors(*numbers: int) -> tuple[str, ...]:
    return rules(*("c %d:* rwm" % number for number in numbers))


def paths(*names: str) -> tuple[str, ...]:
    return rules(*(name + " rwm" for name in names))


def binds(*names: str) -> tuple[str, ...]:
    return tuple("lxc.mount.entry: %s %s none bind,optional,create=file" % (name, name[1:]) for name in names)


def devs(first: int, *names: str) -> tuple[str, ...]:
    """mode=0666 for what every user of CUDA opens; the capabilities keep the modes that the driver gave them."""
    modes = {CAP1: "0400", CAP2: "0444"}
    return tuple("dev%d: %s,mode=%s" % (first + n, name, modes.get(name, "0666")) for n, name in enumerate(names))


@dataclass(frozen=True)
class Row:
    """gone and new: the lines that go and come, without order. says: (finding id, words of it). silent: ids that must not
    be found. refused: the words of a refusal. gpus: what is declared; () is what the file has."""

    case: str
    form: str
    gpus: tuple[int, ...] | None = ()
    gone: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    says: tuple[tuple[str, str], ...] = ()
    silent: tuple[str, ...] = ("HT426",)
    refused: str = ""


GPU0 = "/dev/nvidia0"
CUDA = (GPU0, CTL, UVM)
ALL_01 = (*CUDA, TOOLS, CAP1, CAP2)
DIR_01 = ("lxc.mount.entry: /dev/nvidia-caps dev/nvidia-caps none bind,optional,create=dir",)
SAYS_01 = (("HT420", "hidraw, which owns 509 now"), ("HT420", "c 506:* rwm"), ("HT420", "/dev/apex_0"),
           ("HT421", "no rule opens /dev/nvidia-uvm"), ("HT421", "/dev/nvidia-caps/nvidia-cap1"),
           ("HT421", "/dev/dri is bound, and no rule opens its nodes"))

STALE_02 = majors(234, 237, 238, 239, 240, 508)
SAYS_02 = tuple(("HT420", owner) for owner in ("megaraid_sas_ioctl", "ipmidev", "watchdog", "c 239:*", "c 240:*", "nvme")) + (
    ("HT421", "/dev/nvidiactl is not passed"), ("HT421", "no rule opens /dev/nvidia-uvm"), ("HT421", "236:1"))

NEW_CONTAINER = (*CUDA, TOOLS)
NO_RULE = ("HT420", "HT423", "HT425", "HT426")
MISSING = (("HT421", "/dev/nvidia0 is not passed"), ("HT421", "/dev/nvidia-uvm is not passed"))
DEAD_04 = (*MISSING, ("HT424", "line 22 without effect: an unprivileged container"))
DEAD_07 = (*MISSING, ("HT424", "lines 10, 11 without effect: an unprivileged container"))

NOTED_05 = rules("c 195:* rwm # check this number", "c 511:* rwm # and this one")
VOID_05 = (("HT424", "line 8 without effect: LXC skips this rule"),)

SAYS_06 = (("HT424", "lines 6, 7, 8, 9 without effect: lxc.cgroup.devices.allow is for cgroup v1"), ("HT421", "195:255"),
           ("HT421", "511:0"))

OPEN_08 = (("HT423", "`a` opens every device of the host"),)
GIVEN_08 = tuple("dev%d: %s,gid=44" % (n, name) for n, name in enumerate(CUDA))

TABLE = (
    # 509 went to hidraw; 506 may be the Coral TPU that is passed too, so only its owner can let it go
    Row("01", "keep", gone=majors(509), new=majors(511, 236), says=SAYS_01),
    Row("01", "number", gone=majors(509), new=majors(511, 236), says=SAYS_01),
    Row("01", "path", gone=majors(195, 509), new=paths(*ALL_01), says=SAYS_01),
    Row("01", "dev", gone=majors(195, 509) + binds(*CUDA, TOOLS) + DIR_01, new=devs(0, *ALL_01), says=SAYS_01),
    # a RAID controller, the BMC, the watchdog and NVMe stand open; comments, apparmor and the empty cap.drop stay
    Row("02", "keep", gone=STALE_02, new=majors(511, 236) + binds(CTL), says=SAYS_02),
    Row("02", "number", gone=STALE_02, new=majors(511, 236) + binds(CTL, TOOLS), says=SAYS_02),
    Row("02", "path", gone=STALE_02 + majors(195), new=paths(*CUDA, TOOLS, CAP1) + binds(CTL, TOOLS), says=SAYS_02),
    Row("02", "dev", gone=STALE_02 + majors(195) + binds(GPU0, UVM, CAP1), new=devs(0, *CUDA, TOOLS, CAP1), says=SAYS_02),
    # unprivileged: entries alone, in main, and no rule in any form
    Row("03", "keep", silent=("HT420", "HT421", "HT423", "HT424", "HT425", "HT426")),
    Row("03", "keep", (0,), new=binds(*NEW_CONTAINER), says=MISSING, silent=NO_RULE),
    Row("03", "number", (0,), new=binds(*NEW_CONTAINER), says=MISSING, silent=NO_RULE),
    Row("03", "path", (0,), new=binds(*NEW_CONTAINER), says=MISSING, silent=NO_RULE),
    Row("03", "dev", (0,), new=devs(0, *NEW_CONTAINER), says=MISSING, silent=NO_RULE),
    # notes that look like rules are notes: `a` among them opens nothing
    Row("04", "keep", (0,), new=binds(*NEW_CONTAINER), says=DEAD_04, silent=NO_RULE),
    Row("04", "number", (0,), new=binds(*NEW_CONTAINER), says=DEAD_04, silent=NO_RULE),
    Row("04", "path", (0,), new=binds(*NEW_CONTAINER), says=DEAD_04, silent=NO_RULE),
    Row("04", "dev", (0,), new=devs(0, *NEW_CONTAINER), says=DEAD_04, silent=NO_RULE),
    # right already: two rules work in spite of their notes, the third never did
    Row("05", "keep", says=VOID_05, silent=("HT420", "HT421", "HT426")),
    Row("05", "number", new=binds(TOOLS), says=VOID_05, silent=("HT420", "HT426")),
    Row("05", "path", gone=NOTED_05, new=paths(*CUDA, TOOLS) + binds(TOOLS), says=VOID_05, silent=("HT420", "HT426")),
    Row("05", "dev", gone=NOTED_05 + binds(*CUDA), new=devs(0, *CUDA, TOOLS), says=VOID_05, silent=("HT420", "HT426")),
    # NVIDIA's hook makes the nodes: only rules are missing, and devN entries would make each node a second time
    Row("06", "keep", new=majors(195, 511, 236), says=SAYS_06),
    Row("06", "number", new=majors(195, 511, 236), says=SAYS_06),
    Row("06", "path", new=paths(CTL, UVM, TOOLS) + majors(236), says=SAYS_06),
    Row("06", "dev", refused="mount hook makes the device nodes"),
    # an id map is a user namespace
    Row("07", "keep", (0,), new=binds(*NEW_CONTAINER), says=DEAD_07, silent=NO_RULE),
    Row("07", "number", (0,), new=binds(*NEW_CONTAINER), says=DEAD_07, silent=NO_RULE),
    Row("07", "path", (0,), new=binds(*NEW_CONTAINER), says=DEAD_07, silent=NO_RULE),
    Row("07", "dev", (0,), new=devs(0, *NEW_CONTAINER), says=DEAD_07, silent=NO_RULE),
    # everything is open: a rule is pointless in any form, and that is said
    Row("08", "keep", says=OPEN_08, silent=("HT420", "HT421", "HT426")),
    Row("08", "number", gone=GIVEN_08, new=binds(*NEW_CONTAINER), says=OPEN_08, silent=("HT420", "HT426")),
    Row("08", "path", gone=GIVEN_08, new=binds(*NEW_CONTAINER), says=OPEN_08, silent=("HT420", "HT426")),
    Row("08", "dev", new=devs(3, TOOLS), says=OPEN_08, silent=("HT420", "HT426")),
)  # fmt: skip


def run(data: bytes, form: str, gpus: tuple[int, ...] | None) -> Edit:
    return edit(doc.parse(data, path="200.conf"), Wanted(gpus, form=form), a_host(), "ct:200")


def name(row: Row) -> str:
    return "%s-%s%s" % (row.case, row.form, "" if row.gpus == () else "-declared")


def test_every_case_has_every_form() -> None:
    assert {(row.case, row.form) for row in TABLE} == {
        ("%02d" % n, form) for n in range(1, 9) for form in ("keep", "number", "path", "dev")}


@pytest.mark.parametrize("row", TABLE, ids=name)
def test_a_real_config(row: Row) -> None:
    before = real(row.case)
    if row.refused:
        with pytest.raises(Refused, match=row.refused):
            run(before, row.form, row.gpus)
        return
    result = run(before, row.form, row.gpus)
    old, new = before.decode().split("\n"), result.data.decode().split("\n")
    assert sorted(line for line in new if line not in old) == sorted(row.new), "these lines come"
    assert sorted(line for line in old if line not in new) == sorted(row.gone), "these lines go"
    assert [line for line in new if line not in row.new] == [line for line in old if line not in row.gone], "the rest stays"
    for id, words in row.says:
        assert any(f.id == id and words in f.summary for f in result.findings), (id, words, result.findings)
    assert not {f.id for f in result.findings} & set(row.silent)


@pytest.mark.parametrize("row", [row for row in TABLE if not row.refused], ids=name)
def test_a_real_config_that_was_edited_has_all_it_needs_and_is_left_alone(row: Row) -> None:
    """Also after Proxmox VE has written it anew: notes at the top, keys sorted, raw lines in their order."""
    first = run(real(row.case), row.form, row.gpus)
    rewritten = pve.written(doc.parse(first.data))
    for data in (first.data, rewritten):
        again = run(data, row.form, row.gpus)
        assert again.changes == () and again.data == data
        assert not [f for f in again.findings if f.id in ("HT421", "HT426") and f.status in ("fail", "error")]
        document = doc.parse(data)
        have = entries(document, document.main)
        for need in first.needs:
            assert have.opens(need.path, need.major, need.minor), need
            assert have.hook or have.dev(need.path) or have.binds(need.path), need


PLAIN = [row for row in TABLE if row.case in ("01", "02", "05", "06") and row.form != "dev"]


@pytest.mark.parametrize("row", PLAIN, ids=name)
def test_the_same_lines_in_a_plain_lxc_config_are_edited_alike(row: Row) -> None:
    """`key = value`, no sections, notes that stay where they are; a privileged container has the same needs."""
    lines = [line.replace(": ", " = ", 1) if line.startswith("lxc.") else line for line in real(row.case).decode().split("\n")]
    lines = [line if line != "lxc.cap.drop:" else "lxc.cap.drop =" for line in lines if line.startswith(("lxc.", "#"))]
    document = doc.parse("".join(line + "\n" for line in lines).encode(), doc.LXC, path="config")
    result = edit(document, Wanted(row.gpus, form=row.form), a_host(), "ct:llm")
    new = result.data.decode().splitlines()
    plain = {sign: [line.replace(": ", " = ", 1) for line in given] for sign, given in (("-", row.gone), ("+", row.new))}
    assert sorted(line for line in new if line not in lines) == sorted(plain["+"])
    assert [line for line in new if line not in plain["+"]] == [line for line in lines if line not in plain["-"]]
    for id, words in row.says:
        if not words.startswith("line"):  # their numbers are others here
            assert any(f.id == id and words in f.summary for f in result.findings), (id, words)
