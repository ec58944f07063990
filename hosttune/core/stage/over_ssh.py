# SPDX-License-Identifier: Apache-2.0
"""A model that lies on another machine: looked at and judged there by this same code, brought here over ssh file by file.

OpenSSH's client does the talking: its keys, its known hosts, its ciphers. Nothing is installed over there but Python 3.9, and
what is asked goes in through standard input, so no path ever meets a shell. Host keys are checked and nobody is asked for a
password. A file is whole when all of it came, unchanged from beginning to end (and has the hub's hash, where that is known);
whole files, and whole chunks of the others, are kept by the next run. ssh's own integrity check covers the way.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import queue
import shlex
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

from .. import corezip
from ..door.host import Host
from ..door.live import LiveHost
from ..model import Refused
from .begun import VOID
from .chunks import write
from .copy import CHUNK, Copied, Job, Noted, reserve, threads_here
from .pace import FREE, Bucket, Pace
from .source import Doubt, File, NotWhole, Source, ssh_of

CONNECTIONS = 4
"""At once. One connection's cipher is one core's work, on both sides."""
LOOK_SECONDS = 180
TICK = 0.25
SENDER = """\
import json, os, stat, sys
out = sys.stdout.buffer
for line in sys.stdin.buffer:
    asked = json.loads(line)
    told = {}
    try:
        fd = os.open(os.fsencode(asked["path"]), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        at, seen = os.readlink("/proc/self/fd/%d" % fd), os.fstat(fd)
        if not at.startswith(asked["root"].rstrip("/") + "/") or not stat.S_ISREG(seen.st_mode):
            told = {"error": "it is no file below %s any more" % asked["root"]}
        elif (seen.st_size, seen.st_mtime) != (asked["size"], asked["mtime"]):
            told = {"error": "the file changed since it was looked at"}
    except OSError as e:
        told = {"error": e.strerror}
    out.write(json.dumps(dict(told, ns=0 if told else seen.st_mtime_ns)).encode() + b"\\n")
    if not told:
        for at, end in asked["parts"]:
            while at < end:
                piece = os.pread(fd, min(1 << 20, end - at), at) or bytes(min(1 << 20, end - at))
                out.write(piece)
                at += len(piece)
        now = os.fstat(fd)
        out.write(b"same\\n" if (now.st_size, now.st_mtime_ns) == (seen.st_size, seen.st_mtime_ns) else b"diff\\n")
        os.close(fd)
    out.flush()
"""
"""What runs there. A file that shrinks while it is read is filled up with zeros, and `diff` says that it is no copy."""


def argv(machine: str, words: Sequence[str]) -> List[str]:
    """The command that runs these words over there: constant ones, for ssh hands them to a shell."""
    return ["ssh", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=10",
            "-o", "ServerAliveInterval=15", "--", machine, shlex.join(words)]  # fmt: skip


def read(host: Host, spec: str) -> Source:
    """The files of ssh:HOST:/DIRECTORY, judged over there as a source here is. Raises Refused."""
    machine, folder = ssh_of(spec) or ("", "")
    if not isinstance(host, LiveHost):
        raise Refused("a recording cannot ask another machine", spec, "stage it on the machine itself")
    request = corezip.stdin({"op": "model", "folder": folder})
    try:
        ran = subprocess.run(argv(machine, corezip.argv()), input=request, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             timeout=LOOK_SECONDS)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refused("gave no answer within %d s" % LOOK_SECONDS, spec, "ssh %s true" % machine)
    except OSError as e:
        raise Refused("ssh cannot be started: %s" % e.strerror, spec, "apt install openssh-client")
    line = next((part for part in reversed(ran.stdout.splitlines()) if part.startswith(b"{")), b"")
    if not line:
        raise _refused(machine, spec, ran.returncode, ran.stderr)
    told = json.loads(line)
    if "error" in told:
        error = told["error"]
        raise NotWhole(str(error.get("code", "")), error["what"], "%s:%s" % (machine, error["where"] or folder), error["way_out"])
    return _source(spec, machine, told["result"])


def judged(folder: str) -> Dict[str, Any]:
    """What the other side answers (core/__main__.py, op "model"): its files, real paths and hashes, and its doubts. Raises
    Refused for what is no whole model."""
    from . import source, whole

    host = LiveHost()
    given = source.read(host, folder)
    doubts = whole.refuse_unless_whole(host, given)
    return {"folder": given.folder, "root": given.root, "revision": given.revision, "files": [asdict(f) for f in given.files],
            "doubts": [asdict(doubt) for doubt in doubts]}  # fmt: skip


def _source(spec: str, machine: str, row: Dict[str, Any]) -> Source:
    try:  # the other machine need not be a friend
        files = tuple(File(str(f["path"]), str(f["source"]), int(f["size"]), float(f["mtime"]), str(f["sha256"]), str(f["git"]))
                      for f in row["files"])  # fmt: skip
        doubts = tuple(Doubt(str(d["code"]), str(d["what"]), str(d["where"])) for d in row["doubts"])
        folder, root, revision = (str(row[key]) for key in ("folder", "root", "revision"))
    except (ValueError, LookupError, TypeError):
        raise Refused("it gave an answer that is none of hosttune's", spec, "ssh %s true must print nothing" % machine)
    if any(part in ("", ".", "..") or "\0" in part for file in files for part in file.path.split("/")):
        raise Refused("it names a file outside of the model", spec)
    return Source(spec, folder, root, files, revision, machine=machine, doubts=doubts)


_SAID = (
    ("Host key verification failed", "its host key is not known, or has changed", "ssh %s once, and compare the fingerprint"),
    ("Permission denied", "it does not let us in", "ssh %s must work as root here without a password"),
    ("Could not resolve", "its name cannot be resolved", "getent hosts %s"),
    ("python3: ", "python3 is not there", "ssh %s apt install python3"),
)


def _refused(machine: str, spec: str, code: int, said: bytes) -> Refused:
    text = said.decode("utf-8", "replace").strip()
    for mark, what, way_out in _SAID:
        if mark in text:
            return Refused(what, spec, way_out % machine)
    last = (text.splitlines() or ["exit code %d" % code])[-1]
    return Refused("ssh: %s" % last, spec, "ssh %s true" % machine)


def copy(machine: str, jobs: Sequence[Job], whole: Callable[[Copied], None], tick: Callable[[int], None],
         pace: Pace = FREE, noted: Noted = lambda job, number, digest: None) -> None:
    """Bring all jobs here, the largest first, into files that do not exist yet, or into what an earlier run has left of them.

    whole(copied) for each file that is whole, tick(bytes so far) some times a second, both in the calling thread; noted as
    copy.copy tells it. Raises OSError (ENOSPC: nothing was copied yet) and Refused for a file that vanishes or changes, and when
    the connection ends.
    """
    with ThreadPoolExecutor(threads_here()) as pool:
        list(pool.map(reserve, jobs))
    run = _Run(machine, sorted(jobs, key=lambda job: -job.size), pace, noted)
    threads = [threading.Thread(target=run.work) for _ in range(min(CONNECTIONS, len(jobs)))]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or not run.done.empty():
            with contextlib.suppress(queue.Empty):
                whole(run.done.get(timeout=TICK))
            tick(run.bytes)
    finally:
        run.end()
        for thread in threads:
            thread.join()
    if run.failed:
        raise run.failed[0]


def _chunks(job: Job) -> List[Tuple[int, int, int]]:
    """(number, start, end) of each."""
    return [(at // CHUNK, at, min(at + CHUNK, job.size)) for at in range(0, job.size, CHUNK)]


class _Run:
    """What the connections share: jobs that wait, files that are whole, bytes, and the word to stop."""

    def __init__(self, machine: str, jobs: Sequence[Job], pace: Pace, noted: Noted) -> None:
        self.machine, self.pace, self.bucket, self.ended = machine, pace, Bucket(pace.limit), threading.Event()
        self.noted = noted
        self.todo: "queue.Queue[Job]" = queue.Queue()
        for job in jobs:
            self.todo.put(job)
        self.done: "queue.Queue[Copied]" = queue.Queue()
        self.lock = threading.Lock()
        self.bytes = 0
        self.stop = False
        self.failed: List[Exception] = []
        self.talking: List["subprocess.Popen[bytes]"] = []

    def work(self) -> None:
        """One connection, file after file."""
        self.pace.begin()
        try:
            with self._connection() as talk:
                while not self.stop:
                    try:
                        job = self.todo.get_nowait()
                    except queue.Empty:
                        break
                    self.done.put(self._file(talk, job))
        except Exception as e:  # whatever it is, the calling thread raises it
            with self.lock:
                self.failed += [] if self.stop else [e]
            self.end()

    @contextlib.contextmanager
    def _connection(self) -> Iterator["subprocess.Popen[bytes]"]:
        talk = subprocess.Popen(argv(self.machine, ["python3", "-I", "-c", SENDER]), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        with self.lock:
            self.talking.append(talk)
        try:
            yield talk
        finally:
            for stream in (talk.stdin, talk.stdout, talk.stderr):
                if stream:
                    with contextlib.suppress(OSError):
                        stream.close()
            talk.wait()

    def end(self) -> None:
        """Stop all that still talk."""
        with self.lock:
            self.stop = True
            self.ended.set()
            for talk in self.talking:
                if talk.poll() is None:
                    talk.terminate()

    def _file(self, talk: "subprocess.Popen[bytes]", job: Job) -> Copied:
        assert talk.stdin and talk.stdout
        parts = [(start, end) for number, start, end in _chunks(job) if number not in job.there]
        asked = {"path": job.source, "root": job.root, "size": job.size, "mtime": job.mtime, "parts": parts}
        try:
            talk.stdin.write(json.dumps(asked).encode("ascii") + b"\n")
            talk.stdin.flush()
        except BrokenPipeError:
            raise self._ended(talk, job)
        line = talk.stdout.readline()
        if not line:
            raise self._ended(talk, job)
        try:
            told = dict(json.loads(line))
        except (ValueError, TypeError):
            raise Refused("it gave an answer that is none of hosttune's", "%s:%s" % (self.machine, job.source),
                          "ssh %s true must print nothing" % self.machine)
        if told.get("error"):
            raise Refused(str(told["error"]), "%s:%s" % (self.machine, job.source), "run this again: what is whole is kept")
        copied = self._bytes(talk, job)
        if talk.stdout.read(5) != b"same\n":
            raise Refused("the file changed while it was copied", "%s:%s" % (self.machine, job.source), "run this again")
        if job.sha256 and copied.sha256 != job.sha256:
            self.noted(job, VOID, "")
            raise Refused("its sha256 is %s..., and its name in the cache says %s..." % (copied.sha256[:12], job.sha256[:12]),
                          "%s:%s" % (self.machine, job.source), "the file is damaged over there: download it again")
        os.utime(job.target, ns=(int(told["ns"]), int(told["ns"])))
        return copied

    def _bytes(self, talk: "subprocess.Popen[bytes]", job: Job) -> Copied:
        """What is missing from over there, and all of it hashed in its order."""
        total, chunks = hashlib.sha256(), []
        buffer = memoryview(bytearray(1 << 20))
        fd = os.open(job.target, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for number, start, end in _chunks(job):
                there = number in job.there
                digest = total if job.sha256 else hashlib.sha256()
                if not there or job.sha256:
                    for piece in self._here(fd, buffer, start, end) if there else self._there(talk, job, fd, buffer, start, end):
                        digest.update(piece)
                if not job.sha256:
                    chunks.append(job.there[number] if there else digest.hexdigest())
                if not there:
                    self.noted(job, number, "" if job.sha256 else chunks[-1])
        finally:
            os.close(fd)
        return Copied(job, total.hexdigest() if job.sha256 else "", tuple(chunks))

    def _there(self, talk: "subprocess.Popen[bytes]", job: Job, fd: int, buffer: memoryview, at: int, end: int
               ) -> Iterator[memoryview]:  # fmt: skip
        """The next bytes that come, each piece written to its place."""
        assert isinstance(talk.stdout, io.BufferedReader)
        while at < end:
            count = talk.stdout.readinto(buffer[: min(len(buffer), end - at)])
            if not count:
                raise self._ended(talk, job)
            write(fd, buffer[:count], at)
            at += count
            with self.lock:
                self.bytes += count
            self.bucket.wait_for(count, self.ended)
            yield buffer[:count]

    def _here(self, fd: int, buffer: memoryview, at: int, end: int) -> Iterator[memoryview]:
        """The same of what an earlier run has brought."""
        while at < end:
            count = os.preadv(fd, [buffer[: min(len(buffer), end - at)]], at)
            if self.stop or not count:
                raise InterruptedError
            at += count
            yield buffer[:count]

    def _ended(self, talk: "subprocess.Popen[bytes]", job: Job) -> Refused:
        talk.wait()
        said = talk.stderr.read() if talk.stderr else b""
        return _refused(self.machine, "ssh:%s:%s" % (self.machine, job.source), talk.returncode, said)
