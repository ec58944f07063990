# SPDX-License-Identifier: Apache-2.0
"""What a doctor tells a person to run is something that a shell can run: people paste it as it is printed, as root.

Prose stands behind a `#`. An `install the driver ...` would be run as install(1), and `reboot; if it comes again` reboots.
"""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from hosttune.core.model import Finding
from tests.unit import test_causes, test_next_boot

PROGRAMS = set(
    "apt apt-cache apt-get apt-mark bpftool cat dmesg dkms docker dpkg echo env export fuser grep helm hosttune journalctl "
    "kubectl kubelet ldconfig ls lsmod lspci lxc-cgroup lxc-start lxc-stop modinfo modprobe mokutil mv nv-fabricmanager "
    "nvidia-ctk nvidia-modprobe nvidia-smi pct podman prlimit proxmox-boot-tool ps python python3 readlink rm rmmod stat strace "
    "sudo sysctl systemctl tail ulimit unset update-grub update-initramfs dracut awk uname unattended-upgrade bootctl".split()
)
ENDS = {";", "&&", "||", "|", "$(", "("}
LOOKS = re.compile(
    r"(cat|grep|ls|dmesg|journalctl|lspci|ps|ss|fuser|df|lsmod|modinfo|stat|readlink|uname|awk|tail|findmnt|apt-cache|strace)\b"
    r"|systemctl (show|status)\b|dkms status|ldconfig -p|bpftool cgroup show|kubectl explain|env( -u \S+)*$|sysctl \w"
    r"|nvidia-smi( -q| -L| mig -i \S+ -lgip| conf-compute -grs|$)|(sudo )?hosttune (doctor|check|explain|status|lxc show)"
    r"|\S+ (-m pip list|-c 'import torch)"
)
"""Commands that change nothing."""


def findings() -> dict[str, Finding]:
    """One finding for each text of all tables, by that text."""
    found = [f for case in test_causes.CASES.values() for f in test_causes.report(case)]
    for case in test_next_boot.CASES.values():
        delta = case.get("machine", {})
        found += test_next_boot.judged(delta, default=delta.get("grub_default"))
    return {text: f for f in found for text in (f.hint.command, f.decide) if text}


def first_words(command: str) -> list[str]:
    """The program of each simple command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&")
    lexer.wordchars += "$:@%+,!"
    words, want = [], True
    for token in lexer:
        if token in ENDS:
            want = True
        elif want and not re.match(r"[A-Za-z_]\w*=", token):
            words.append(token.rpartition("/")[2])
            want = False
    return words


@pytest.fixture(scope="module")
def told() -> dict[str, Finding]:
    return findings()


def test_a_shell_takes_each(told: dict[str, Finding]) -> None:
    bad = {
        text: told[text].id
        for text in told
        if subprocess.run(["bash", "-n", "-c", text], capture_output=True).returncode
    }
    assert bad == {}


def test_each_begins_with_a_program(told: dict[str, Finding]) -> None:
    prose = {text: told[text].id for text in told if not set(first_words(text)) <= PROGRAMS}
    assert prose == {}
    assert len(told) > 80


def test_what_only_looks_is_called_a_look_and_nothing_else_is(told: dict[str, Finding]) -> None:
    """People run what stands behind `fix`, and wonder that nothing is fixed."""
    hints = {f.hint.command: f.hint for f in told.values() if f.hint.command}
    looks = {text for text in hints if simple(text) and all(LOOKS.match(part) for part in simple(text))}
    assert {text for text, hint in hints.items() if hint.word == "look"} == looks
    assert 20 < len(looks) < len(hints) - 40


def simple(command: str) -> list[str]:
    """Its simple commands; what stands behind a # is words."""
    bare = re.sub(r"'[^']*'", lambda quoted: re.sub("[|;()]", " ", quoted.group()), command.partition("#")[0])
    words = re.split(r"\$\(|\)|&&|\|\|?|;", bare)
    return [word.strip() for word in words if word.strip()]


def test_none_resets_or_wipes_more_than_its_subject(told: dict[str, Finding]) -> None:
    harm = re.compile(r"gpu-reset(?! -i)|chmod|rm -r|rm [^&;]*\*|mkfs|dd |> /dev/")
    assert {text: f.id for text, f in told.items() if harm.search(text.partition("#")[0])} == {}
