# SPDX-License-Identifier: Apache-2.0
"""What no uevent announces, heard at files of a GPU: who closed its device node, wrote to its config space or to its `reset`.

inotify(7), by ctypes: the standard library has no other way to it. Facts that this rests on, measured on kernels 6.1 and 6.18:
a watch opens no device and keeps no module; a close of /dev/nvidiaN is told, from a process that is killed too, and *before* the
driver's own release (fs/file_table.c, __fput), so whoever hears it looks a moment later and again; writes to sysfs are told
with the file they went to. Not told: what goes through another inode, as a container's own node or sysfs, and /proc/bus/pci.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Set, Tuple

from ..door.host import errname
from ..pci import bus
from .uevents import Event

QUIET = "inotify"
"""SUBSYSTEM of these events. They say that something was done, not that anything is other than before."""
CLOSE, RESET, WRITE, NODE = "close", "reset", "write", "node"
"""A device node was closed; `reset` of a function was written; so was its config space; a device node is new."""
DEV = "/dev"
_MODIFY, _CLOSE_WRITE, _CLOSE, _MOVED_TO, _CREATE, _OVERFLOW, _IGNORED = 0x2, 0x8, 0x18, 0x80, 0x100, 0x4000, 0x8000
"""include/uapi/linux/inotify.h."""
_HEAD = struct.Struct("iIII")
MISSED: Event = {"SUBSYSTEM": QUIET, "ACTION": WRITE}
"""In place of events that the queue had no room for: any config space may have been written."""


class GpuFiles:
    """An ear at the files of GPUs. tell: gets a line for each reason why a file cannot be listened to, once.

    Raises OSError when the kernel gives none (EMFILE).
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        import ctypes

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._tell = tell
        self._told: Set[str] = set()
        self._events: Dict[int, Event] = {}
        self._watches: Dict[str, int] = {}
        self._fd = self._asked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "GPU files")

    def fileno(self) -> int:
        """For select(2)."""
        return self._fd

    def close(self) -> None:
        """Stop listening."""
        os.close(self._fd)

    def listen(self, bdfs: Iterable[str]) -> FrozenSet[str]:
        """Listen at every GPU node that there is now, at /dev for those to come, and at the config space and `reset` of these
        functions; again after any of them was made anew. -> the functions whose writers are heard.
        """
        places = [(DEV, _CREATE | _MOVED_TO, NODE, "")]
        places += [("%s/%s" % (DEV, name), _CLOSE, CLOSE, "") for name in _nodes()]
        for bdf in bdfs:
            places += [("%s/%s/reset" % (bus.DEVICES, bdf), _CLOSE_WRITE, RESET, bdf)]
            places += [("%s/%s/config" % (bus.DEVICES, bdf), _MODIFY, WRITE, bdf)]
        heard: Set[str] = set()
        for path, mask, action, bdf in places:
            event = {"SUBSYSTEM": QUIET, "ACTION": action, "DEVPATH": path, "PCI_SLOT_NAME": bdf}
            if self._watch(path, mask, event) and action == WRITE:
                heard.add(bdf)
        return frozenset(heard)

    def drain(self) -> List[Event]:
        """What was heard since the last call, each thing once, in its order."""
        found: Dict[Tuple[str, str], Event] = {}
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return list(found.values())
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEAD.unpack_from(data, at)
                name = data[at + _HEAD.size : at + _HEAD.size + length].rstrip(b"\0")
                at += _HEAD.size + length
                event = MISSED if mask & _OVERFLOW else self._events.get(watch)
                if mask & _IGNORED:
                    self._events.pop(watch, None)
                elif event and (event["ACTION"] != NODE or name.startswith(b"nvidia")):
                    found[event["ACTION"], event.get("DEVPATH", "")] = event

    def _watch(self, path: str, mask: int, event: Event) -> bool:
        """The kernel gives the same number again for a file that is listened to already; another one for a new file there."""
        try:
            watch = self._asked(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask), path)
        except FileNotFoundError:
            return False  # a function that cannot be reset has no such file; a node may come later
        except OSError as e:
            if errname(e) not in self._told:
                self._told.add(errname(e))
                self._tell(deaf(e))
            return False
        was = self._watches.get(path, watch)
        if was != watch and was in self._events:
            del self._events[was]
            self._libc.inotify_rm_watch(self._fd, was)
        self._watches[path], self._events[watch] = watch, event
        return True

    def _asked(self, answer: int, path: str) -> int:
        if answer < 0:
            import ctypes

            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return answer


def _nodes() -> List[str]:
    """Names of the GPUs' nodes and of the driver's own, which a reset is asked for through."""
    with contextlib.suppress(FileNotFoundError):
        names = (name for name in os.listdir(DEV) if name.startswith("nvidia"))
        return sorted(name for name in names if name == "nvidiactl" or name[len("nvidia") :].isdigit())
    return []


def deaf(e: OSError) -> str:
    """Why a file cannot be listened to, and who sees a reset then."""
    limit = {"ENOSPC": "fs.inotify.max_user_watches", "EMFILE": "fs.inotify.max_user_instances"}.get(errname(e), "")
    full = " (%s is used up: sysctl %s)" % (limit, limit) if limit else ""
    return "no inotify watch on %s: %s%s; a reset that the kernel does not announce is seen by hosttune-recheck alone" % (
        e.filename, errname(e), full)  # fmt: skip
