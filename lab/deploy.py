# SPDX-License-Identifier: Apache-2.0
"""Puts the hosttune of this checkout into a guest. It is not part of the image, so that an edit costs seconds."""

from __future__ import annotations

from pathlib import Path

from hosttune import zipapp
from lab.image import engine
from lab.machine import Machine

PROGRAM = "/usr/local/bin/hosttune"
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
      hosttune_async: 0 # nothing here takes long, and each look at a detached task costs an emulated machine seconds
      hosttune:
        mode: {mode}
        knobs: {{profile: pcie-inference, nvidia-persistence: leave}}  # the played driver has no daemon
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
    """As site.yml installs it (playbooks/tasks/command.yml), which then finds it there."""
    made = zipapp.cached()
    path = "/usr/local/lib/hosttune/%s/hosttune" % made["version"]
    machine.write(path, Path(made["path"]).read_bytes(), mode=0o755)
    machine.run("ln", "-sfT", path, PROGRAM, check=True)
    machine.write(PLAN, Path(__file__).with_name("plan.yml").read_text())


def inventory(machine: Machine, mode: str = "plan", gpu: str = "required") -> Path:
    """An inventory file beside the guest's disk: settings, a container, a model, an engine in it, and a benchmark."""
    path = machine.folder / "inventory.yml"
    served = {"model": engine.MODEL, "venv": engine.VENV, "plan": PLAN}
    path.write_text(
        INVENTORY.format(folder=machine.folder, ssh_config=machine.ssh_config, mode=mode, gpu=gpu, **served)
    )
    return path
