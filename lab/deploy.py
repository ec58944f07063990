# SPDX-License-Identifier: Apache-2.0
"""Puts the hosttune of this checkout into a guest. It is not part of the image, so that an edit costs seconds."""

from __future__ import annotations

from pathlib import Path

from hosttune import zipapp
from lab.image import engine
from lab.machine import Machine

PROGRAM = "/usr/local/bin/hosttune"
LIBRARY = "/usr/local/lib/hosttune/lab"
LAUNCHER = f"""#!/usr/bin/python3
import sys
sys.path.insert(0, "{LIBRARY}")
from hosttune.__main__ import main
sys.exit(main())
"""
PLAN = "/etc/hosttune/lab.yml"
INVENTORY = """\
# The lab's host for `ansible-playbook -i`: written by lab.deploy at each start.
all:
  hosts:
    lab:
      ansible_host: lab
      ansible_user: root
      ansible_python_interpreter: /usr/bin/python3
      ansible_ssh_common_args: "-F {ssh_config}"
      ansible_control_path: {folder}/ansible # by itself Ansible would share one connection among all hosts called lab
      hosttune_poll: 5 # a look costs an emulated machine seconds
      hosttune:
        mode: {mode}
        knobs: {{profile: pcie-inference}}
        containers:
          "200": {{gpus: all, gpu: {gpu}, form: keep, restart: idle}}
        models:
          tiny: {{source: /{model}}}
        engines:
          tiny:
            in: "ct:200"
            engine: xllamacpp # llama.cpp's own server; it computes on the CPU
            venv: /{venv}
            model: tiny/tiny.gguf
            port: 30100
            listen: "0.0.0.0" # inside the container; the host measures it from outside
            args: {{n_ctx: "4096", n_parallel: "2", cpuparams.n_threads: "1", cpuparams_batch.n_threads: "1"}}
        bench: {{plan: {plan}, when: site}}
"""


def hosttune(machine: Machine) -> None:
    """Unpacked, as an installed one is: out of a zip each start would compile it anew, for seconds under emulation."""
    machine.write("/run/hosttune.zip", zipapp.build())
    unpack = 'rm -rf "$1" && mkdir -p "$1" && python3 -m zipfile -e /run/hosttune.zip "$1" && rm /run/hosttune.zip'
    machine.run("sh", "-c", unpack, "sh", LIBRARY, check=True)
    machine.write(LIBRARY + "/launcher", LAUNCHER, mode=0o755)
    machine.run("ln", "-sfT", LIBRARY + "/launcher", PROGRAM, check=True)  # a link, as site.yml makes one, and replaces
    machine.write(PLAN, Path(__file__).with_name("plan.yml").read_text())


def inventory(machine: Machine, mode: str = "plan", gpu: str = "required") -> Path:
    """An inventory file beside the guest's disk: settings, a container, a model, an engine in it, and a benchmark."""
    path = machine.folder / "inventory.yml"
    served = {"model": engine.MODEL, "venv": engine.VENV, "plan": PLAN}
    path.write_text(INVENTORY.format(folder=machine.folder, ssh_config=machine.ssh_config, mode=mode, gpu=gpu, **served))
    return path
