# SPDX-License-Identifier: Apache-2.0
"""What the child process runs: `python -I -c` of this file's text, operations as JSON on stdin, a line per answer.

Stands alone: no relative imports, Python >= 3.9. Before each operation it writes {"begin": N}, after it {"end": N, ..},
so that a hang in the kernel names its step. child.py is the other end.

Facts it rests on (measured with driver 580, and on kernel 6.18): faccessat() runs the file mode and device cgroup
checks without calling the driver; open() of /dev/nvidiaN initialises that GPU; libcuda and libnvidia-ml remove, remake
and chmod nodes that are not as they should be, which a read-only /dev in a private mount namespace prevents.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import stat
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

AT_FDCWD, AT_EACCESS = -100, 0x200
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
MOUNT_FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
CLONE_NEWNS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 0x20000, 24, 38
CAP_SYS_MODULE, CAP_MKNOD = 16, 27
NATIVE_ATOMIC_SUPPORTED = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED."""
WRITABLE_BELOW_DEV = ("/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/pts")
"""Stay as they are: a CUDA program may need them, and no device node of a GPU lies in them."""

KINDS = (
    (stat.S_ISCHR, "char"),
    (stat.S_ISBLK, "block"),
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "dir"),
    (stat.S_ISLNK, "link"),
)


def name_of(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def lstat(path: str) -> Dict[str, Any]:
    """A node in words, or its errno."""
    try:
        st = os.lstat(path)
    except OSError as e:
        return {"errno": name_of(e.errno or 0)}
    kind = next((name for test, name in KINDS if test(st.st_mode)), "other")
    rdev = "%d:%d" % (os.major(st.st_rdev), os.minor(st.st_rdev)) if kind in ("char", "block") else ""
    return {
        "type": kind,
        "rdev": rdev,
        "mode": "%04o" % stat.S_IMODE(st.st_mode),
        "uid": st.st_uid,
        "gid": st.st_gid,
        "nlink": st.st_nlink,
        "size": st.st_size,
        "ctime": st.st_ctime,
    }


def access(path: str) -> str:
    """ "ok" or the errno. os.access would throw the errno away.

    AT_EACCESS only where it matters: it needs faccessat2(2), which old seccomp profiles refuse with a misleading EPERM.
    """
    import ctypes

    same = (os.getuid(), os.getgid()) == (os.geteuid(), os.getegid())
    if libc().faccessat(AT_FDCWD, os.fsencode(path), os.R_OK | os.W_OK, 0 if same else AT_EACCESS) == 0:
        return "ok"
    return name_of(ctypes.get_errno())


@functools.lru_cache(maxsize=None)
def char_majors() -> Optional[Dict[int, List[str]]]:
    """The "Character devices" part of /proc/devices: it is not namespaced. None when it cannot be read."""
    try:
        with open("/proc/devices") as f:
            text = f.read()
    except OSError:
        return None
    majors: Dict[int, List[str]] = {}
    for line in text.partition("Block devices:")[0].splitlines()[1:]:
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            majors.setdefault(int(number), []).append(name)
    return majors


def why_not_open(path: str) -> str:
    """The reason not to open a node, "" if it may be opened.

    Opening the node of a driver that is not NVIDIA's can do harm (a watchdog counts down to a reboot), and opening
    195:N while nobody owns 195 makes the kernel load a module.
    """
    st = os.lstat(path)
    if stat.S_ISREG(st.st_mode):
        return ""
    if not stat.S_ISCHR(st.st_mode):
        return "not-tried: no character device"
    majors = char_majors()
    if majors is None:
        return "not-tried: /proc/devices cannot be read"
    major = os.major(st.st_rdev)
    owners = majors.get(major, [])
    if owners and not any(owner.startswith("nvidia") for owner in owners):
        return "not-tried: %d is %s" % (major, ", ".join(owners))
    if major == 195 and not owners:
        return "not-tried: 195 has no driver, opening it would load one"
    return ""


def open_node(path: str) -> str:
    """ "ok", the errno, or why it was not tried. Blocking on purpose: O_NONBLOCK hides a GPU that fails to start."""
    try:
        reason = why_not_open(path)
        if reason:
            return reason
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as e:
        return name_of(e.errno or 0)
    os.close(fd)
    return "ok"


def cgroups(process: str) -> Dict[str, str]:
    """{controllers: path} of a process; "" is cgroup v2. A hybrid kernel lists v1 hierarchies that nobody mounted."""
    with open("/proc/%s/cgroup" % process) as f:
        fields = [line.rstrip("\n").split(":", 2) for line in f]
    return {controllers: path for _, controllers, path in fields}


def enter(pid: int) -> None:
    """Become what a container's process `pid` is to the device cgroup and the mount table. Raises OSError."""
    import ctypes

    char_majors()  # as the host has them: a container may lay something else over its /proc
    mounts = os.open("/proc/%d/ns/mnt" % pid, os.O_RDONLY | os.O_CLOEXEC)
    here = cgroups("self")
    for controllers, path in cgroups(str(pid)).items():
        if path == here.get(controllers):
            continue
        if controllers == "":
            hybrid = os.path.exists("/sys/fs/cgroup/unified/cgroup.procs")
            top = "/sys/fs/cgroup/unified" if hybrid else "/sys/fs/cgroup"
        elif "devices" in controllers.split(","):
            top = "/sys/fs/cgroup/devices"
        else:
            continue
        with open(top + path + "/cgroup.procs", "w") as f:
            f.write("0")
    if libc().setns(mounts, CLONE_NEWNS):
        number = ctypes.get_errno()
        raise OSError(number, "setns: " + os.strerror(number))
    os.close(mounts)


def become(uid: int, known: bool = True) -> None:
    """All groups of the user, then the user. Raises OSError.

    known False: a user of a container that was entered. Nobody looks that one up from here: glibc would load the libraries
    that the container's nsswitch.conf names, and run them with the rights of the host's root.
    """
    import pwd

    if os.getuid() == uid == os.geteuid():
        return
    try:
        if not known:
            raise KeyError(uid)
        entry = pwd.getpwuid(uid)
        groups, gid = os.getgrouplist(entry.pw_name, entry.pw_gid), entry.pw_gid
    except KeyError:
        groups, gid = [uid], uid
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def dev_mounts() -> List[Tuple[str, int]]:
    """Mount points at and below /dev, with the flags that a remount has to repeat (locked in a user namespace)."""
    found = []
    with open("/proc/self/mountinfo") as f:
        for line in f:
            fields = line.split(" ")
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4])
            if point == "/dev" or point.startswith("/dev/"):
                flags = 0
                for option in fields[5].split(","):
                    flags |= MOUNT_FLAGS.get(option, 0)
                found.append((point, flags))
    return found


