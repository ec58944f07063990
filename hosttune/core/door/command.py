# SPDX-License-Identifier: Apache-2.0
"""Run a command whose answer is not to be trusted: bounded in time and in size, and gone with all it started."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
import weakref
from typing import IO, Dict, List, Mapping, Sequence, Tuple

OUTPUT_LIMIT = 32 << 20
"""Bytes of standard output, and of standard error. A container's root decides what is answered from inside."""
LINGER = 1.0
"""Seconds that a command's pipes may stay open after its end: a daemon that it started may hold them for ever."""


class TooMuch(Exception):
    """The command wrote more than OUTPUT_LIMIT. It was killed."""


def run(argv: Sequence[str], timeout: float, stdin: bytes, env: Mapping[str, str]) -> Tuple[int, bytes, bytes, bool]:
    """Exit status (minus the signal's number when one ended it), output, errors, whether `timeout` seconds ran out.

    On time-out, and when the caller is interrupted, the command's whole process group is killed. Raises OSError when it
    cannot be started, and TooMuch.
    """
    child, to, out_of, err_of = _start(argv, env)
    with to, out_of, err_of:
        try:
            out, err, late = _talk(child, to, out_of, err_of, stdin, timeout)
        except BaseException:
            _kill(child)
            raise
        if late:
            _kill(child)
        else:
            child.wait()
    return child.returncode or 0, out, err, late


class Conversation:
    """A command that stays: a line in, a line out. It ends with whoever holds this object, and all it started with it.

    opening: what it is given before the first line, a program perhaps. Raises OSError when it cannot be started.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], opening: bytes) -> None:
        self._child, self._to, self._out, self._err = _start(argv, env)
        self._unsent, self._unread, self._errors = opening, b"", b""
        os.set_blocking(self._to.fileno(), False)
        weakref.finalize(self, _hang_up, self._child, self._to, self._out, self._err)

    @property
    def over(self) -> bool:
        """Whether it has ended, so that nobody would answer."""
        return self._child.poll() is not None

    def ask(self, line: bytes, timeout: float) -> Tuple[int, bytes, bytes, bool]:
        """As run(): status 0 and its answer, the next line that begins like a JSON object. When it ends in place of an answer:
        its status and last words. It is over after a time-out, and when the caller is interrupted. Raises TooMuch.
        """
        try:
            answer, late = self._exchange(self._unsent + line + b"\n", time.monotonic() + timeout)
        except BaseException:
            _kill(self._child)
            raise
        self._unsent = b""
        if late:
            _kill(self._child)
        elif not answer:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(LINGER)  # it closed its output
            late = self._child.poll() is None
            answer, self._unread = self._unread, b""
            if late:
                _kill(self._child)
        return self._child.poll() or 0, answer, self._errors, late

    def _exchange(self, data: bytes, limit: float) -> Tuple[bytes, bool]:
        """The answer to `data`, nothing when the command has closed its output; and whether it was too late."""
        rest = memoryview(data)
        with selectors.DefaultSelector() as ready:
            ready.register(self._to, selectors.EVENT_WRITE)
            ready.register(self._out, selectors.EVENT_READ)
            ready.register(self._err, selectors.EVENT_READ)
            while time.monotonic() < limit:
                for key, _ in ready.select(max(0.0, limit - time.monotonic())):
                    if key.fileobj is self._to:
                        rest = _feed(self._to, rest)
                        if not rest:
                            ready.unregister(self._to)
                        continue
                    piece = os.read(key.fd, 1 << 16)
                    if key.fileobj is self._err:
                        self._errors = (self._errors + piece)[-(1 << 16) :]
                        if not piece:
                            ready.unregister(self._err)
                        continue
                    self._unread += piece
                    if len(self._unread) > OUTPUT_LIMIT:
                        raise TooMuch
                    answer = self._line()
                    if answer or not piece:
                        return answer, False
        return b"", True

    def _line(self) -> bytes:
        """The first whole line that may be an answer, taken off what is unread; a banner before it is dropped."""
        while b"\n" in self._unread and not self._unread.startswith(b"{"):
            self._unread = self._unread.partition(b"\n")[2]
        line, end, rest = self._unread.partition(b"\n")
        if not end:
            return b""
        self._unread = rest
        return line


def _start(
    argv: Sequence[str], env: Mapping[str, str]
) -> Tuple["subprocess.Popen[bytes]", IO[bytes], IO[bytes], IO[bytes]]:
    """The command in a session of its own, and its three streams."""
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        start_new_session=True,
    )
    assert child.stdin and child.stdout and child.stderr
    return child, child.stdin, child.stdout, child.stderr


def _hang_up(child: "subprocess.Popen[bytes]", *streams: IO[bytes]) -> None:
    """It ends when nobody can ask any more; one that does not is killed."""
    for stream in streams:
        with contextlib.suppress(OSError):
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(LINGER)
    if child.poll() is None:
        _kill(child)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    # One that sleeps in a driver does not end by that: it is left behind, not waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(5)


def _talk(
    child: "subprocess.Popen[bytes]", to: IO[bytes], out: IO[bytes], err: IO[bytes], data: bytes, timeout: float
) -> Tuple[bytes, bytes, bool]:
    """Feed `data` and gather both outputs until they are closed, the command has ended, or the time is over."""
    pieces: Dict[int, List[bytes]] = {out.fileno(): [], err.fileno(): []}
    size = dict.fromkeys(pieces, 0)
    rest, limit = memoryview(data), time.monotonic() + timeout
    ended = False
    with selectors.DefaultSelector() as ready:
        for stream in (out, err):
            ready.register(stream, selectors.EVENT_READ)
        os.set_blocking(to.fileno(), False)
        if rest:
            ready.register(to, selectors.EVENT_WRITE)
        else:
            to.close()
        while any(key.events & selectors.EVENT_READ for key in ready.get_map().values()):
            left = limit - time.monotonic()
            if left <= 0:
                break
            if not ended and child.poll() is not None:
                ended, limit = True, min(limit, time.monotonic() + LINGER)
                continue
            for key, _ in ready.select(min(left, 0.1)):
                if key.fileobj is to:
                    rest = _feed(to, rest)
                    if not rest:
                        ready.unregister(to)
                        to.close()
                    continue
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    ready.unregister(key.fileobj)
                pieces[key.fd].append(piece)
                size[key.fd] += len(piece)
                if size[key.fd] > OUTPUT_LIMIT:
                    raise TooMuch
    if not ended:
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may close its outputs and live on
            child.wait(max(0.0, limit - time.monotonic()))
    late = child.poll() is None
    told = [b"".join(pieces[stream.fileno()]) for stream in (out, err)]
    return told[0], told[1], late


def _feed(to: IO[bytes], rest: memoryview) -> memoryview:
    """Write what the pipe takes; nothing is left when nobody reads any more."""
    try:
        return rest[os.write(to.fileno(), rest[: 1 << 16]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]
