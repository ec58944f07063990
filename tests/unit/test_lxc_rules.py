# SPDX-License-Identifier: Apache-2.0
"""Values as LXC 5.0.2 and 6.0.5 and pve-container take them."""

from __future__ import annotations

import pytest

from hosttune.core.lxc.rules import parse_dev, parse_mount, parse_rule


@pytest.mark.parametrize(("value", "opens"), [
    ("c 511:* rwm", True), ("c 511:0 rw", True), ("c 511:1 rwm", False), ("c 511:* r", False), ("c *:* rwm", True),
    ("c\t511:*\trwm", True), ("c 511:* wmr", True), ("c 511:* rwm # note", True), ("c 511:* rw # note", False),
    ("c 511:* rwmx", True), ("'c 511:* rwm'", True), ("c  511:* rwm", False), ("c 511:*  rwm", False), ("c 511:*", False),
    ("C 511:* rwm", False), ("c 511 rwm", False), ("c 0x1ff:* rwm", False), ("b 511:* rwm", False), ("c 51:* rwm", False),
    ("/dev/nvidia-uvm rwm", False), ("c *:* m", False),
])
def test_which_rules_open_511_0(value: str, opens: bool) -> None:
    assert parse_rule(value).opens(511, 0) is opens


@pytest.mark.parametrize(("value", "why"), [
    ("c  511:* rwm", "two blanks"), ("c 511:*  rwm", "two blanks"), ("c 511:* rw # x", "text follows fewer than three"),
    ("c 511:* rx", "'x' is no access letter"), ("C 1:1 rwm", "lower case"), ("c 511 rwm", "not MAJOR:MINOR"),
    ("c511:* rwm", "no blank follows"), ("c\u00a0511:* rwm", "no blank follows"),
    ("c \u0665\u0661\u0661:* rwm", "decimal digits"),
    ("c %s:* rwm" % ("9" * 5000), "decimal digits"), ("c 511:*", "access letters (rwm) are missing"),
    ("/dev/nvidia0", "access letters (rwm) are missing"),
])
def test_a_rule_that_lxc_skips_says_why(value: str, why: str) -> None:
    assert why in parse_rule(value).bad


@pytest.mark.parametrize(("value", "everything", "fatal"), [
    ("a", True, False), ("", True, False), ('""', True, False), ("c *:* rwm", True, False), ("a *:* rwm", True, True),
    ("c *:* m", False, False), ("b *:* rwm", False, False), ("c 195:* rwm", False, False),
])
def test_what_opens_every_device_and_what_keeps_the_container_down(value: str, everything: bool, fatal: bool) -> None:
    rule = parse_rule(value)
    assert (rule.everything, rule.fatal) == (everything, fatal)


def test_a_path_rule_may_have_several_blanks_and_a_note() -> None:
    rule = parse_rule("/dev/nvidia-uvm   rw  # note")
    assert (rule.path, rule.access, rule.bad) == ("/dev/nvidia-uvm", "rw", "")


@pytest.mark.parametrize(("value", "bad"), [
    ("/dev/nvidia0", ""), ("/dev/nvidia0,mode=0666", ""), ("path=/dev/nvidia0,gid=44,uid=0,deny-write=1,", ""),
    ("/dev//nvidia0", ""), ("nvidia0", "no device path"), ("/dev/../etc/passwd", "no device path"),
    ("/dev/a/.", "no device path"),
    ("/dev/nvidia0,mode=666", "octal"), ("/dev/nvidia0,mode=0999", "octal"), ("/dev/nvidia0, gid=44", "no option"),
    ("/dev/nvidia0,gid=44,gid=45", "twice"), ("/dev/nvidia0,user=x", "no option"), ("", "no device path"),
])
def test_dev_entries(value: str, bad: str) -> None:
    entry = parse_dev(value)
    assert bad in entry.bad and bool(entry.bad) is bool(bad)
    if not bad:
        assert entry.path == "/dev/nvidia0"


def test_mount_entries() -> None:
    mount = parse_mount("/dev/serial/by-id  dev/serial/by-id\tnone bind,optional,create=dir 0 0")
    assert (mount.source, mount.target, mount.is_bind, mount.bad) == ("/dev/serial/by-id", "/dev/serial/by-id", True, "")
    assert parse_mount("/dev/my\\040disk dev/d none bind").source == "/dev/my disk"
    assert parse_mount("/dev/nvidia0\u00a0dev/nvidia0 none bind").fatal, "a no-break space separates nothing"
    absolute = parse_mount("/dev/nvidia0 /dev/nvidia0 none bind")
    assert absolute.ignored and not absolute.is_bind, "LXC skips an absolute target silently"
    assert parse_mount("/dev/nvidia0 dev/nvidia0").fatal
    assert not parse_mount("tmpfs dev/shm tmpfs size=8G,create=dir 0 0").is_bind