def drop_capabilities() -> None:
    """CAP_MKNOD and CAP_SYS_MODULE, from the bounding set and from this process. Raises OSError."""
    import ctypes

    c = libc()
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if c.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    effective = data[0]
    for cap in (CAP_SYS_MODULE, CAP_MKNOD):
        c.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0)
        for i in range(3):
            data[i] &= ~(1 << cap) & 0xFFFFFFFF
    if effective & (1 << CAP_MKNOD | 1 << CAP_SYS_MODULE) and c.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def protect() -> Dict[str, Any]:
    """Let nothing in this process or its children repair, remake or remove a node of /dev.

    A caller who is neither root nor holds CAP_DAC_OVERRIDE cannot write /dev anyway; no_new_privs then takes away the
    one way left, the setuid nvidia-modprobe.
    """
    import ctypes

    c = libc()
    if c.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return {"protected": False, "why": "no_new_privs: " + name_of(ctypes.get_errno())}
    try:
        if c.unshare(CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "unshare")
        mount(c, None, "/", MS_REC | MS_SLAVE)
        mount(c, "/dev", "/dev", MS_BIND | MS_REC)
        for point, flags in reversed(dev_mounts()):
            if not any(point == p or point.startswith(p + "/") for p in WRITABLE_BELOW_DEV):
                mount(c, None, point, MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
        if not os.statvfs("/dev").f_flag & os.ST_RDONLY:
            raise OSError(0, "/dev is still writable")
        drop_capabilities()
    except OSError as e:
        powerless = os.geteuid() != 0 and not os.access("/dev", os.W_OK, effective_ids=True)
        return {"protected": powerless, "why": "" if powerless else "%s: %s" % (e.strerror, name_of(e.errno or 0))}
    return {"protected": True}


def mount(c: Any, source: Optional[str], target: str, flags: int) -> None:
    import ctypes

    if c.mount(None if source is None else os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), "mount %s" % target)


