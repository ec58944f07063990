# SPDX-License-Identifier: Apache-2.0
"""Puts the hosttune of this checkout into a guest. It is not part of the image, so that an edit costs seconds."""

from __future__ import annotations

from pathlib import Path

from hosttune import zipapp
from lab.machine import Machine

PROGRAM = "/usr/local/bin/hosttune"
LIBRARY = "/usr/local/lib/hosttune/lab"
LAUNCHER = f"""#!/usr/bin/python3
import sys
sys.path.insert(0, "{LIBRARY}")
from hosttune.__main__ import main
sys.exit(main())
"""
INVENTORY = """\
# The lab's host for `ansible-playbook -i`: written by lab.deploy at each start.
all:
  hosts:
    lab:
      ansible_host: lab
      ansible_user: root
      ansible_python_interpreter: /usr/bin/python3
      ansible_ssh_common_args: "-F {ssh_config}"
      hosttune:
        mode: {mode}
        knobs: {{profile: pcie-inference}}
        containers:
          "200": {{gpus: all, gpu: required, form: keep, restart: never}}
"""


def hosttune(machine: Machine) -> None:
    """Unpacked, as an installed one is: out of a zip each start would compile it anew, for seconds under emulation."""
    machine.write("/run/hosttune.zip", zipapp.build())
    unpack = 'rm -rf "$1" && mkdir -p "$1" && python3 -m zipfile -e /run/hosttune.zip "$1" && rm /run/hosttune.zip'
    machine.run("sh", "-c", unpack, "sh", LIBRARY, check=True)
    machine.run("rm", "-f", PROGRAM, check=True)  # site.yml makes a link of it, and what that leads to is not ours
    machine.write(PROGRAM, LAUNCHER, mode=0o755)


def inventory(machine: Machine, mode: str = "plan") -> Path:
    """An inventory file beside the guest's disk."""
    path = machine.folder / "inventory.yml"
    path.write_text(INVENTORY.format(ssh_config=machine.ssh_config, mode=mode))
    return path
