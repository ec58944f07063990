# SPDX-License-Identifier: Apache-2.0
"""The old target answers by ssh and by its container's stdin, and is the same machine both ways."""

from __future__ import annotations

from tests.kernel.sshd import SshTarget

PROGRAM = "import sys, platform; print(platform.node(), '%d.%d' % sys.version_info[:2]); sys.exit(3)"


def test_python_3_9_through_ssh_and_through_the_container(old_target: SshTarget) -> None:
    by_ssh = old_target.run("python3", "-", input=PROGRAM)
    inside = old_target.container.attach("python3", "-", input=PROGRAM)
    assert by_ssh.returncode == inside.returncode == 3
    assert by_ssh.stdout.decode() == inside.stdout == f"ct-{old_target.container.name} 3.9\n"


def test_a_client_that_does_not_know_the_host_key_is_turned_away(old_target: SshTarget) -> None:
    old_target.known_hosts.write_text("")
    refused = old_target.run("true")
    assert refused.returncode == 255
    assert b"Host key verification failed" in refused.stderr
