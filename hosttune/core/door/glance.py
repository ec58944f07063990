# SPDX-License-Identifier: Apache-2.0
"""One look at a machine: each question is asked once, however many settings ask it.

A check of everything asks which functions of the PCI bus are GPUs some thirty times; a server has hundreds of functions. A look
is short: it is made for one pass over the settings and thrown away. Whatever is changed through it makes it forget everything.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .host import Host, Inquiry, Ran, Space, Stat, Who


class Glance(Host):
    """Asks another host and keeps the answers, refusals included."""

    def __init__(self, inner: Host) -> None:
        self.inner = inner
        self.effects = inner.effects
        self._answers: Dict[Tuple[Any, ...], Tuple[Any, Optional[Exception]]] = {}

    def _once(self, key: Tuple[Any, ...], ask: Callable[[], Any]) -> Any:
        if key not in self._answers:
            try:
                self._answers[key] = (ask(), None)
            except (OSError, LookupError) as e:  # LookupError: a recording does not hold the answer
                self._answers[key] = (None, e)
        answer, error = self._answers[key]
        if error:
            raise error
        return answer

    def reaches(self, target: str) -> bool:
        return self.inner.reaches(target)

    def read_bytes(self, path: str, limit: int = 0) -> bytes:
        data: bytes = self._once(("read", path, limit), lambda: self.inner.read_bytes(path, limit))
        return data

    def list(self, path: str) -> List[str]:
        names: List[str] = self._once(("list", path), lambda: self.inner.list(path))
        return list(names)

    def lstat(self, path: str) -> Stat:
        found: Stat = self._once(("lstat", path), lambda: self.inner.lstat(path))
        return found

    def readlink(self, path: str) -> str:
        target: str = self._once(("readlink", path), lambda: self.inner.readlink(path))
        return target

    def statvfs(self, path: str) -> Space:
        space: Space = self._once(("statvfs", path), lambda: self.inner.statvfs(path))
        return space

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        ran: Ran = self._once(("run", tuple(argv), stdin), lambda: self.inner.run(argv, timeout, stdin))
        return ran

    def clock(self) -> float:
        return self.inner.clock()

    def who(self) -> Who:
        who: Who = self._once(("who",), self.inner.who)
        return who

    def uname(self) -> Tuple[str, str, str]:
        told: Tuple[str, str, str] = self._once(("uname",), self.inner.uname)
        return told

    def holders(self, number: str) -> List[Tuple[int, str]]:
        held: List[Tuple[int, str]] = self._once(("holders", number), lambda: self.inner.holders(number))
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
        return self.inner.inquire(nodes, calls, uid, env, timeout, pid)

    # ---- effects
    @contextlib.contextmanager
    def lock(self, path: str, timeout: float = 10) -> Iterator[None]:
        with self.inner.lock(path, timeout):
            self._answers.clear()  # another run may have changed things while this one waited
            yield

    def replace(self, path: str, data: bytes, expect: Optional[str], mode: int = 0o644) -> None:
        self._answers.clear()
        self.inner.replace(path, data, expect, mode)

    def remove(self, path: str, expect: str) -> None:
        self._answers.clear()
        self.inner.remove(path, expect)

    def append(self, path: str, data: bytes) -> None:
        self._answers.clear()
        self.inner.append(path, data)

    def poke(self, path: str, value: str) -> None:
        self._answers.clear()
        self.inner.poke(path, value)

    def execute(self, argv: Sequence[str], timeout: float = 60) -> Ran:
        self._answers.clear()
        return self.inner.execute(argv, timeout)
