# SPDX-License-Identifier: Apache-2.0
"""Build and cache the lab's disk image: `python -m lab.image.build` prints its folder.

Layers, each cached by a hash of what goes into it: the three roots of scripts/rootfs (a minute or two, from this machine's own
apt sources), then the image (some 20 s). The image's folder holds:

    disk.qcow2  vmlinuz  initrd  id (ssh key)  known_hosts  version (of the guest's kernel)

It is built aside and renamed, so that a killed build leaves nothing that looks complete. The code under test is not in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import LabError, cache, needs, say
from lab.image import engine, initrd

REPOSITORY = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).with_name("guest")
MODULES = REPOSITORY / "lab" / "modules"
PROXMOX = REPOSITORY / "lab" / "proxmox"
STANDIN = REPOSITORY / "tests" / "kernel" / "standin"
DRIVER_VERSION = "580.159.04"
"""Of the kernel module stand-ins and of the libraries; what the libraries answer was measured with this one."""

DISK_BYTES = 4 << 30
SHIFT = 100000
CONTAINERS = {200: "ct", 201: "ct-shifted", 202: "ct"}
"""Container -> the root that lies below its own writable layer; 201 is unprivileged."""
VOLUME = "var/lib/vz/images/{vmid}/subvol-{vmid}-disk-0.subvol"
"""Where the containers' configs have their root; /etc/fstab mounts it."""
NODE = "pve"

ONLY_TO_BUILD = ("linux-headers-*", "linux-kbuild-*", "linux-compiler-*", "linux-libc-dev", "libc6-dev", "libgcc-12-dev", "gcc",
                 "gcc-12", "cpp", "cpp-12", "binutils*", "libbinutils", "make")  # fmt: skip
SLOW_UNITS = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
    "fstrim.timer", "getty@.service", "serial-getty@.service", "lxc-net.service", "lxc-monitord.service",
    "networking.service", "systemd-networkd-wait-online.service", "systemd-timesyncd.service",
)  # fmt: skip
"""They cost seconds under emulation and no test is about them."""


