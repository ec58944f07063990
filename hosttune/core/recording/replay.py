# SPDX-License-Identifier: Apache-2.0
"""A machine on paper answers: from what a recording holds, and from that alone."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..door.host import Host, Inquiry, Ran, Space, Stat, Unrecorded, Who, digest, errno_of
from ..model import Refused
from .merge import merge
from .shape import SCHEMA, refuse_bad

_SELF_FILES = {"mounts": "/proc/self/mountinfo"}


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
