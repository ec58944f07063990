# SPDX-License-Identifier: Apache-2.0
"""`python -m lab up|ssh|reboot|break|down|status`: the lab for a person; `make lab-up` and the others call it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab import LabError, accel, cache, cases, deploy, needs, say, snapshot
from lab.image.build import Image, image, recipe_hash
from lab.machine import Machine

NAME = "lab"
"""The one guest that a person has; tests name theirs otherwise."""
FIRST = {
    "hosttune doctor --ct 200": "why",
    "hosttune lxc sync 200": "the container: its config, and live",
    "hosttune apply --dry-run": "the host's settings",
}
"""What a newcomer runs in a broken guest, and what for: as README.md and docs/lab.md have it."""


def up(args: argparse.Namespace) -> None:
    """Start it: as it was left, or fresh, resumed from a snapshot of its first boot."""
    needs.to_run(cache())
    machine = _existing()
    if machine is not None and machine.alive():
        say("it is up already")
    elif machine is not None and machine.disk.exists():
        say("booting it from its disk, as it was switched off: about half a minute under emulation")
        machine.start()
        machine.settle()
    else:
        machine = _fresh()
    _ready(machine)


def ssh(args: argparse.Namespace) -> None:
    """A shell in it, or one command."""
    machine = _running()
    terminal = ["-t"] if sys.stdin.isatty() else []
    os.execvp("ssh", ["ssh", "-F", str(machine.ssh_config), *terminal, "lab", *args.command])


def reboot(args: argparse.Namespace) -> None:
    """Reboot it: the guest shuts down, and a fresh QEMU goes on with its disk."""
    machine = _running()
    before = _uvm(machine)
    say("rebooting it: about half a minute under emulation")
    began = time.monotonic()
    machine.reboot(append=args.append)
    machine.settle()
    seconds = time.monotonic() - began
    say("up again after %.0f s; nvidia-uvm has major %s, before the reboot %s" % (seconds, _uvm(machine), before))


def break_(args: argparse.Namespace) -> None:
    """Break it in a way that real hosts broke. `founding` begins with a fresh guest."""
    if args.case not in cases.CASES:
        cases.apply(args.case, Machine(NAME, Image(Path())))
    machine = _fresh() if args.case == "founding" else _running()
    if args.case == "founding":
        deploy.hosttune(machine)
    if cases.CASES[args.case].reboot:
        say("rebooting it: about half a minute under emulation")
    say("done: " + cases.apply(args.case, machine).broken)
    _ready(machine)


def down(args: argparse.Namespace) -> None:
    """Switch it off and throw its disk away; the image stays in the cache."""
    machine = _existing()
    if machine is None:
        say("there is no guest")
    else:
        machine.destroy()
        say("it is gone, with its disk; the next 'make lab-up' starts afresh")


def status(args: argparse.Namespace) -> None:
    """One line for each guest of this machine, those of tests too."""
    found = False
    for folder in sorted((cache() / "guests").glob("*/guest.json")):
        found = True
        guest = json.loads(folder.read_text())
        machine = Machine(folder.parent.name, Image(Path(guest["image"])))
        state = "runs" if machine.alive() else "is off"
        current = "" if Path(guest["image"]).name == recipe_hash() else ", of an image that differs from this checkout"
        line = (machine.folder.name, state, guest["accel"]["name"], current, machine.ssh_config)
        sys.stdout.write("%s %s (%s)%s; ssh -F %s lab\n" % line)
    if not found:
        sys.stdout.write("no guest; 'make lab-up' starts one\n")


def _fresh() -> Machine:
    current = image()
    how = accel.choose(current.kernel)
    if how.name == "kvm":
        say("it runs by KVM: everything below is faster than it says")
    else:
        say("it is emulated (%s): expect a reboot to take half a minute, and Python to be ten times as slow" % how.why)
    return snapshot.resume(NAME, current)


def _existing() -> Machine | None:
    folder = cache() / "guests" / NAME
    try:
        guest = json.loads((folder / "guest.json").read_text())
    except OSError:
        return None
    return Machine(NAME, Image(Path(guest["image"])))


def _running() -> Machine:
    machine = _existing()
    if machine is None or not machine.alive():
        raise LabError("the guest does not run: 'make lab-up' starts it")
    return machine


def _uvm(machine: Machine) -> str:
    return machine.run("sh", "-c", cases.UVM_MAJOR).stdout.strip() or "none"


def _ready(machine: Machine) -> None:
    deploy.hosttune(machine)
    inventory = deploy.inventory(machine)
    sys.stdout.write(
        "The lab is up: node pve with eight GPUs and container 200; nvidia-uvm has major %s.\n"
        "This checkout's hosttune is installed there.\n"
        "  make lab-ssh                                a shell there; then:\n"
        "%s"
        "  .venv/bin/ansible-playbook -i %s site.yml\n"
        "                                              from here: the same and more, once the `mode: plan` in it is `apply`\n"
        % (_uvm(machine), "".join("    %-42s# %s\n" % row for row in FIRST.items()), inventory)
    )


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    table: dict[str, Callable[[argparse.Namespace], None]] = {
        "up": up, "ssh": ssh, "reboot": reboot, "break": break_, "down": down, "status": status,
    }  # fmt: skip
    for name, function in table.items():
        command = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
        command.set_defaults(run=function)
        if name == "ssh":
            command.add_argument("command", nargs=argparse.REMAINDER)  # its options are its own
        if name == "reboot":
            command.add_argument("append", nargs="?", default="", help="words for the kernel, e.g. hosttune=off")
        if name == "break":
            command.add_argument("case", nargs="?", default="", help="leave it out for a list")
    args = parser.parse_args(argv)
    try:
        args.run(args)
    except LabError as e:
        say(str(e))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
