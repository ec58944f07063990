# SPDX-License-Identifier: Apache-2.0
"""The lossless document against the real writer of Proxmox VE, and against any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.core.lxc import document as doc
from hosttune.core.lxc import pve
from tests.unit.lxc_cases import Written, inputs, real, written

ALL = list(written())


def test_every_case_is_here() -> None:
    assert len(inputs()) == 218
    assert len(ALL) == 18 * 3 + 200 * 2


@pytest.mark.parametrize("case", ALL, ids=lambda case: "%s-pve%d" % (case.name, case.pve))
def test_sections_kept_and_dropped_lines_are_those_of_proxmox(case: Written) -> None:
    document = doc.parse(case.data, pve=case.pve)
    assert doc.render(document) == case.data
    assert pve.written(document) == case.out, "what Proxmox VE wrote, byte for byte"
    assert pve.kept(doc.parse(case.out, pve=case.pve)).keys() == pve.kept(document).keys() - {doc.PENDING} | (
        {doc.PENDING} if b"[pve:pending]" in case.out else set())
    said = [line.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            for line in document.lines if line.reason]
    unparsed = [warning.split(" - unable to parse config: ", 1)[1] for warning in case.warnings
                if " - unable to parse config: " in warning]
    otherwise = [text for text in said if text.startswith(("delete:", "lxc.rootfs.options"))]
    assert [text for text in said if text not in otherwise] == unparsed
    assert len(otherwise) == sum("only allowed in [pve:pending]" in w or "use mount point options" in w for w in case.warnings)


PIECES = [b"[a1]\n", b"[pve:pending]\r\n", b"#x\n", b"lxc.cap.drop:\n", b"k: v\n", b"\n", b"[x]\n", b" k: v\n", b"dev0: /dev/x"]


@given(st.binary(max_size=400) | st.lists(st.sampled_from(PIECES)).map(b"".join), st.sampled_from([doc.PVE, doc.LXC]))
def test_any_bytes_come_back_as_they_were(data: bytes, dialect: str) -> None:
    assert doc.render(doc.parse(data, dialect)) == data


def test_a_line_that_proxmox_forgets_has_its_number_and_the_reason() -> None:
    document = doc.parse(real("syn-odd"), path="/etc/pve/lxc/200.conf")
    lost = {line.number: why for line, why in pve.lost(document)}
    assert lost[9] == "a blank stands before the key"
    assert lost[7] == "the value is empty"
    assert lost[15] == "a blank stands before the colon"
    assert lost[11] == "lxc.bogus.key is not among the raw keys that Proxmox VE accepts"
    assert document.place(document.lines[8]) == "/etc/pve/lxc/200.conf:9"


def test_a_section_that_comes_twice_is_lost_once() -> None:
    document = doc.parse(b"a: 1\n[snap]\nb: 1\n[snap]\nb: 2\n")
    assert [line.number for line, _ in pve.lost(document)] == [2]
    assert pve.kept(document)["snap"].keys == {"b": "2"}


@pytest.mark.parametrize(("data", "insert_after", "want"), [
    (b"a: 1\n", 1, b"a: 1\nnew\n"),
    (b"a: 1", 1, b"a: 1\nnew\n"),
    (b"a: 1\r\nb: 2\r\n", 1, b"a: 1\r\nnew\r\nb: 2\r\n"),
    (b"a: 1\r\nb: 2", 2, b"a: 1\r\nb: 2\r\nnew\r\n"),
    (b"a: 1\r\n#b", 2, b"a: 1\r\n#b\nnew\r\n"),
    (b"", 0, b"new\n"),
    (b"[snap]\nb: 1\n", 0, b"new\n[snap]\nb: 1\n"),
])
def test_a_new_line_takes_the_ending_of_its_neighbour(data: bytes, insert_after: int, want: bytes) -> None:
    assert doc.render(doc.rewrite(doc.parse(data), (), {insert_after: ["new"]})) == want


def test_raw_lines_go_after_the_last_one_of_main_and_above_the_first_section() -> None:
    document = doc.parse(b"a: 1\nlxc.cap.drop:\nb: 1\n\n[snap]\nlxc.cap.drop:\n")
    assert doc.after_last(document, doc.RAW, ("lxc.",)) == 2
    assert doc.after_last(doc.parse(b"a: 1\n\n[snap]\n"), doc.RAW, ("lxc.",)) == 1


def test_plain_lxc_skips_comments_and_foreign_keys_and_refuses_a_line_without_equals() -> None:
    document = doc.parse(b"  # note\nfoo\nlxc.net.0.type = veth\n lxc.idmap=u 0 1 2\nlxc.autodev\n[a]\n", doc.LXC)
    assert [line.kind for line in document.lines] == ["note", "ignored", "raw", "raw", "dropped", "ignored"]
    assert [(line.key, line.value) for line in document.lines if line.kind == "raw"] == [
        ("lxc.net.0.type", "veth"), ("lxc.idmap", "u 0 1 2")]
    assert {line.part for line in document.lines} == {0}, "there are no sections"