@dataclass(frozen=True)
class Image:
    """A finished image; `folder` is laid out as the module's docstring says."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk.qcow2"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"


def image() -> Image:
    """The cached image of this checkout, built now if need be. LabError says what is missing to build it."""
    folder = cache() / "images" / recipe_hash()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _build_aside(folder)
    return Image(folder)


def recipe_hash() -> str:
    """Twelve hex digits that change with every file that goes into the image, and with the recipe of the roots."""
    seen = hashlib.sha256()
    for top in (GUEST.parent, MODULES, PROXMOX, STANDIN, REPOSITORY / "scripts" / "rootfs"):
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts and "build" not in path.parts:
                seen.update(f"{path.relative_to(REPOSITORY)} {path.stat().st_mode & 0o111:o}\n".encode())
                seen.update(path.read_bytes())
    seen.update(engine.recipe())
    return seen.hexdigest()[:12]


def _build_aside(folder: Path) -> None:
    needs.to_build(cache())
    began = time.monotonic()
    say("building the image: up to three minutes the first time, 20 s after a change; cached below %s" % cache())
    roots = [str(root) for root in _roots("ct", "ct-shifted", "lab")]
    aside = folder.with_name(folder.name + ".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(mode=0o700)
    try:
        # Mounts are made in a namespace of the child's own, so that even a killed build leaves none behind.
        command = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-m",
            "lab.image.build",
            str(aside),
        ]
        subprocess.run([*command, *roots], check=True, cwd=REPOSITORY, stdout=sys.stderr)
    except BaseException as e:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(e, subprocess.CalledProcessError):
            raise LabError("the image could not be built: the lines above say why") from None
        raise
    aside.rename(folder)
    _forget_old(folder.parent)
    say("built %s in %.0f s" % (folder, time.monotonic() - began))


def _forget_old(folder: Path, keep: int = 3) -> None:
    """An image is a gigabyte, and each edit of a file that goes in makes another; guests that exist keep theirs."""
    used = {json.loads(path.read_text())["image"] for path in (cache() / "guests").glob("*/guest.json")}
    images = [path for path in folder.iterdir() if path.is_dir() and path.suffix != ".new"]
    for path in sorted(images, key=lambda image: image.stat().st_mtime)[:-keep]:
        if str(path) not in used:
            shutil.rmtree(path)


def _roots(*names: str) -> list[Path]:
    done = subprocess.run([REPOSITORY / "scripts" / "rootfs", *names], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise LabError("a root that the image consists of could not be built: the lines above say why")
    return [Path(line) for line in done.stdout.splitlines()]


def build(aside: Path, ct: Path, ct_shifted: Path, lab: Path) -> None:
    """Fill the image's folder. Runs in a mount namespace of its own."""
    work = aside / "work"
    root = _overlay(work / "lab", lab)
    with _step("compile kernel modules and stand-in libraries"):
        kernel = _modules(root)
        libraries = _libraries(root, work / "standin")
        _chroot(root, "apt-get", "-qq", "-o=Dpkg::Use-Pty=0", "purge", "--yes", "--auto-remove", *ONLY_TO_BUILD)
    with _step("lay out the system, its keys and its containers"):
        _copy_tree(GUEST, root)
        _settings(root)
        _keys(root, aside)
        _run(PROXMOX / "install", root, NODE)
        for lower, name in ((ct, "ct"), (ct_shifted, "ct-shifted")):
            _container_root(root, lower, name, libraries)
        for vmid, name in CONTAINERS.items():
            _container_layer(root, vmid, name)
        engine.install(root / "var" / "lib" / "lab" / "ct")
        engine.model(root)
    initrd.write(aside / "initrd", root, kernel)
    shutil.copy(root / "boot" / f"vmlinuz-{kernel}", aside / "vmlinuz")
    shutil.rmtree(root / "boot")
    (root / "boot").mkdir()
    (aside / "version").write_text(kernel + "\n")
    with _step("write the disk"):
        raw = aside / "disk.raw"
        raw.touch()
        os.truncate(raw, DISK_BYTES)
        _run("mke2fs", "-q", "-t", "ext4", "-L", "lab", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d", root, raw)
        _run("qemu-img", "convert", "-O", "qcow2", raw, aside / "disk.qcow2")
        raw.unlink()
    _run("umount", "--recursive", root)
    shutil.rmtree(work)


def _overlay(folder: Path, lower: Path, target: Path | None = None) -> Path:
    """A writable view of `lower`, mounted at `target` or in the folder itself."""
    upper, work, target = folder / "upper", folder / "work", target or folder / "root"
    for path in (upper, work, target):
        path.mkdir(parents=True, exist_ok=True)
    owner = lower.stat()
    os.chown(upper, owner.st_uid, owner.st_gid)
    upper.chmod(owner.st_mode & 0o7777)
    _run("mount", "-t", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", "overlay", target)
    return target


def _modules(root: Path) -> str:
    """Compile and install lab/modules with the root's own compiler; returns the kernel's version."""
    kernel = next(path.name for path in (root / "lib" / "modules").iterdir())
    source = root / "usr" / "src" / "lab"
    shutil.copytree(MODULES, source)
    _chroot(
        root,
        "make",
        "-s",
        "-C",
        "/usr/src/lab",
        f"KERNEL=/lib/modules/{kernel}/build",
        f"DRIVER_VERSION={DRIVER_VERSION}",
    )
    extra = root / "lib" / "modules" / kernel / "extra"
    extra.mkdir()
    for module in source.glob("*.ko"):
        shutil.copy(module, extra)
    shutil.copy(source / "nvidia-modprobe", root / "usr" / "bin" / "nvidia-modprobe")
    (root / "usr" / "bin" / "nvidia-modprobe").chmod(0o4755)
    _chroot(root, "depmod", "-a", kernel)
    shutil.rmtree(source)
    return kernel


def _libraries(root: Path, out: Path) -> list[Path]:
    """Compile the stand-in libcuda and libnvidia-ml with the root's compiler and install them there."""
    source = root / "usr" / "src" / "standin"
    shutil.copytree(STANDIN, source, ignore=shutil.ignore_patterns("build"))
    (source / "out").mkdir()
    _chroot(root, "make", "-s", "-C", "/usr/src/standin", "OUT=out", f"VERSION={DRIVER_VERSION}")
    shutil.copytree(source / "out", out, symlinks=True)
    shutil.rmtree(source)
    libraries = sorted(out.glob("lib*.so.*"))
    _install_libraries(libraries, root)
    return libraries


def _install_libraries(libraries: Sequence[Path], root: Path, owner: int = 0) -> None:
    for library in libraries:
        target = root / "usr" / "lib" / "x86_64-linux-gnu" / library.name
        shutil.copy(library, target, follow_symlinks=False)
        os.lchown(target, owner, owner)


def _settings(root: Path) -> None:
    (root / "etc" / "hostname").write_text(NODE + "\n")
    (root / "etc" / "resolv.conf").write_text("")  # mmdebstrap leaves this machine's, and there is nobody to ask
    layers = "lowerdir=/var/lib/lab/{lower},upperdir=/var/lib/lab/{vmid}/upper,workdir=/var/lib/lab/{vmid}/work"
    line = f"overlay /{VOLUME} overlay {layers} 0 0\n"
    mounts = [line.format(vmid=vmid, lower=lower) for vmid, lower in CONTAINERS.items()]
    (root / "etc" / "fstab").write_text("".join(mounts))
    for unit in SLOW_UNITS:
        link = root / "etc" / "systemd" / "system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    _run(
        "systemctl",
        f"--root={root}",
        "--quiet",
        "enable",
        "systemd-networkd.service",
        "ssh.service",
        "lab-boot.service",
    )
    for name in ("subuid", "subgid"):
        (root / "etc" / name).write_text(f"root:{SHIFT}:65536\n")
    (root / "etc" / "machine-id").write_text(hashlib.md5(b"hosttune lab").hexdigest() + "\n")
    (root / "var" / "log" / "journal").mkdir(exist_ok=True)


def _keys(root: Path, aside: Path) -> None:
    """A key pair for whoever holds this cache, and a host key that clients can check."""
    host_key = root / "etc" / "ssh" / "ssh_host_ed25519_key"
    for path, comment in ((aside / "id", "hosttune-lab"), (host_key, "lab")):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path)
    ssh = root / "root" / ".ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(aside / "id.pub", ssh / "authorized_keys")
    algorithm, key = host_key.with_name(host_key.name + ".pub").read_text().split()[:2]
    (aside / "known_hosts").write_text(f"hosttune-lab {algorithm} {key}\n")


