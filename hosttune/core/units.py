# SPDX-License-Identifier: Apache-2.0
"""hosttune's own systemd units on one machine: seen, put there, started, stopped. The same code runs on the host and, sent
there by lxc/inside.py, in a container; place.py chooses.

Only files that hosttune owns are ever written: /etc/systemd/system/hosttune-*.service and what lies below its code folder.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .door.host import TEMP, Host, errname, list_or_empty, read_or_none
from .machine import http, ports
from .model import Refused

FOLDER = "/etc/systemd/system"
CODE = "/usr/local/lib/hosttune/engines"
MARK = "HOSTTUNE_UNIT"
"""A variable of each unit that holds the digest of its text: the running process tells what it was started from."""

PROPERTIES = (
    *("LoadState", "ActiveState", "SubState", "Result", "MainPID", "ExecMainPID", "ExecMainCode", "ExecMainStatus"),
    *("NRestarts", "InvocationID", "ExecMainStartTimestamp", "ControlGroup", "MemoryCurrent", "TasksCurrent"),
    *("NeedDaemonReload", "FragmentPath", "DropInPaths", "Environment"),
)
_UNIT = re.compile(r"hosttune-[A-Za-z0-9][A-Za-z0-9_.-]*\.service")
_OWN_FILE = re.compile(
    r"(%s/%s|%s/[A-Za-z0-9_]+\.py)(%s)?" % (re.escape(FOLDER), _UNIT.pattern, re.escape(CODE), re.escape(TEMP))
)
"""Also what a killed run left half-written beside one."""
BOOT_UNITS = (
    *("hosttune-knobs.service", "hosttune-devices.service", "hosttune-stage.service"),
    *("hosttune-watch.service", "hosttune-recheck.service"),
)
VERBS = ("start", "stop", "restart", "reset-failed")
STOP_TIMEOUT = 150
"""Seconds that `systemctl stop` is given: the units have TimeoutStopSec=90 and are killed after that."""

Request = Mapping[str, Any]


def look(host: Host, request: Request) -> Dict[str, Any]:
    """Everything that a start, a check or a wait needs to know of one unit, in one visit.

    Request   unit, files [path], paths [path], user, port, health {"address", "paths", "timeout"}, journal (lines),
              after (cursor), venv, packages [name]
    Answer    show {property: text}, files {path: text or null}, paths {path: type or errno}, user (is there one?),
              port {listens, pid, comm, connections, ours}, mark, health {path: {status, body, error}}, journal [line], cursor,
              packages {name: version}
    """
    unit = _own(request["unit"])
    show = properties(host, unit)
    told: Dict[str, Any] = {
        "show": show,
        "files": {path: read_or_none(host, _own_file(path)) for path in request.get("files", ())},
        "paths": {path: _kind(host, path) for path in request.get("paths", ())},
        "user": not request.get("user") or _user(host, request["user"]),
        "mark": _mark(host, show.get("MainPID", "0")),
        "packages": _packages(host, str(request.get("venv", "")), request.get("packages", ())),
    }
    if request.get("port"):
        port = ports.look(host, int(request["port"]))
        told["port"] = dict(asdict(port), ours=bool(port.pid) and _in_unit(host, port.pid, unit))
        if request.get("health"):
            told["health"] = _health(host, request["health"], int(request["port"])) if port.listens else {}
    if request.get("journal"):
        told["journal"], told["cursor"] = journal(
            host, unit, show.get("InvocationID", ""), int(request["journal"]), request.get("after", "")
        )
    return told


def properties(host: Host, unit: str) -> Dict[str, str]:
    """What systemd knows of a unit. Refused where systemd does not run."""
    ran = host.run(["systemctl", "show", unit, "-p", ",".join(PROPERTIES)])
    if ran.rc:
        raise Refused(
            "systemd does not answer: %s" % (ran.err.strip().splitlines() or ["exit code %d" % ran.rc])[0],
            unit,
            "systemctl is-system-running must say running or degraded there",
        )
    return dict(line.partition("=")[::2] for line in ran.out.splitlines() if "=" in line)


def _kind(host: Host, path: str) -> str:
    """What lies at the end of a path, links followed; or the errno."""
    try:
        for _ in range(16):
            kind = host.lstat(path).type
            if kind != "link":
                return kind
            to = host.readlink(path)
            path = to if to.startswith("/") else "%s/%s" % (path.rpartition("/")[0], to)
        return "ELOOP"
    except OSError as e:
        return errname(e)


def _user(host: Host, name: str) -> bool:
    return host.run(["getent", "passwd", name]).rc == 0


def _packages(host: Host, venv: str, names: Sequence[str]) -> Dict[str, str]:
    """{package: version, "" if it is not there} by the *.dist-info folders of a virtual environment; no code of it is run.

    Names are compared as PEP 503 says: case, dash, underscore and dot make no difference.
    """
    found: Dict[str, str] = {}
    for python in list_or_empty(host, venv + "/lib") if venv and names else ():
        for folder in list_or_empty(host, "%s/lib/%s/site-packages" % (venv, python)):
            if folder.endswith(".dist-info"):
                name, _, version = folder[: -len(".dist-info")].rpartition("-")
                found[_plain_name(name)] = version
    return {name: found.get(_plain_name(name), "") for name in names}


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _in_unit(host: Host, pid: int, unit: str) -> bool:
    """Whether a process belongs to the unit: worker processes do, too."""
    try:
        return ("/%s\n" % unit) in host.read("/proc/%d/cgroup" % pid) + "\n"
    except OSError:
        return False


def _mark(host: Host, pid: str) -> str:
    """The digest of the unit that the running process was started from, "" if none runs or it cannot be told."""
    if not pid.isdigit() or pid == "0":
        return ""
    try:
        environ = host.read("/proc/%s/environ" % pid)
    except OSError:
        return ""
    return next((item[len(MARK) + 1 :] for item in environ.split("\0") if item.startswith(MARK + "=")), "")


def _health(host: Host, asked: Request, port: int) -> Dict[str, Any]:
    """The first path that is not 404 decides: llama.cpp, vllm and sglang have /health, others only /v1/models."""
    told: Dict[str, Any] = {}
    for path in asked["paths"]:
        answer = http.get(host, asked["address"], port, path, float(asked.get("timeout", 5)))
        told[path] = asdict(answer)
        if answer.status != 404:
            break
    return told


def journal(host: Host, unit: str, invocation: str, lines: int, after: str) -> "tuple[List[Dict[str, Any]], str]":
    """Lines of one run of a unit (its output and what systemd said of it), oldest first, and the cursor after them.

    One line is {"at": seconds, "priority": 0-7, "text"}. An earlier run's lines are never taken for this one's.
    """
    if not invocation:
        return [], after
    argv = ["journalctl", "--no-pager", "-a", "-o", "json", *(["--after-cursor=" + after] if after else ["-n", str(lines)]),
            "_SYSTEMD_INVOCATION_ID=" + invocation, "+", "INVOCATION_ID=" + invocation]  # fmt: skip
    ran = host.run(argv, 30)
    found: List[Dict[str, Any]] = []
    for line in ran.out.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # "-- No entries --"
        after = row.get("__CURSOR", after)
        text = row.get("MESSAGE")
        if isinstance(text, list):  # bytes that are no text
            text = bytes(text).decode("utf-8", "replace")
        found.append({"at": int(row.get("__REALTIME_TIMESTAMP", 0)) / 1e6, "priority": int(row.get("PRIORITY", 6)),
                      "text": text or "", "by": row.get("SYSLOG_IDENTIFIER", "")})  # fmt: skip
    return found[-lines:], after


def put(host: Host, request: Request) -> Dict[str, Any]:
    """Put one of hosttune's own files at `path`, or (text null) take it away. `expect`: digest of what is there, or null.

    systemd is told at once, so that what it knows and what is written never differ.
    """
    path, text = _own_file(request["path"]), request.get("text")
    if text is None:
        host.remove(path, request["expect"])
        removed(host, path)
    else:
        host.replace(path, text.encode("utf-8", "surrogateescape"), request.get("expect"))
        reload(host, path)
    return {}


def reload(host: Host, path: str) -> None:
    """Tell systemd, if `path` is a unit of ours."""
    if path.startswith(FOLDER + "/hosttune-"):
        ran = host.execute(["systemctl", "daemon-reload"])
        if ran.rc:
            raise Refused("systemctl daemon-reload: %s" % ran.err.strip(), path, "systemctl daemon-reload")


def removed(host: Host, path: str) -> None:
    """Tell systemd that a file of ours is gone. If it was a unit, the links go too by which it was enabled: a link to nothing
    would be left at each of its targets (`systemctl disable` removes them without the file, too: systemd 252)."""
    folder, _, name = path.rpartition("/")
    if folder == FOLDER and name.endswith((".service", ".mount")):
        host.execute(["systemctl", "disable", name])  # one that was never enabled is told, and is as wanted
        host.execute(["systemctl", "daemon-reload"])


def is_engine(name: str) -> bool:
    """Whether a unit of this name is an engine's."""
    return bool(_UNIT.fullmatch(name)) and name not in BOOT_UNITS


