# SPDX-License-Identifier: Apache-2.0
"""`pct`: list, status, config, pending, set, unlock, start, stop, shutdown, reboot, exec, push.

Texts and exit statuses are PVE's where they are known: 0, the errno of what failed, else 255.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence

from . import conf, guest, ha, power, setting
from .guest import Failure, warn

PATH = "/sbin:/bin:/usr/sbin:/usr/bin"
USAGE = "ERROR: unknown command 'pct {}'\nusage: pct list|status|config|pending|set|unlock|start|stop|shutdown|reboot|exec|push"


def _options(words: Sequence[str], flags: Sequence[str] = ()) -> dict[str, str]:
    """`--key value`, `--key=value`, `-key value`; a flag may stand alone. Raises Failure."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest:
        option = re.fullmatch(r"--?([a-z][a-z0-9_-]*)(?:=(.*))?", rest.pop(0), re.IGNORECASE | re.DOTALL)
        if option is None:
            raise Failure("400 too many arguments")
        if option[2] is not None:
            found[option[1]] = option[2]
        elif option[1] in flags and not (rest and rest[0] in ("0", "1")):
            found[option[1]] = "1"
        elif rest:
            found[option[1]] = rest.pop(0)
        else:
            raise Failure(f"Option {option[1]} requires an argument\n400 unable to parse option")
    return found


def _known(options: dict[str, str], *names: str) -> None:
    for name in options:
        if name not in names:
            raise Failure(f"Unknown option: {name}\n400 unable to parse option")


def _list() -> None:
    rows = [(vmid, guest.load(vmid)) for vmid in guest.vmids()]
    if rows:
        print("%-10s %-10s %-12s %-20s" % ("VMID", "Status", "Lock", "Name"))
    for vmid, config in rows:
        state = "running" if guest.running(vmid) else "stopped"
        print("%-10s %-10s %-12s %-20s" % (vmid, state, config.get("lock"), config.get("hostname") or f"CT{vmid}"))


def _status(vmid: int, words: Sequence[str]) -> None:
    _known(_options(words, ("verbose",)), "verbose")
    guest.load(vmid)
    print(f"status: {'running' if guest.running(vmid) else 'stopped'}")


def _config(vmid: int, words: Sequence[str]) -> None:
    options = _options(words, ("current",))
    _known(options, "current", "snapshot")
    config = guest.load(vmid)
    section = config.main
    if name := options.get("snapshot"):
        if name not in config.snapshots:
            raise Failure(f"snapshot '{name}' does not exist")
        section = config.snapshots[name]
    elif options.get("current", "0") != "1":
        guest.apply_pending(config)
    values = dict(section.values)
    if section.description:
        values["description"] = conf.encode(section.description)
    for key, value in [*sorted(values.items()), *section.raw]:
        print(f"{key}: {value}".encode("latin-1", "replace").decode("latin-1"))


def _pending(vmid: int, words: Sequence[str]) -> None:
    _known(_options(words))
    config = guest.load(vmid)
    doomed = re.split(r"[,; ]+", config.pending.values.get("delete", ""))
    for key in sorted(set(config.main.values) | set(config.pending.values) - {"delete"}):
        if key in doomed:
            print(f"del {key}: {config.get(key)}")
        elif key in config.pending.values:
            if key in config.main.values:
                print(f"cur {key}: {config.get(key)}")
            print(f"new {key}: {config.pending.values[key]}")
        else:
            print(f"cur {key}: {config.get(key)}")


def _set(vmid: int, words: Sequence[str]) -> None:
    options = _options(words)
    delete, revert = ([key for key in re.split(r"[,; ]+", options.pop(name, "")) if key] for name in ("delete", "revert"))
    digest = options.pop("digest", "")
    if not (options or delete or revert):
        raise Failure("400 no options specified")
    setting.change(vmid, options, delete, revert, digest)


def _task(action: Callable[[], None]) -> None:
    """A task that fails has told why; its status is 255, whatever the errno was."""
    try:
        action()
    except Failure as refusal:
        raise Failure(str(refusal))


def _shutdown(vmid: int, words: Sequence[str]) -> None:
    options = _options(words, ("forceStop",))
    _known(options, "timeout", "forceStop")
    guest.load(vmid)
    if guest.running(vmid) and ha.managed(vmid):
        return ha.request(vmid, "stop", options.get("timeout", "60"))
    return _task(lambda: power.shutdown(vmid, int(options.get("timeout", "60")), options.get("forceStop") == "1"))