def load(name: str) -> Any:
    """Raises OSError with the loader's own words."""
    import ctypes

    return ctypes.CDLL(name)


def dlopen(name: str) -> Dict[str, Any]:
    """Where the loader found a library: real path, bytes, ELF class, the version that ends its file name."""
    load(name)
    stem = name.partition(".so")[0] + ".so"
    with open("/proc/self/maps") as f:
        paths = [line.split(None, 5)[5].rstrip("\n") for line in f if line.count("/")]
    path = next((p for p in paths if os.path.basename(p).startswith(stem)), "")
    if not path:
        return {"error": "loaded, but no mapping is named %s" % stem}
    with open(path, "rb") as binary:
        head = binary.read(5)
    version = re.search(r"\.so\.(\d+(?:\.\d+)+)$", path)
    return {
        "path": path,
        "size": os.stat(path).st_size,
        "class": {1: 32, 2: 64}.get(head[4], 0),
        "version": version.group(1) if version else "",
    }


def call(name: str) -> Any:
    """One driver call. Its code as a number, or a count; {"error": ..} when the library or the symbol is not there."""
    import ctypes

    base, _, tag = name.partition("@")
    if base == "allowlist":
        return {"allowed": " ".join(allowlist())}
    if base.startswith("dlopen:"):
        return dlopen(base[len("dlopen:") :])
    number = ctypes.c_int(-1)
    if base == "nvmlInit":
        return load("libnvidia-ml.so.1").nvmlInit_v2()
    if base == "nvmlDeviceCount":
        code = load("libnvidia-ml.so.1").nvmlDeviceGetCount_v2(ctypes.byref(number))
        return {"error": "nvmlDeviceGetCount returned %d" % code} if code else number.value
    if base == "nvmlMemory":
        return nvml_memory(load("libnvidia-ml.so.1"))
    cuda = load("libcuda.so.1")
    if base == "cuInit":
        return cuda.cuInit(0)
    if base == "cuDeviceGetCount":
        code = cuda.cuDeviceGetCount(ctypes.byref(number))
        return {"error": "cuDeviceGetCount returned %d" % code} if code else number.value
    if base == "cuCtxCreate":
        code = cuda.cuInit(0)
        if code:
            return {"error": "cuInit returned %d" % code}
        device, context = ctypes.c_int(), ctypes.c_void_p()
        code = cuda.cuDeviceGet(ctypes.byref(device), int(tag))
        return code or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    if base == "cuLaunch":
        return launch(cuda, int(tag))
    if base == "cuPeer":
        return peer(cuda, *tag.split(","))
    raise ValueError("unknown call %s" % name)


