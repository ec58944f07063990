# SPDX-License-Identifier: Apache-2.0
"""A target reached by ssh: the `old` root (bullseye, Python 3.9) in a container that shares this machine's loopback.

Throw-away keys on both sides; the host key is known beforehand, so a client that checks host keys, as it should, gets in.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
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

    def run(
        self, *argv: str, input: str | bytes | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command there (ssh joins the words for a remote shell)."""
        stdin = input.encode() if isinstance(input, str) else input
        command = ["ssh", "-F", str(self.config), "target", "--", *argv]
        return subprocess.run(command, input=stdin or b"", capture_output=True, timeout=timeout)


def ssh_target(folder: Path) -> SshTarget:
    """Start the container and wait until a command runs through ssh. The caller destroys `.container`."""
    key, host_key = folder / "id", folder / "host_key"
    for path in (key, host_key):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hosttune-tests", "-f", path], check=True)
    port = _free_port()
    known_hosts, config = folder / "known_hosts", folder / "config"
    known_hosts.write_text(f"[127.0.0.1]:{port} {_public(host_key)}\n")
    config.write_text(
        f"Host target\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n"
        "  ConnectTimeout 5\n  LogLevel ERROR\n"
    )
    container = Container("lxc.net.0.type = none\nlxc.init.cmd = /usr/sbin/sshd -D -e -f /etc/ssh/target\n", root="old")
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
    container.start()
    target = SshTarget("127.0.0.1", port, "root", key, known_hosts, config, container)
    _wait(target)
    return target


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