def _reboot(vmid: int, words: Sequence[str]) -> None:
    """Knows nothing of HA."""
    options = _options(words)
    _known(options, "timeout")
    guest.load(vmid)
    _task(lambda: power.reboot(vmid, int(options.get("timeout", "60"))))


def _start(vmid: int, words: Sequence[str]) -> None:
    options = _options(words, ("debug",))
    _known(options, "debug")
    guest.load(vmid)
    if not guest.running(vmid) and ha.managed(vmid):
        guest.need_quorum()
        return ha.request(vmid, "start")
    return _task(lambda: power.start(vmid, options.get("debug") == "1"))


def _stop(vmid: int, words: Sequence[str]) -> None:
    _known(_options(words))
    guest.load(vmid)
    if guest.running(vmid) and ha.managed(vmid):
        return ha.request(vmid, "stop", "0")
    return _task(lambda: power.stop(vmid))


def _exec(vmid: int, words: Sequence[str]) -> None:
    """Becomes lxc-attach, so the status is the command's; the environment is kept, less PATH."""
    end = words.index("--") if "--" in words else -1
    own, command = words[: max(end, 0)], words[end + 1 :]
    options = _options(own, ("keep-env",))
    _known(options, "keep-env")
    guest.load(vmid)
    if not command:
        raise Failure("missing command")
    clear = [] if options.get("keep-env", "1") == "1" else ["--clear-env"]
    sys.stdout.flush()
    os.environ["PATH"] = PATH
    os.execvp("lxc-attach", ["lxc-attach", "-n", str(vmid), *clear, "--", *command])


def _push(vmid: int, words: Sequence[str]) -> None:
    """Copy a file in, under the lock. That the copy failed is printed and *not* in the exit status."""
    if len(words) < 2:
        raise Failure("400 not enough arguments")
    source, target = words[:2]
    options = _options(words[2:])
    _known(options, "perms", "user", "group")
    guest.load(vmid)
    with guest.locked(vmid):
        if not guest.running(vmid):
            raise Failure("can only push files to a running CT")
        try:
            data = open(source, "rb").read()
        except OSError:
            warn(f"failed to open {source} for reading")
            return
        import subprocess

        argv = ["lxc-attach", "-n", str(vmid), "--", "/bin/sh", "-c", 'cat >"$1"', "push", target]
        done = subprocess.run(argv, input=data, capture_output=True)
        steps = [("chmod", options.get("perms")), ("chown", options.get("user")), ("chgrp", options.get("group"))]
        for tool, wanted in steps:
            if done.returncode == 0 and wanted:
                done = subprocess.run(["lxc-attach", "-n", str(vmid), "--", tool, wanted, target], capture_output=True)
        if done.returncode != 0:
            warn(f"failed to create file: {target}: {done.stderr.decode(errors='replace').strip().rpartition(': ')[2]}")


COMMANDS: dict[str, Callable[[int, Sequence[str]], None]] = {
    "status": _status, "config": _config, "pending": _pending, "set": _set, "start": _start, "stop": _stop,
    "shutdown": _shutdown, "reboot": _reboot, "exec": _exec, "push": _push,
}  # fmt: skip


def main(argv: list[str]) -> int:
    try:
        if os.geteuid() != 0:
            raise Failure("please run as root", 1)
        if argv[:1] == ["list"]:
            _list()
            return 0
        if not argv or argv[0] not in {*COMMANDS, "unlock"}:
            raise Failure(USAGE.format(" ".join(argv[:1])))
        if len(argv) < 2:
            raise Failure("400 not enough arguments")
        if not re.fullmatch(r"[1-9]\d{2,8}", argv[1]):
            raise Failure("400 Parameter verification failed.\nvmid: type check ('integer') failed - "
                          f"got '{argv[1]}'")  # fmt: skip
        if argv[0] == "unlock":
            guest.load(int(argv[1]))
            setting.unlock(int(argv[1]))
        else:
            COMMANDS[argv[0]](int(argv[1]), argv[2:])
    except Failure as refusal:
        warn(str(refusal))
        return refusal.status
    return 0
