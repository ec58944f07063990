# SPDX-License-Identifier: Apache-2.0
"""A machine on paper: RecordingHost writes down every question and answer, ReplayHost answers from that alone.

The format is `hosttune.recording/1` (docs/recordings.md): JSON that a person can write by hand. `base` names a shipped
machine that the recording then only differs from. Recordings hold no secret: of the environment, also of another
process's, only ENV_PREFIXES; redaction.py takes out what names a person or a place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..door.host import ENV_PREFIXES, Host, Inquiry, Ran, Space, Stat, Who, digest, errname, errno_of
from ..machine import kernel_log, trace
from ..machine.process import MAPPED, MAPS
from ..model import Refused
from .redaction import redact as redact
from .shape import SCHEMA as SCHEMA
from .shape import refuse_bad

_KEPT: Dict[Tuple[str, ...], Callable[[Ran], Ran]] = {kernel_log.COMMAND: kernel_log.kept, trace.COMMAND: trace.kept}
"""Commands that print more than is about GPUs, and what of it is written down."""


class Unrecorded(LookupError):
    """The recording does not hold the answer to a question. `question` says which."""

    def __init__(self, question: str) -> None:
        self.question = question
        super().__init__("not recorded: " + question)


_SELF_FILES = {"mounts": "/proc/self/mountinfo"}
_KINDS = {"errno", "hex", "error", "timeout"}
"""Keys that make an answer one of its own kind."""


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Dict[str, Any]:
    """`over` on top of `base`, maps merged key by key; a value of None takes the base's entry away.

    An answer of another kind takes the place of the old one whole: a node where there was an errno, bytes for a text.
    """
    out = dict(base)
    for key, value in over.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            was = out.get(key)
            same = isinstance(was, Mapping) and not _KINDS & (set(was) ^ set(value))
            out[key] = merge(was if same and isinstance(was, Mapping) else {}, value)
        else:
            out[key] = value
    return out


def load(recording: Mapping[str, Any], base: Callable[[str], Mapping[str, Any]]) -> Dict[str, "ReplayHost"]:
    """Every machine of a recording, by its key ("host", "ct:200"). `base(name)` gives a shipped machine.

    A machine may have a `base` of its own; the recording's `base` serves those that have none. Refused for another
    schema or a shape that cannot be a recording, naming the key.
    """
    if not isinstance(recording, Mapping) or recording.get("schema") != SCHEMA:
        raise Refused(
            'not a recording: "schema" must be "%s"' % SCHEMA, way_out="hosttune doctor --record FILE makes one"
        )
    machines = refuse_bad(recording)
    out = {}
    for name, machine in machines.items():
        own = machine.get("base", recording.get("base"))
        full = merge(base(own) if own else {}, machine)
        default = merge({k: v for k, v in full.items() if k != "views"}, full.get("views", {}).get("default", {}))
        out[str(name)] = ReplayHost(default, full.get("views", {}), str(name))
    return out


class ReplayHost(Host):
    """Answers from one machine of a recording. Effects change the copy in memory, so that a change can be replayed too.

    `writes` in the recording says what a write does: "ignored" (it returns well and nothing changes) or an errno name.
    """

    def __init__(self, view: Mapping[str, Any], views: Mapping[str, Any] = {}, name: str = "host") -> None:
        self.view, self.views, self.name = dict(view), views, name
        self.effects: List[Dict[str, Any]] = []
        self.unrecorded: List[str] = []

    def _miss(self, question: str) -> Unrecorded:
        if question not in self.unrecorded:
            self.unrecorded.append(question)
        return Unrecorded(question)

    def _section(self, name: str) -> Dict[str, Any]:
        section = self.view.get(name)
        return dict(section) if isinstance(section, Mapping) else {}

    def _answer(self, section: str, path: str) -> Any:
        answers = self._section(section)
        if path not in answers:
            raise self._miss("%s %s" % (section, path))
        answer = answers[path]
        if isinstance(answer, Mapping) and "errno" in answer:
            number = errno_of(str(answer["errno"]))
            raise OSError(number, os.strerror(number), path)
        return answer

    def read_bytes(self, path: str, limit: int = 0) -> bytes:
        for key, file in _SELF_FILES.items():
            if path == file and key in self.view and path not in self._section("files"):
                return str(self.view[key]).encode("utf-8", "surrogateescape")
        answer = self._answer("files", path)
        if isinstance(answer, Mapping):
            return bytes.fromhex(str(answer["hex"]))[: limit or None]
        return str(answer).encode("utf-8", "surrogateescape")[: limit or None]

    def list(self, path: str) -> List[str]:
        return sorted(str(name) for name in self._answer("dirs", path))

    def lstat(self, path: str) -> Stat:
        node = self._answer("nodes", path)
        return Stat(**{k: v for k, v in node.items() if k in Stat.__dataclass_fields__})

    def readlink(self, path: str) -> str:
        return str(self._answer("links", path))

    def statvfs(self, path: str) -> Space:
        return Space(**self._answer("statvfs", path))

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        key = shlex.join(argv)
        commands = self._section("commands")
        if key not in commands:
            raise self._miss("commands " + key)
        answer = commands[key]
        out, err = str(answer.get("out", "")), str(answer.get("err", ""))
        if "timeout" in answer:
            return Ran(124, out, err, float(answer["timeout"]))
        if "then" in answer:
            self.view = merge(self.view, answer["then"])
        return Ran(int(answer.get("rc", 0)), out, err)

    def clock(self) -> float:
        return float(self.view.get("clock", 0))

    def who(self) -> Who:
        caps = self.view.get("caps", 0)
        return Who(
            int(self.view.get("uid", 0)),
            int(self.view.get("gid", 0)),
            int(caps, 16) if isinstance(caps, str) else int(caps),
            dict(self.view.get("env", {})),
        )

    def uname(self) -> Tuple[str, str, str]:
        text = str(self.view.get("uname", "replay unknown x86_64")).split()
        return (text + ["unknown"] * 3)[0], (text + ["unknown"] * 3)[1], (text + ["unknown"] * 3)[2]

    def holders(self, number: str) -> List[Tuple[int, str]]:
        return [(int(pid), str(comm)) for pid, comm in self._answer("holders", number)]

    def inquire(
        self,
        nodes: Sequence[str],
        calls: Sequence[str],
        uid: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        timeout: float = 30,
        pid: Optional[int] = None,
    ) -> Inquiry:
        view = self.view if uid is None else merge(self.view, self.views.get("uid:%d" % uid, {}))
        if pid is not None:  # another mount table: nothing of this machine's own nodes holds there
            view = self.views.get("pid:%d" % pid, {})
        known_nodes, known_calls = view.get("nodes", {}), view.get("calls", {})
        for path in nodes:
            if path not in known_nodes:
                self._miss("nodes " + path)
        for call in calls:
            if call not in known_calls:
                self._miss("calls " + call)
        return Inquiry(
            {p: known_nodes[p] for p in nodes if p in known_nodes},
            {c: known_calls[c] for c in calls if c in known_calls},
            bool(view.get("protected", True)),
            str(view.get("stuck", "")),
        )

    # ---- effects, on the copy in memory
    @contextlib.contextmanager
    def lock(self, path: str, timeout: float = 10) -> Iterator[None]:
        self.effects.append({"effect": "lock", "target": path})
        yield

    def _write(self, effect: str, path: str, text: Optional[str]) -> None:
        behaviour = self._section("writes").get(path)
        if behaviour and behaviour != "ignored":
            number = errno_of(str(behaviour))
            raise OSError(number, os.strerror(number), path)
        self.effects.append({"effect": effect, "target": path})
        if behaviour == "ignored":
            return
        self.view = merge(self.view, {"files": {path: {"errno": "ENOENT"} if text is None else text}})
        folder, _, name = path.rpartition("/")
        names = self._section("dirs").get(folder)
        if names is not None:
            was = names if isinstance(names, list) else []
            now = [n for n in was if n != name] + ([name] if text is not None else [])
            self.view = merge(self.view, {"dirs": {folder: now}})

    def _expect(self, path: str, expect: Optional[str]) -> None:
        try:
            now: Optional[str] = digest(self.read_bytes(path))
        except OSError as e:
            if e.errno != errno.ENOENT:
                raise
            now = None
        if now != expect:
            raise Refused("the file changed since it was read; nothing was written", path, "run the same command again")

    def replace(self, path: str, data: bytes, expect: Optional[str], mode: int = 0o644) -> None:
        self._expect(path, expect)
        self._write("replace", path, data.decode("utf-8", "surrogateescape"))

    def remove(self, path: str, expect: str) -> None:
        self._expect(path, expect)
        self._write("remove", path, None)

    def append(self, path: str, data: bytes) -> None:
        try:
            before = self.read(path)
        except (OSError, Unrecorded):
            before = ""
        self._write("append", path, before + data.decode())

    def poke(self, path: str, value: str) -> None:
        self._write("poke", path, value + "\n")

    def execute(self, argv: Sequence[str], timeout: float = 60) -> Ran:
        self.effects.append({"effect": "run", "target": " ".join(argv), "argv": list(argv)})
        return self.run(argv, timeout)


class RecordingHost(Host):
    """Asks another host and writes down what it answered; `view` is then a machine of a recording."""

    def __init__(self, inner: Host, shorten: Callable[[str, str], str] = lambda path, text: text) -> None:
        """shorten: (path, text of a file) -> what of it is written down."""
        self.inner, self.shorten = inner, shorten
        self.effects = inner.effects
        self.view: Dict[str, Any] = {"clock": inner.clock(), "uname": " ".join(inner.uname())}

    def _keep(self, section: str, key: str, ask: Callable[[], Any], plain: Callable[[Any], Any] = lambda v: v) -> Any:
        into = self.view.setdefault(section, {})
        try:
            answer = ask()
        except OSError as e:
            into[key] = {"errno": errname(e)}
            raise
        into[key] = plain(answer)
        return answer

    def read_bytes(self, path: str, limit: int = 0) -> bytes:
        def plain(data: bytes) -> Any:
            if path.startswith("/proc/") and path.endswith("/environ"):
                kept = ("container=", *ENV_PREFIXES)
                data = b"".join(v + b"\0" for v in data.split(b"\0") if v.decode("latin-1").startswith(kept))
            if MAPS.match(path):
                data = b"".join(
                    line + b"\n" for line in data.splitlines() if MAPPED.search(line.decode("utf-8", "replace"))
                )
            data = self.shorten(path, data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError:
                return {"hex": data.hex()}

        data: bytes = self._keep("files", path, lambda: self.inner.read_bytes(path, limit), plain)
        return data

    def list(self, path: str) -> List[str]:
        names: List[str] = self._keep("dirs", path, lambda: self.inner.list(path))
        return names

    def lstat(self, path: str) -> Stat:
        had = self.view.get("nodes", {})
        got: Stat = self._keep(
            "nodes", path, lambda: self.inner.lstat(path), lambda st: merge(had, {path: vars(st)})[path]
        )
        return got

    def readlink(self, path: str) -> str:
        target: str = self._keep("links", path, lambda: self.inner.readlink(path))
        return target

    def statvfs(self, path: str) -> Space:
        space: Space = self._keep("statvfs", path, lambda: self.inner.statvfs(path), vars)
        return space

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        def plain(ran: Ran) -> Any:
            shorten = _KEPT.get(tuple(argv))
            ran = shorten(ran) if shorten else ran
            said = {"out": ran.out, "err": ran.err}
            return dict(said, timeout=ran.timeout) if ran.timeout else dict(said, rc=ran.rc)

        ran: Ran = self._keep("commands", shlex.join(argv), lambda: self.inner.run(argv, timeout, stdin), plain)
        return ran

    def clock(self) -> float:
        return self.inner.clock()

    def who(self) -> Who:
        who = self.inner.who()
        self.view.update(uid=who.uid, gid=who.gid, caps="%x" % who.caps, env=dict(who.env))
        return who

    def uname(self) -> Tuple[str, str, str]:
        return self.inner.uname()

    def holders(self, number: str) -> List[Tuple[int, str]]:
        held: List[Tuple[int, str]] = self._keep(
            "holders", number, lambda: self.inner.holders(number), lambda found: [list(h) for h in found]
        )
        return held

    def inquire(
        self,
        nodes: Sequence[str],
        calls: Sequence[str],
        uid: Optional[int] = None,
        env: Optional[Mapping[str, str]] = None,
        timeout: float = 30,
        pid: Optional[int] = None,
    ) -> Inquiry:
        got = self.inner.inquire(nodes, calls, uid, env, timeout, pid)
        name = "pid:%d" % pid if pid is not None else "" if uid is None else "uid:%d" % uid
        into = self.view.setdefault("views", {}).setdefault(name, {}) if name else self.view
        into["nodes"] = merge(into.get("nodes", {}), got.nodes)
        into.setdefault("calls", {}).update(got.calls)
        into.update(protected=into.get("protected", True) and got.protected, stuck=into.get("stuck") or got.stuck)
        return got

    # ---- effects go to the machine; they are not part of a recording
    def lock(self, path: str, timeout: float = 10) -> "contextlib.AbstractContextManager[None]":
        return self.inner.lock(path, timeout)

    def replace(self, path: str, data: bytes, expect: Optional[str], mode: int = 0o644) -> None:
        self.inner.replace(path, data, expect, mode)

    def remove(self, path: str, expect: str) -> None:
        self.inner.remove(path, expect)

    def append(self, path: str, data: bytes) -> None:
        self.inner.append(path, data)

    def poke(self, path: str, value: str) -> None:
        self.inner.poke(path, value)

    def execute(self, argv: Sequence[str], timeout: float = 60) -> Ran:
        return self.inner.execute(argv, timeout)
