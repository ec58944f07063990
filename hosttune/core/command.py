# SPDX-License-Identifier: Apache-2.0
"""Run a command whose answer is not to be trusted: bounded in time and in size, and gone with all it started."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
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
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        start_new_session=True,
    )
    assert child.stdin and child.stdout and child.stderr
    with child.stdin, child.stdout, child.stderr:
        try:
            out, err, late = _talk(child, child.stdin, child.stdout, child.stderr, stdin, timeout)
        except BaseException:
            _kill(child)
            raise
        if late:
            _kill(child)
        else:
            child.wait()
    return child.returncode or 0, out, err, late


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
