# SPDX-License-Identifier: Apache-2.0
"""Risky questions in a child process: a sick GPU can hang an open(), a driver library can change what it looks at.

One child asks lstat, access and open of every node, in this order and before anything loads a driver library. Then one
child per library and environment makes the calls, with /dev read-only and without the rights to remake a node. A child
that is stuck in the kernel is left alone and named, never waited for. Nothing is forked: children are started by exec.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import child_script
from .host import Inquiry

NOT_TRIED = "not-tried"
"""The prefix of an `open` that was not made, with the reason behind it."""

HANGS_ALLOWED = 3
"""After so many hung children no further one is started: each costs the whole time limit."""

HIDDEN_BY_CLEAN_ENV = (
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
)
"""What "@clean-env" leaves out. A call that works only then is broken by one of these."""
CLEAN = "@clean-env"


def source() -> str:
    """The child's program. Through the loader, so that it also works from inside a zip."""
    text = child_script.__loader__.get_source(child_script.__name__)  # type: ignore[union-attr]
    if not text:
        raise RuntimeError("child_script.py travelled without its source")
    return str(text)


@dataclass
class Answers:
    """What one child said: a value or an error per operation, the one that hung, the one in which it died."""

    values: Dict[int, Any] = field(default_factory=dict)
    errors: Dict[int, Tuple[str, str]] = field(default_factory=dict)
    hung: int = -1
    died: int = -1
    how: str = ""


