# SPDX-License-Identifier: Apache-2.0
"""The lab's Proxmox face on this machine, in the private mount namespace: /etc/pve by FUSE, pct over native LXC.

/usr, /etc and /var/lib get an overlay each, so that lab/proxmox/install writes where it writes in the lab guest and nothing
of it is left. Containers have their roots where Proxmox' directory storage keeps them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.kernel.container import REPOSITORY, rootfs
from tests.kernel.view import CGROUPS, LXC_PATH, SCRATCH, mount, scratch, unmount

PVE = Path("/etc/pve")
OVERLAID = ("/usr", "/etc", "/var/lib")
PRIVATE = ("/run/lock", "/run/pve")
ROOTFS = "local:{vmid}/subvol-{vmid}-disk-0.subvol,size=0T"


class Proxmox:
    """A node named as this machine, with an empty /etc/pve but for what the installer seeds; `undo()` takes it away."""

    def __init__(self) -> None:
        self.node = os.uname().nodename.partition(".")[0]
        self._mounted: list[str] = []
        self._roots: dict[int, Path] = {}
        self.daemon: subprocess.Popen[bytes] | None = None
        containers = next(SCRATCH.glob("*-lxc"))
        for path in OVERLAID:
            layers = scratch("proxmox" + path.replace("/", "-"))
            for name in ("upper", "work"):
                (layers / name).mkdir(mode=0o755)
            mount("-t", "overlay", "-o", f"lowerdir={path},upperdir={layers}/upper,workdir={layers}/work", "overlay", path)
            self._mounted.append(path)
        self._bind(containers, LXC_PATH)  # the overlay of /var/lib has covered it
        for path in PRIVATE:
            Path(path).mkdir(parents=True, exist_ok=True)
            self._bind(scratch("proxmox" + path.replace("/", "-")), Path(path))
        shutil.rmtree(PVE, ignore_errors=True)  # in the overlay alone: a mount point must be empty
        subprocess.run([REPOSITORY / "lab" / "proxmox" / "install", "/", self.node], check=True)
        self.mount()

    def _bind(self, source: Path, target: Path) -> None:
        mount("--bind", str(source), str(target))
        self._mounted.append(str(target))

    def mount(self) -> None:
        """Start pmxcfs and wait until /etc/pve is there. Raises RuntimeError with what it said."""
        log = scratch("pmxcfs") / "log"
        with open(log, "w") as out:
            self.daemon = subprocess.Popen(["/usr/bin/pmxcfs", "--foreground"], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        while not os.path.ismount(PVE) or not (PVE / "lxc").is_dir():
            if self.daemon.poll() is not None:
                raise RuntimeError(f"pmxcfs ended with {self.daemon.returncode}: {log.read_text()}")
            time.sleep(0.02)

    def unmount(self) -> None:
        """End pmxcfs as systemd does."""
        if self.daemon is not None:
            self.daemon.send_signal(signal.SIGTERM)
            self.daemon.wait(timeout=20)
            self.daemon = None

    def run(self, *argv: str, input: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command on the node; output as text. Through files: LXC's monitor would keep a pipe open."""
        folder = scratch("run")
        with open(folder / "out", "w+") as out, open(folder / "err", "w+") as err, open(folder / "in", "w+") as source:
            source.write(input)
            source.seek(0)
            done = subprocess.run(argv, stdin=source, stdout=out, stderr=err, timeout=60, env={**os.environ, **(env or {})})
        return subprocess.CompletedProcess(argv, done.returncode, (folder / "out").read_text(), (folder / "err").read_text())

    def pct(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.run("/usr/bin/pct", *argv)

    def lab(self, *argv: str) -> None:
        """`lab-pve`: quorum, io-error, cluster."""
        subprocess.run(["/usr/bin/lab-pve", *argv], check=True)

    def heal(self) -> None:
        """Quorum is there, the database works, the node is in no cluster."""
        for switch in Path("/var/lib/hosttune-lab/pmxcfs").glob("*"):
            switch.unlink()

    def conf(self, vmid: int) -> Path:
        return PVE / "lxc" / f"{vmid}.conf"

    def container(self, vmid: int, lines: str = "", unprivileged: bool = False) -> Path:
        """Write the file of a new container that can start; `lines` are added. Returns the file's path."""
        root = Path(f"/var/lib/vz/images/{vmid}/subvol-{vmid}-disk-0.subvol")
        if vmid not in self._roots:
            layers = scratch(f"ct-{vmid}")
            lower = rootfs("ct-shifted" if unprivileged else "ct")
            for path in (layers / "upper", layers / "work", root):
                path.mkdir(parents=True)
            os.chown(layers / "upper", lower.stat().st_uid, lower.stat().st_gid)
            mount("-t", "overlay", "-o", f"lowerdir={lower},upperdir={layers}/upper,workdir={layers}/work", "overlay", str(root))
            self._roots[vmid] = root
        flag = "unprivileged: 1\n" if unprivileged else ""
        path = self.conf(vmid)
        path.write_text(
            f"arch: amd64\nhostname: ct{vmid}\nmemory: 512\nostype: debian\nrootfs: {ROOTFS.format(vmid=vmid)}\n{flag}{lines}"
        )
        return path

    def open_errno(self, vmid: int, path: str) -> str:
        """What open(path, O_RDWR) says inside: `ok`, or the errno's name."""
        ask = ("import errno, os, sys\ntry: os.open(sys.argv[1], os.O_RDWR); print('ok')\n"
               "except OSError as refusal: print(errno.errorcode[refusal.errno])")  # fmt: skip
        done = self.pct("exec", str(vmid), "--", "python3", "-c", ask, path)
        if done.returncode != 0:
            raise RuntimeError(f"container {vmid} could not be asked: {done.stderr}")
        return done.stdout.strip()

    def running(self) -> list[int]:
        return [int(vmid) for vmid in re.findall(r"^(\d+) +running", self.pct("list").stdout, re.MULTILINE)]

    def reset(self) -> None:
        """Stop and forget every container that a test made; the cluster is well again."""
        self.heal()
        for vmid in self._roots:
            subprocess.run(["lxc-stop", "-n", str(vmid), "--kill"], stdin=subprocess.DEVNULL, capture_output=True)
        for vmid, root in self._roots.items():
            unmount(root)
            root.rmdir()
            self.conf(vmid).unlink(missing_ok=True)
        self._roots.clear()

    def undo(self) -> None:
        self.reset()
        self.unmount()
        for path in reversed(self._mounted):
            unmount(path)
        for name in ("lxc", "lxc.monitor"):
            with contextlib.suppress(OSError):  # not there, or somebody else's containers are in it
                (CGROUPS / name).rmdir()
