# SPDX-License-Identifier: Apache-2.0
"""Native LXC containers: the real lxc-start, the real device cgroup, a root of their own on an overlay.

Roots come from scripts/rootfs: `ct` (bookworm with systemd), `ct-shifted` (the same for unprivileged containers), `old`
(bullseye, Python 3.9). A test writes the part of the config that it is about; the rest is what every container here needs.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kernel.view import CGROUPS, LXC_PATH, mount, scratch, unmount

REPOSITORY = Path(__file__).resolve().parents[2]
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNPRIVILEGED = """\
lxc.include = /usr/share/lxc/config/userns.conf
lxc.idmap = u 0 100000 65536
lxc.idmap = g 0 100000 65536
"""
DEVICE_ALLOW_LIST = "lxc.cgroup2.devices.deny = a\n" + "".join(
    f"lxc.cgroup2.devices.allow = {rule}\n"
    for rule in ("c *:* m", "b *:* m", "c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:0 rwm",
                 "c 5:1 rwm", "c 5:2 rwm", "c 136:* rwm", "c 10:229 rwm")
)  # fmt: skip
"""For an *unprivileged* container that shall have a device program at all: Debian's userns.conf clears the list that
common.conf gives, so without this text everything is allowed there (as on Proxmox), and with one single allow line
everything else, /dev/null included, is refused."""

_serial = itertools.count()


@functools.cache
def rootfs(name: str) -> Path:
    """The cached root of that name, built by scripts/rootfs if it is not there. Raises CalledProcessError."""
    built = subprocess.run([REPOSITORY / "scripts" / "rootfs", name], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.strip())


class Container:
    """One container: /var/lib/lxc/NAME/config and a writable root that vanishes with `destroy()`.

    `config` is added after the part that is common to all. The name is unique on the machine (an LXC command socket and a
    cgroup carry it); give one only where a test is about names.
    """

    def __init__(
        self, config: str = "", unprivileged: bool = False, root: str | None = None, name: str | None = None
    ) -> None:
        self.name = name or f"{os.getpid()}{next(_serial):02d}"
        self.folder = LXC_PATH / self.name
        self.folder.mkdir(mode=0o755)
        self.rootfs = self.folder / "rootfs"
        self.rootfs.mkdir()
        self.config = self.folder / "config"
        self.log = self.folder / "log"
        layers = scratch(f"ct-{self.name}")
        upper, work = layers / "upper", layers / "work"
        upper.mkdir()
        work.mkdir()
        lower = rootfs(root or ("ct-shifted" if unprivileged else "ct"))
        owner = lower.stat()
        os.chown(upper, owner.st_uid, owner.st_gid)  # the overlay's root folder takes its owner from the upper layer
        mount("-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay", str(self.rootfs))
        self.write_config(config, unprivileged)

    def write_config(self, config: str, unprivileged: bool = False) -> None:
        """Write the whole config file anew; takes effect at the next start."""
        self.config.write_text(
            "lxc.include = /usr/share/lxc/config/common.conf\n"
            + (UNPRIVILEGED if unprivileged else "")
            + f"lxc.rootfs.path = dir:{self.rootfs}\nlxc.uts.name = ct-{self.name}\n"
            + ("" if "lxc.net." in config else "lxc.net.0.type = empty\n")
            + "lxc.apparmor.profile = unconfined\n"
            + config
        )

    def start(self, booted: bool = False) -> Container:
        """Start it; booted: wait until systemd in it has finished. Raises RuntimeError with the end of LXC's log."""
        done = self._lxc("lxc-start", "-d", "-l", "INFO", "-o", str(self.log))
        if done.returncode != 0:
            tail = "".join(self.log.read_text().splitlines(keepends=True)[-15:]) if self.log.exists() else ""
            raise RuntimeError(f"container {self.name} did not start: {done.stderr}\n{tail}")
        if booted:
            self.wait_booted()
        return self

    def wait_booted(self, limit: float = 60) -> str:
        """Wait for systemd; returns `running` or, where some unit failed (always so when unprivileged), `degraded`."""
        end = time.monotonic() + limit
        while self.running:
            state = self.attach("systemctl", "is-system-running").stdout.strip()
            if state in ("running", "degraded"):
                return state
            if time.monotonic() > end:
                jobs = self.attach("systemctl", "list-jobs", "--no-pager").stdout
                raise RuntimeError(f"container {self.name}: systemd is '{state}' after {limit:.0f} s; jobs:\n{jobs}")
            time.sleep(0.1)
        raise RuntimeError(f"container {self.name} ended while it booted; see {self.log}")

    def attach(
        self, *argv: str, env: dict[str, str] | None = None, input: str | bytes | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run argv inside, with its return code, output and errors as text; `input` is its standard input."""
        settings = {"PATH": SEARCH_PATH, **(env or {})}
        options = [word for key, value in settings.items() for word in ("--set-var", f"{key}={value}")]
        stdin = input.encode() if isinstance(input, str) else input
        done = subprocess.run(
            ["lxc-attach", "-n", self.name, "--clear-env", *options, "--", *argv],
            input=stdin or b"", capture_output=True, timeout=timeout,
        )  # fmt: skip
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def open_errno(self, path: str) -> str:
        """What open(path, O_RDWR) says inside: `ok`, or the errno's name. On nodes nobody drives, ENXIO means allowed."""
        ask = (
            "import errno, os, sys\n"
            "try: os.open(sys.argv[1], os.O_RDWR); print('ok')\n"
            "except OSError as refusal: print(errno.errorcode[refusal.errno])"
        )
        done = self.attach("python3", "-c", ask, path)
        if done.returncode != 0:
            raise RuntimeError(f"container {self.name}: python3 could not be asked: {done.stderr}")
        return done.stdout.strip()

    def stop(self, clean: bool = False) -> None:
        """Stop it: killed, or shut down by its init with 20 s of patience."""
        done = self._lxc("lxc-stop", *(("-t", "20") if clean else ("-k",)))
        if done.returncode != 0 and self.running:
            raise RuntimeError(f"container {self.name} did not stop: {done.stderr}")

    def restart(self, booted: bool = False) -> None:
        self.stop()
        self.start(booted)

    def live(self, key: str, rule: str) -> None:
        """A device rule for the running container: key devices.allow or devices.deny, rule as `c 511:* rwm`."""
        done = self._lxc("lxc-cgroup", key, rule)
        if done.returncode != 0:
            raise RuntimeError(f"container {self.name}: lxc-cgroup {key} '{rule}': {done.stderr}")

    @property
    def running(self) -> bool:
        return self._lxc("lxc-info", "-s", "-H").stdout.strip() == "RUNNING"

    @property
    def pid(self) -> int:
        """Process id of its init, as the host sees it."""
        return int(self._lxc("lxc-info", "-p", "-H").stdout)

    @property
    def cgroup(self) -> Path:
        """The cgroup that carries the device program."""
        return CGROUPS / f"lxc.payload.{self.name}"

    def destroy(self) -> None:
        if self.running:
            self.stop()
        for kind in ("monitor", "payload"):  # LXC leaves these when a start failed
            leftover = CGROUPS / f"lxc.{kind}.{self.name}"
            if leftover.exists():
                leftover.rmdir()
        unmount(self.rootfs)
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.folder)], check=True)

    def _lxc(self, tool: str, *argv: str) -> subprocess.CompletedProcess[str]:
        # Not through a pipe for lxc-start: its monitor would keep the pipe open for as long as the container runs.
        return _run_with_files([tool, "-n", self.name, *argv])


def _run_with_files(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=60)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, out.read(), err.read())