def _container_root(root: Path, lower: Path, name: str, libraries: Sequence[Path]) -> None:
    target = _overlay(root.parent.parent / name, lower, root / "var" / "lib" / "lab" / name)
    _install_libraries(libraries, target, owner=target.stat().st_uid)


def _container_layer(root: Path, vmid: int, lower: str) -> None:
    """Where /etc/fstab mounts the container's root, and the writable layer that lies over the shared one."""
    owner = (root / "var" / "lib" / "lab" / lower).stat()
    layer = root / "var" / "lib" / "lab" / str(vmid)
    for path in (layer / "upper", layer / "work", root / VOLUME.format(vmid=vmid)):
        path.mkdir(parents=True, exist_ok=True)
    etc = layer / "upper" / "etc"
    etc.mkdir(mode=0o755)
    (etc / "hostname").write_text(f"ct{vmid}\n")
    (etc / "resolv.conf").write_text("")
    for path in (layer / "upper", etc, etc / "hostname", etc / "resolv.conf"):
        os.chown(path, owner.st_uid, owner.st_gid)


def _copy_tree(source: Path, root: Path) -> None:
    """As root's files, whoever owns the checkout; the executable bit is kept."""
    for path in sorted(source.rglob("*")):
        target = root / path.relative_to(source)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.unlink(missing_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _chroot(root: Path, *argv: str) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["chroot", root, *argv], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise LabError("'%s' ended with %d in the image's root:\n%s" % (shlex.join(argv), done.returncode, done.stdout))


def _run(*argv: str | Path) -> None:
    subprocess.run(argv, check=True)


@contextlib.contextmanager
def _step(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    say("  %-52s %3.0f s" % (what, time.monotonic() - began))


def main(argv: Sequence[str]) -> int:
    try:
        if argv:
            build(*[Path(arg) for arg in argv])
        else:
            sys.stdout.write("%s\n" % image().folder)
    except LabError as e:
        say(str(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