KERNEL = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry answer(.param .u64 to) {
.reg .u64 %to;
.reg .u32 %value;
ld.param.u64 %to, [to];
cvta.to.global.u64 %to, %to;
mov.u32 %value, 42;
st.global.u32 [%to], %value;
ret;
}
"""
"""PTX, which every driver compiles for its GPU."""


def launch(cuda: Any, device: int) -> Any:
    """Compile a kernel, run it, read what it wrote: 0, the first code that is not, or what it wrote in place of 42."""
    import ctypes

    handle, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory, value = ctypes.c_uint64(), ctypes.c_uint32()
    code = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(handle), device)
        or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, handle)
        or cuda.cuModuleLoadData(ctypes.byref(module), KERNEL)
        or cuda.cuModuleGetFunction(ctypes.byref(function), module, b"answer")
        or cuda.cuMemAlloc_v2(ctypes.byref(memory), 4)
    )
    if code:
        return code
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    code = (
        cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        or cuda.cuCtxSynchronize()
        or cuda.cuMemcpyDtoH_v2(ctypes.byref(value), memory, 4)
    )
    return code or (0 if value.value == 42 else {"error": "the kernel wrote %d in place of 42" % value.value})


def peer(cuda: Any, one: str, other: str) -> Dict[str, str]:
    """Whether a program on one GPU reaches the memory of another, and whether atomic operations work there. By PCI address."""
    import ctypes

    number, devices = ctypes.c_int(), [ctypes.c_int(), ctypes.c_int()]
    code = cuda.cuInit(0)
    if code:
        return {"error": "cuInit returned %d" % code}
    for bdf, device in zip((one, other), devices):
        code = cuda.cuDeviceGetByPCIBusId(ctypes.byref(device), bdf.encode())
        if code:
            return {"error": "cuDeviceGetByPCIBusId of %s returned %d" % (bdf, code)}
    code = cuda.cuDeviceCanAccessPeer(ctypes.byref(number), *devices)
    if code:
        return {"error": "cuDeviceCanAccessPeer returned %d" % code}
    found = {"access": "yes" if number.value else "no"}
    if not cuda.cuDeviceGetP2PAttribute(ctypes.byref(number), NATIVE_ATOMIC_SUPPORTED, *devices):
        found["atomics"] = "yes" if number.value else "no"
    return found


PROBED = (0, 1, 255)
"""Minors of a probed major: one rule for all of them lets each through."""


def allowlist() -> List[str]:
    """Which of NVIDIA's possible numbers the device cgroup lets this process open, as rules: "195:*", "511:0".

    Asked with throw-away nodes in a tmpfs of this process alone, through access(2): no driver is touched. Raises OSError where
    nodes may not be made (a user namespace).
    """
    import ctypes

    c = libc()
    if c.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount(c, None, "/", MS_REC | MS_SLAVE)
    if c.mount(b"none", b"/mnt", b"tmpfs", ctypes.c_ulong(0), None):
        raise OSError(ctypes.get_errno(), "mount a tmpfs on /mnt")
    found = []
    for major in (195, *range(234, 255), *range(384, 512)):
        allowed = [minor for minor in PROBED if passes(major, minor)]
        found += ["%d:*" % major] if len(allowed) == len(PROBED) else ["%d:%d" % (major, minor) for minor in allowed]
    return found


def passes(major: int, minor: int) -> bool:
    path = "/mnt/probe"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    try:
        return access(path) == "ok"
    finally:
        os.unlink(path)


def nvml_memory(nvml: Any) -> int:
    """The first code that is not 0 when each device's memory is asked for: 4 where MIG's capability nodes are refused."""
    import ctypes

    count, device, memory = ctypes.c_uint(), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    code: int = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for n in range(0 if code else count.value):
        code = nvml.nvmlDeviceGetHandleByIndex_v2(n, ctypes.byref(device)) or nvml.nvmlDeviceGetMemoryInfo(device, memory)
        if code:
            break
    return code


def answer(op: Dict[str, Any]) -> Any:
    """Do one operation. Each takes its one argument, or none."""
    steps: Dict[str, Callable[..., Any]] = {
        "lstat": lstat, "access": access, "open": open_node, "call": call,
        "protect": protect, "enter": enter, "setuid": become,
    }  # fmt: skip
    return steps[op["op"]](*(value for key, value in op.items() if key not in ("op", "must")))


def main() -> None:
    """Answer every operation; stop after the first `must` one that fails."""
    ops = json.load(sys.stdin)
    # Before any setuid: the user may not be able to read this interpreter's folder. Without ctypes (python3-minimal)
    # only the operations that need it fail.
    with contextlib.suppress(ImportError):
        import ctypes  # noqa: F401
        import pwd  # noqa: F401
    # A driver library that prints must not write into the answers.
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for i, op in enumerate(ops):
        out.write(json.dumps({"begin": i}) + "\n")
        out.flush()
        try:
            line: Dict[str, Any] = {"end": i, "value": answer(op)}
        except (OSError, AttributeError, ImportError, ValueError) as e:
            number = getattr(e, "errno", None)
            line = {"end": i, "error": str(e) or type(e).__name__, "errno": name_of(number) if number else ""}
        out.write(json.dumps(line) + "\n")
        out.flush()
        if "error" in line and op.get("must"):
            return


if __name__ == "__main__":
    main()
