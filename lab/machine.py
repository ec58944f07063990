# SPDX-License-Identifier: Apache-2.0
"""One guest of the lab: make it from the image or a snapshot, run commands in it, reboot it, throw it away.

Everything about it lies in one folder below the cache: its disk (a layer over the image), ssh_config, console.log and what
lab.supervisor writes. Every wait looks whether QEMU is still alive, and its error carries the console's last lines.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from lab import LabError, accel, cache
from lab.image.build import REPOSITORY, Image

BOOT_LIMIT = 240
"""Seconds until ssh answers; usually 10 to 20, but other work may hold the processors."""
SETTLE_LIMIT = 300
"""Seconds until systemd has finished, the onboot containers included."""


class Machine:
    """A guest by its folder. `name` is unique on this machine; nothing is started by making the object."""

    def __init__(self, name: str, image: Image) -> None:
        self.folder = cache() / "guests" / name
        if len(str(self.folder)) > 80:
            raise LabError("%s is too long for sockets: set HOSTTUNE_CACHE to a shorter path" % self.folder)
        self.image = image

    # --- making and ending it

    def create(self, snapshot_disk: Path | None = None) -> Machine:
        """A new disk over the image's, or a copy of one with a snapshot in it. A guest of that name is thrown away first."""
        self.destroy()
        self.folder.mkdir(parents=True, mode=0o700)
        if snapshot_disk is not None:
            _run("cp", "--reflink=auto", "--sparse=always", snapshot_disk, self.disk)
        else:
            _run("qemu-img", "create", "-q", "-f", "qcow2", "-b", self.image.disk, "-F", "qcow2", self.disk)
        return self

    def start(
        self, snapshot: str | None = None, append: str = "", wait: bool = True, slot_patience: float = 0
    ) -> Machine:
        """Boot it, or resume a snapshot, and wait until ssh answers. append: words for the kernel's command line.

        Two guests may run on a machine at once; slot_patience: seconds to wait for one of two others to end.
        """
        if self.alive():
            raise LabError("%s runs already" % self.folder.name)
        port = _free_port()
        how = accel.choose(self.image.kernel)
        guest = {"image": str(self.image.folder), "port": port, "accel": dataclasses.asdict(how), "append": append,
                 "snapshot": snapshot, "slot_patience": slot_patience}  # fmt: skip
        (self.folder / "guest.json").write_text(json.dumps(guest))
        self._write_ssh_config(port)
        with open(self.folder / "supervisor.log", "ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "lab.supervisor", str(self.folder)], cwd=REPOSITORY, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        (self.folder / "supervisor.pid").write_text(str(supervisor.pid))
        while not self.alive() and supervisor.poll() is None:
            time.sleep(0.01)  # for a moment after exec a process has no command line
        if wait:
            self.wait(BOOT_LIMIT + slot_patience)
            if snapshot is not None:
                # The guest still lives in the second in which it was saved.
                self.run("date", "--set", "@%.3f" % time.time(), check=True)
        return self

    def stop(self) -> None:
        """Pull the plug. Returns when QEMU is gone."""
        if not self.alive():
            return
        supervisor = int((self.folder / "supervisor.pid").read_text())
        os.kill(supervisor, signal.SIGTERM)
        end = time.monotonic() + 30
        while self.alive():
            if time.monotonic() > end:
                raise LabError("the supervisor of %s, process %d, does not end" % (self.folder.name, supervisor))
            time.sleep(0.05)

    def destroy(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- asking it

    @property
    def disk(self) -> Path:
        return self.folder / "disk.qcow2"

    @property
    def ssh_config(self) -> Path:
        """An ssh_config(5) file with one host, `lab`."""
        return self.folder / "ssh_config"

    def alive(self) -> bool:
        """Whether its supervisor runs (it ends with QEMU, unless the guest is being rebooted)."""
        try:
            pid = int((self.folder / "supervisor.pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return False
        return str(self.folder).encode() in words

    def run(
        self, *argv: str, input: str | bytes | None = None, check: bool = False, timeout: float = 120,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run argv in the guest as root. Return code 255 is ssh's own. check: LabError with the errors of a failed one."""
        command = ["env", *[f"{key}={value}" for key, value in env.items()], *argv] if env else argv
        data = input.encode() if isinstance(input, str) else input
        try:
            done = subprocess.run(["ssh", "-F", self.ssh_config, "lab", "--", shlex.join(command)], input=data or b"",
                                  capture_output=True, timeout=timeout)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LabError("'%s' did not end within %.0f s in the guest" % (shlex.join(argv), timeout)) from None
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check and done.returncode != 0:
            raise LabError("'%s' ended with %d in the guest: %s%s" % (shlex.join(argv), done.returncode, err, out))
        return subprocess.CompletedProcess(argv, done.returncode, out, err)

    def read(self, path: str) -> str:
        """Text of a file in the guest."""
        return self.run("cat", path, check=True).stdout

    def write(self, path: str, data: str | bytes, mode: int = 0o644) -> None:
        """Make or replace a file in the guest, with its folders."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.run("sh", "-c", script, "sh", path, "%o" % mode, input=data or b"", check=True)

    def write_pve(self, path: str, text: str) -> None:
        """Replace a file below /etc/pve, where modes cannot be set."""
        self.run("sh", "-c", 'cat >"$1"', "sh", path, input=text, check=True)

    def boot_id(self) -> str:
        """Changes with each boot."""
        return self.read("/proc/sys/kernel/random/boot_id").strip()

    def console(self, lines: int = 60) -> str:
        """The last lines that the serial console showed, over all boots."""
        try:
            text = (self.folder / "console.log").read_bytes().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.replace("\r", "").splitlines()[-lines:])

    def journal(self, lines: int = 120) -> str:
        """The end of this boot's journal, or why it cannot be had."""
        try:
            done = self.run("journalctl", "--boot", "--no-pager", "--lines", str(lines), timeout=60)
        except LabError as e:
            return str(e)
        return done.stdout or done.stderr

    # --- waiting for it

    def wait(self, limit: float = BOOT_LIMIT) -> None:
        """Until a command runs by ssh: QEMU takes connections long before sshd is there."""
        began, answer = time.monotonic(), ""
        while True:
            left = limit - (time.monotonic() - began)
            if left < 0:
                seen = "%s\nThe console's last lines:\n%s" % (answer, self.console())
                raise LabError("ssh does not answer after %.0f s: %s" % (limit, seen))
            self._must_live()
            try:
                done = self.run("true", timeout=min(20, left + 1))
            except LabError as e:
                answer = str(e)
                continue
            if done.returncode == 0:
                return
            answer = done.stderr
            time.sleep(0.2)

    def settle(self, limit: float = SETTLE_LIMIT) -> str:
        """Until systemd has done all its jobs; `running`, or `degraded` where a unit failed."""
        began = time.monotonic()
        while True:
            self._must_live()
            state = self.run("systemctl", "is-system-running").stdout.strip()
            if state in ("running", "degraded", "maintenance"):
                return state
            if time.monotonic() - began > limit:
                jobs = self.run("systemctl", "list-jobs", "--no-pager").stdout
                raise LabError("systemd is '%s' after %.0f s; jobs:\n%s" % (state, limit, jobs))
            time.sleep(0.5)

    def reboot(self, limit: float = SETTLE_LIMIT, append: str | None = None) -> float:
        """Have the guest reboot by itself; returns the seconds until ssh answered again.

        append: other words for the kernel's command line from now on; None leaves them.
        """
        if append is not None:
            guest = json.loads((self.folder / "guest.json").read_text())
            (self.folder / "guest.json").write_text(json.dumps({**guest, "append": append}))
        before, began = self.boot_id(), time.monotonic()
        self.run("systemctl", "reboot", timeout=30)
        self.wait_rebooted(before, limit)
        return time.monotonic() - began

    def wait_rebooted(self, before: str, limit: float = SETTLE_LIMIT) -> None:
        """Until ssh answers with another boot_id than `before`."""
        began = time.monotonic()
        while True:
            self._must_live()
            if time.monotonic() - began > limit:
                raise LabError("no new boot after %.0f s; the console's last lines:\n%s" % (limit, self.console()))
            try:
                if self.run("cat", "/proc/sys/kernel/random/boot_id", timeout=20).stdout.strip() not in ("", before):
                    return
            except LabError:
                continue
            time.sleep(0.2)

    def save(self, name: str) -> None:
        """Save the running guest, memory and disk, under a name that `start` can resume."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(120)
            monitor.connect(str(self.folder / "monitor"))
            _until_prompt(monitor)
            monitor.sendall(f"savevm {name}\n".encode())
            answer = _until_prompt(monitor)
        if "rror" in answer:
            raise LabError("the guest could not be saved: " + answer)

    # --- details

    def _must_live(self) -> None:
        if self.alive():
            return
        log = self.folder / "supervisor.log"
        said = log.read_text()[-2000:] if log.exists() else ""
        raise LabError(
            "the guest %s has ended.\n%s\nThe console's last lines:\n%s" % (self.folder.name, said, self.console())
        )

    def _write_ssh_config(self, port: int) -> None:
        self.ssh_config.write_text(
            f"Host lab\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {self.image.folder}/id\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.image.folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
            "  HostKeyAlias hosttune-lab\n  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 10\n  LogLevel ERROR\n"
            # One handshake costs a second under emulation. The connection ends with the QEMU that it goes to.
            f"  ControlMaster auto\n  ControlPath {self.folder}/ssh\n  ControlPersist 120\n"
            "  ServerAliveInterval 5\n  ServerAliveCountMax 12\n"
        )


def _until_prompt(monitor: socket.socket) -> str:
    seen = b""
    while not seen.endswith(b"(qemu) "):
        data = monitor.recv(4096)
        if not data:
            raise LabError("QEMU's monitor closed: " + seen.decode(errors="replace"))
        seen += data
    return seen.decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _run(*argv: str | Path) -> None:
    subprocess.run(argv, check=True)
