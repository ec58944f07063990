# SPDX-License-Identifier: Apache-2.0
"""Device cgroup programs without any container: BPF_PROG_TYPE_CGROUP_DEVICE by raw bpf(2).

The same program type that LXC, systemd and Docker attach on cgroup v2. Layouts are those of linux/bpf.h: the context is
`struct bpf_cgroup_dev_ctx {u32 access_type; u32 major; u32 minor}`, the low half of access_type is 1 for block and 2 for
character devices; the program returns 1 to allow and 0 to refuse, which the caller of open(2) sees as EPERM.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from tests.kernel.view import CGROUPS

BPF_PROG_LOAD, BPF_PROG_ATTACH = 5, 8
BPF_PROG_TYPE_CGROUP_DEVICE, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI = 15, 6, 2
LOAD_WORD, AND_IMM, JUMP_NOT_EQUAL, MOVE_IMM, EXIT = 0x61, 0x57, 0x55, 0xB7, 0x95
TYPES = {"b": 1, "c": 2}

_serial = itertools.count()


@dataclass(frozen=True)
class Rule:
    """One device, or a whole major where `minor` is None; `kind` is c or b."""

    major: int
    minor: int | None = None
    kind: str = "c"


def _instruction(opcode: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", opcode, source << 4 | target, offset, value)


def program(rules: Sequence[Rule], on_match: int, otherwise: int) -> bytes:
    """Byte code: `on_match` for the first rule that fits, else `otherwise`. Registers 2, 3, 4 are type, major, minor."""
    code = _instruction(LOAD_WORD, 2, 1, 0) + _instruction(AND_IMM, 2, value=0xFFFF)
    code += _instruction(LOAD_WORD, 3, 1, 4) + _instruction(LOAD_WORD, 4, 1, 8)
    for rule in rules:
        wanted = [(2, TYPES[rule.kind]), (3, rule.major)] + ([] if rule.minor is None else [(4, rule.minor)])
        for position, (register, value) in enumerate(wanted):
            past_this_rule = len(wanted) - position - 1 + 2
            code += _instruction(JUMP_NOT_EQUAL, register, offset=past_this_rule, value=value)
        code += _instruction(MOVE_IMM, 0, value=on_match) + _instruction(EXIT)
    return code + _instruction(MOVE_IMM, 0, value=otherwise) + _instruction(EXIT)


def _bpf(command: int, attributes: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    block = ctypes.create_string_buffer(attributes, len(attributes))
    result = int(libc.syscall(number, command, block, len(attributes)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf({command}): {os.strerror(code)}")
    return result


class DeviceCgroup:
    """A new leaf cgroup with one device program; use as a context manager, then `run` children in it.

    refuse=[...]: everything else is allowed. allow=[...]: everything else is refused (list what the child itself needs:
    /dev/null is c 1:3, /dev/urandom c 1:9).
    """

    def __init__(self, refuse: Sequence[Rule] = (), allow: Sequence[Rule] | None = None) -> None:
        if allow is not None and refuse:
            raise ValueError("give either refuse or allow")
        self._code = program(refuse, 0, 1) if allow is None else program(allow, 1, 0)
        self.path = CGROUPS / f"hosttune-{os.getpid()}-{next(_serial)}"

    def __enter__(self) -> DeviceCgroup:
        self.path.mkdir()
        try:
            self._attach()
        except OSError:
            self.path.rmdir()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.rmdir()  # EBUSY here: a child was left running

    def _attach(self) -> None:
        code = ctypes.create_string_buffer(self._code, len(self._code))
        licence = ctypes.create_string_buffer(b"GPL")
        load = struct.pack(
            "<IIQQIIQII", BPF_PROG_TYPE_CGROUP_DEVICE, len(self._code) // 8, ctypes.addressof(code),
            ctypes.addressof(licence), 0, 0, 0, 0, 0,
        )  # fmt: skip
        loaded = _bpf(BPF_PROG_LOAD, load)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _bpf(BPF_PROG_ATTACH, struct.pack("<IIII", folder, loaded, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI))
        finally:
            os.close(folder)
            os.close(loaded)  # the cgroup holds the program from here on

    def run(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, input: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run argv as a member of the cgroup from before its exec; output as text, whatever the exit status."""
        procs = os.open(self.path / "cgroup.procs", os.O_WRONLY)

        def join() -> None:
            os.write(procs, b"0")  # 0 is the writer itself

        try:
            return subprocess.run(
                argv, env=env, input=input, capture_output=True, text=True, timeout=timeout, preexec_fn=join
            )
        finally:
            os.close(procs)
