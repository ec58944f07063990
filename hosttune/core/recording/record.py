# SPDX-License-Identifier: Apache-2.0
"""A machine onto paper: each question that is asked, and what the machine answered.

The format is `hosttune.recording/1` (docs/recordings.md): JSON that a person can write by hand. `base` names a shipped
machine that the recording then only differs from. Recordings hold no secret: of the environment, also of another
process's, only ENV_PREFIXES; redaction.py takes out what names a person or a place.
"""

from __future__ import annotations

import contextlib
import shlex
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..door.host import ENV_PREFIXES, Host, Inquiry, Ran, Space, Stat, Who, errname
from ..machine import kernel_log, trace
from ..machine.process import MAPPED, MAPS
from .merge import merge

_KEPT: Dict[Tuple[str, ...], Callable[[Ran], Ran]] = {kernel_log.COMMAND: kernel_log.kept, trace.COMMAND: trace.kept}
"""Commands that print more than is about GPUs, and what of it is written down."""


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