def ask(ops: Sequence[Mapping[str, Any]], env: Mapping[str, str], timeout: float) -> Answers:
    """Start one child and read its answers. timeout: seconds that a single operation may take."""
    got = Answers()
    child = subprocess.Popen(
        [sys.executable or "python3", "-I", "-c", source()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(env),
        cwd="/",
        start_new_session=True,
    )
    assert child.stdin and child.stdout
    with child.stdin, child.stdout:
        # An interpreter that dies at once leaves nobody to read; its exit status says so below.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(list(ops)).encode())
            child.stdin.close()
        step = _listen(child.stdout.fileno(), got, timeout)
    if got.hung >= 0:
        child.kill()
    try:
        # SIGKILL does not reach a process that sleeps in a driver: leave it, and let a thread take its exit status if
        # it ever gets out.
        child.wait(1 if got.hung >= 0 else timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        threading.Thread(target=child.wait, daemon=True).start()
        return got
    if child.returncode and got.hung < 0:
        got.died = step
        got.how = "killed by signal %d" % -child.returncode if child.returncode < 0 else "exit %d" % child.returncode
    return got


def _listen(fd: int, got: Answers, timeout: float) -> int:
    """Read lines until the child closes its end or one operation takes too long. Returns the last operation begun."""
    step, rest, limit = 0, b"", time.monotonic() + timeout
    with selectors.DefaultSelector() as ready:
        ready.register(fd, selectors.EVENT_READ)
        while True:
            if not ready.select(max(0.0, limit - time.monotonic())):
                got.hung = step
                return step
            data = os.read(fd, 65536)
            if not data:
                return step
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                said = json.loads(line)
                limit = time.monotonic() + timeout
                if "begin" in said:
                    step = said["begin"]
                elif "error" in said:
                    got.errors[said["end"]] = (said["error"], said["errno"])
                else:
                    got.values[said["end"]] = said["value"]


def inquire(
    nodes: Sequence[str],
    calls: Sequence[str],
    uid: Optional[int] = None,
    env: Optional[Mapping[str, str]] = None,
    timeout: float = 30,
    pid: Optional[int] = None,
) -> Inquiry:
    """Ask every node, then make the calls.

    nodes    paths.
    calls    names as in Inquiry ("cuInit", "cuInit@clean-env", "cuInit@GPU-uuid", "dlopen:libcuda.so.1" ...).
    uid      ask as this user (needs root). env: the whole environment of the children, default: the caller's.
    timeout  seconds that one step may take before its child is given up.
    pid      look through this process's mount table and device cgroup (a container's init; needs root, no calls then).
    Raises OSError when the child cannot become what it was told to be.
    """
    if pid is not None and calls:
        raise ValueError("libraries of another mount namespace are not loaded from here")
    environ = dict(os.environ if env is None else env)
    seen, stuck = _nodes(nodes, uid, environ, timeout, pid)
    answers: Dict[str, Any] = {}
    protected = True
    again = _asked_already(calls, environ)
    for names, variables in _groups([name for name in calls if name not in again], environ):
        made, safe, hung = _calls(names, variables, uid, timeout)
        answers.update(made)
        protected = protected and safe
        stuck = stuck or hung
    answers.update({name: answers[same] for name, same in again.items()})
    if answers:
        _changes(seen, nodes, environ, timeout)
    return Inquiry(seen, answers, protected, stuck)


def _prologue(uid: Optional[int], pid: Optional[int]) -> List[Dict[str, Any]]:
    ops: List[Dict[str, Any]] = []
    if pid is not None:
        ops.append({"op": "enter", "pid": pid, "must": True})
    if uid is not None:
        ops.append({"op": "setuid", "uid": uid, "known": pid is None, "must": True})
    return ops


def _raise_if_refused(first: Sequence[Mapping[str, Any]], got: Answers) -> None:
    """An answer for somebody else, or for somewhere else, is worse than none."""
    for i, op in enumerate(first):
        if i in got.errors and op.get("must"):
            text, name = got.errors[i]
            raise OSError(getattr(errno, name, errno.EPERM), "child cannot %s: %s" % (op["op"], text))


def _nodes(
    paths: Sequence[str], uid: Optional[int], env: Mapping[str, str], timeout: float, pid: Optional[int]
) -> Tuple[Dict[str, Dict[str, Any]], str]:
    """lstat of all, access of all, open of all. A node that hangs is skipped by the next child."""
    seen: Dict[str, Dict[str, Any]] = {path: {} for path in paths}
    todo = [{"op": what, "path": path} for what in ("lstat", "access", "open") for path in paths]
    first = _prologue(uid, pid)
    stuck, hangs = "", 0
    while todo and hangs < HANGS_ALLOWED:
        got = ask(first + todo, env, timeout)
        _raise_if_refused(first, got)
        for i, op in enumerate(todo, len(first)):
            if i in got.values:
                _note(seen[op["path"]], op["op"], got.values[i])
            elif i in got.errors:
                _note(seen[op["path"]], op["op"], "error: " + got.errors[i][0])
        last = got.hung if got.hung >= 0 else got.died
        if last < len(first):
            if last >= 0:
                raise OSError(errno.EIO, "the child that looks at device nodes failed: %s" % (got.how or "hung"))
            break
        op = todo[last - len(first)]
        seen[op["path"]][op["op"]] = {"timeout": timeout} if got.hung >= 0 else "error: " + got.how
        if got.hung >= 0:
            stuck = stuck or "%s %s" % (op["op"], op["path"])
        todo = todo[last - len(first) + 1 :]
        hangs += 1
    for op in todo if hangs == HANGS_ALLOWED else ():
        seen[op["path"]].setdefault(op["op"], NOT_TRIED + ": too many steps hung before it")
    for path, node in seen.items():
        if "errno" in node:
            seen[path] = {"errno": node["errno"]}
    return seen, stuck


def _note(node: Dict[str, Any], what: str, value: Any) -> None:
    if what == "lstat" and isinstance(value, dict):
        node.update(value)
    else:
        node[what] = value


def _asked_already(calls: Sequence[str], env: Mapping[str, str]) -> Dict[str, str]:
    """Calls in a clean environment, where the caller's is clean: the same question as the call without the tag. With eight
    GPUs each cuInit takes seconds."""
    if any(name in env for name in HIDDEN_BY_CLEAN_ENV):
        return {}
    pairs = ((name, name[: -len(CLEAN)]) for name in calls if name.endswith(CLEAN))
    return {name: same for name, same in pairs if same in calls}


def _groups(calls: Sequence[str], env: Mapping[str, str]) -> List[Tuple[List[str], Dict[str, str]]]:
    """Calls that share one process: the same library in the same environment, in the order they were asked for."""
    groups: Dict[Tuple[str, str], List[str]] = {}
    for name in calls:
        base, _, tag = name.partition("@")
        library = next((start for start in ("dlopen", "nvml", "allowlist") if base.startswith(start)), "cuda")
        own = base in ("cuCtxCreate", "cuLaunch", "cuPeer")
        groups.setdefault((base if own else library, "" if base == "cuPeer" else tag), []).append(name)
    return [(names, _environment(library, tag, env)) for (library, tag), names in groups.items()]


def _environment(library: str, tag: str, env: Mapping[str, str]) -> Dict[str, str]:
    if "@" + tag == CLEAN:
        return {k: v for k, v in env.items() if k not in HIDDEN_BY_CLEAN_ENV}
    if library == "cuPeer":  # asks about the machine, not about what this process may use
        return {k: v for k, v in env.items() if k != "CUDA_VISIBLE_DEVICES"}
    if library not in ("cuCtxCreate", "cuLaunch") and tag:
        return dict(env, CUDA_VISIBLE_DEVICES=tag)
    return dict(env)


def _calls(
    names: Sequence[str], env: Mapping[str, str], uid: Optional[int], timeout: float
) -> Tuple[Dict[str, Any], bool, str]:
    """One child's calls: their answers, whether /dev was safe from them, the one that hung."""
    probing = names == ["allowlist"]  # makes nodes, in a tmpfs of its own: the rights to do so stay
    first: List[Dict[str, Any]] = [] if probing else [{"op": "protect"}]
    first += _prologue(uid, None)
    got = ask(first + [{"op": "call", "name": name} for name in names], env, timeout)
    _raise_if_refused(first, got)
    made: Dict[str, Any] = {}
    for i, name in enumerate(names, len(first)):
        if i in got.values:
            made[name] = got.values[i]
        elif i in got.errors:
            made[name] = {"error": got.errors[i][0]}
        elif i == got.hung:
            made[name] = {"timeout": timeout}
        elif i == got.died:
            made[name] = {"error": got.how}
        else:
            made[name] = {"error": "not asked: the call before it did not return"}
    said = {"protected": True} if probing else got.values.get(0) or {}
    stuck = names[got.hung - len(first)] if got.hung >= len(first) else ""
    return made, bool(said.get("protected")), stuck


def _changes(seen: Dict[str, Dict[str, Any]], paths: Sequence[str], env: Mapping[str, str], timeout: float) -> None:
    """Look again, without opening anything: under "after" stands what the driver's libraries changed."""
    if not paths:
        return
    got = ask([{"op": "lstat", "path": path} for path in paths], env, timeout)
    for i, path in enumerate(paths):
        now = got.values.get(i)
        if now is not None and any(seen[path].get(k) != v for k, v in now.items()):
            seen[path]["after"] = now
