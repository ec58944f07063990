# SPDX-License-Identifier: Apache-2.0
"""Targets reached by ssh on loopback.

ssh_target: the `old` root (bullseye, Python 3.9) in a container that shares this machine's loopback, with sshd alone.
booted_target: the `ct` root (bookworm) with systemd and a network of its own, so a whole machine: processes that shall
reach it enter that network first (`enter`).

Throw-away keys on both sides; the host key is known beforehand, so a client that checks host keys, as it should, gets in.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.kernel.container import Container


@dataclass(frozen=True)
class SshTarget:
    """How to reach it. `config` is an ssh_config(5) file with one host, `target`, that carries all of the rest."""

    address: str
    port: int
    user: str
    key: Path
    known_hosts: Path
    config: Path
    container: Container
    enter: tuple[str, ...] = ()
    """Words in front of a command that has to reach it."""

    def run(
        self, *argv: str, input: str | bytes | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command there (ssh joins the words for a remote shell)."""
        stdin = input.encode() if isinstance(input, str) else input
        command = [*self.enter, "ssh", "-F", str(self.config), "target", "--", *argv]
        return subprocess.run(command, input=stdin or b"", capture_output=True, timeout=timeout)


def ssh_target(folder: Path) -> SshTarget:
    """Start the container and wait until a command runs through ssh. The caller destroys `.container`."""
    container = Container("lxc.net.0.type = none\nlxc.init.cmd = /usr/sbin/sshd -D -e -f /etc/ssh/target\n", root="old")
    target = _configured(container, folder, _free_port())
    container.start()
    _wait(target)
    return target


def booted_target(container: Container, folder: Path) -> SshTarget:
    """Boot this container of the `ct` root, with sshd as one of its services. The caller destroys it."""
    target = _configured(container, folder, 22)
    units = container.rootfs / "etc/systemd/system"
    text = "[Service]\nExecStart=/usr/sbin/sshd -D -f /etc/ssh/target\nRuntimeDirectory=sshd\nKillMode=process\n"
    (units / "target.service").write_text(text)  # ssh.service is masked there
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/target.service").symlink_to("../target.service")
    container.start(booted=True)
    target = replace(target, enter=("nsenter", "--net=/proc/%d/ns/net" % container.pid, "--"))
    _wait(target)
    return target


def _configured(container: Container, folder: Path, port: int) -> SshTarget:
    """Keys and the configuration of both sides."""
    key, host_key = folder / "id", folder / "host_key"
    for path in (key, host_key):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hosttune-tests", "-f", path], check=True)
    known_hosts, config = folder / "known_hosts", folder / "config"
    known = "127.0.0.1" if port == 22 else f"[127.0.0.1]:{port}"
    known_hosts.write_text(f"{known} {_public(host_key)}\n")
    config.write_text(
        f"Host target\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n"
        "  ConnectTimeout 5\n  LogLevel ERROR\n"
    )
    _write(container.rootfs / "etc/ssh/target_key", host_key.read_text(), 0o600)
    _write(container.rootfs / "etc/ssh/target_users", f"{_public(key)}\n", 0o600)
    _write(
        container.rootfs / "etc/ssh/target",
        f"ListenAddress 127.0.0.1:{port}\nHostKey /etc/ssh/target_key\nAuthorizedKeysFile /etc/ssh/target_users\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nPidFile none\n"
        "Subsystem sftp internal-sftp\nUseDNS no\n",
        0o600,
    )
    (container.rootfs / "run/sshd").mkdir(mode=0o755, exist_ok=True)
    return SshTarget("127.0.0.1", port, "root", key, known_hosts, config, container)


def _wait(target: SshTarget, limit: float = 30) -> None:
    end = time.monotonic() + limit
    while True:
        seen = target.run("true")
        if seen.returncode == 0:
            return
        if time.monotonic() > end or not target.container.running:
            log: Sequence[str] = target.container.log.read_text().splitlines()[-10:]
            raise RuntimeError("sshd does not answer: " + seen.stderr.decode() + "\n" + "\n".join(log))
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _public(key: Path) -> str:
    return key.with_name(key.name + ".pub").read_text().strip()


def _write(path: Path, text: str, mode: int) -> None:
    path.touch(mode=mode)
    path.write_text(text)