def read(host: Host, request: Request) -> Dict[str, Any]:
    """The text of one of hosttune's own files, null if it is not there."""
    return {"text": read_or_none(host, _own_file(request["path"]))}


def act(host: Host, request: Request) -> Dict[str, Any]:
    """systemctl VERB UNIT. Answer: rc, and what it said."""
    verb, unit = request["verb"], _own(request["unit"])
    if verb not in VERBS:
        raise Refused("%r is not one of %s" % (verb, ", ".join(VERBS)), unit)
    ran = host.execute(["systemctl", verb, unit], STOP_TIMEOUT)
    return {"rc": ran.rc, "said": (ran.err or ran.out).strip()}


_VERIFY = """\
import json, os, subprocess, sys, tempfile
asked = json.load(sys.stdin)
with tempfile.TemporaryDirectory(prefix="hosttune-verify-") as folder:
    path = os.path.join(folder, asked["unit"])
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as f:
        f.write(asked["text"])
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
print(json.dumps({"rc": done.returncode, "said": done.stderr.replace(path, asked["unit"])}))
"""


def verify(host: Host, request: Request) -> Dict[str, Any]:
    """What systemd-analyze says of a unit's text that is not installed: rc, said. Its exit code alone proves nothing:
    it is 0 for a line that was dropped, so any word is a fault. A scratch folder holds the text meanwhile."""
    unit, text = _own(request["unit"]), request["text"]
    asked = json.dumps({"unit": unit, "text": text}).encode("ascii")
    ran = host.run([sys.executable, "-I", "-c", _VERIFY], 90, asked)
    try:
        told: Dict[str, Any] = json.loads(ran.out)
    except ValueError:
        raise Refused(
            "systemd-analyze could not be asked: %s" % (ran.err.strip().splitlines() or ["no answer"])[-1],
            unit,
            "it is part of the package systemd",
        ) from None
    ours = [line for line in told["said"].splitlines() if line.startswith(unit + ":") or unit in line]
    return {"rc": told["rc"], "said": ours or ([told["said"].strip()] if told["rc"] and told["said"].strip() else [])}


def _own(unit: str) -> str:
    if not _UNIT.fullmatch(unit) or unit in BOOT_UNITS:
        raise Refused("%s is no unit of hosttune's" % unit, "request")
    return unit


def _own_file(path: str) -> str:
    if not _OWN_FILE.fullmatch(path):
        raise Refused("%s is no file of hosttune's" % path, "request")
    return path


DO: Dict[str, Callable[[Host, Request], Dict[str, Any]]] = {
    "look": look, "read": read, "put": put, "act": act, "verify": verify,
}  # fmt: skip


def serve(host: Host, request: Request) -> Dict[str, Any]:
    """One request {"do": NAME, ...}: its answer, and what was written on the way."""
    do: Optional[Callable[[Host, Request], Dict[str, Any]]] = DO.get(str(request.get("do")))
    if do is None:
        raise Refused("no such operation: %r" % request.get("do"), "request", "use one of %s" % ", ".join(sorted(DO)))
    return {"told": do(host, request), "effects": host.effects}
