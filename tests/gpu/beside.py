# SPDX-License-Identifier: Apache-2.0
"""What doctor, nvidia-smi and PyTorch say of the same fault, beside each other.

`python -m tests.gpu.beside [PYTHON]` as root on a machine with a GPU; PYTHON is one that has PyTorch. docs/doctor.md keeps its
output. Nothing of the machine is changed: faults are device programs of a cgroup, or words in an environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gpu import nodes
from tests.kernel import view
from tests.kernel.cgroup_device import DeviceCgroup, Rule

TORCH = "import torch; torch.zeros(1).cuda(); print('a tensor is on', torch.cuda.get_device_name(0))"


def major(driver: str) -> int:
    return next(
        int(line.split()[0]) for line in Path("/proc/devices").read_text().splitlines() if line.split()[1:] == [driver]
    )


def last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"GPU-[0-9a-f-]{36}", "GPU-...", lines[-1] if lines else "")[:230]


def told(group: DeviceCgroup, argv: list[str], env: dict[str, str], first: bool = False) -> str:
    words = [f"{key}={value}" for key, value in env.items()]
    done = group.run(["env", *words, *argv])
    text = done.stdout or done.stderr
    return (
        text.splitlines()[0][:230]
        if first and text
        else last(done.stdout if not done.returncode else done.stderr or done.stdout)
    )


def main() -> None:
    view.enter()
    python = sys.argv[1] if sys.argv[1:] else ""
    stubs = Path(tempfile.mkdtemp()) / "stubs"
    stubs.mkdir()
    (stubs / "stub.c").write_text("int cuInit(unsigned flags) { return 34; }\n")
    subprocess.run(
        ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", stubs / "libcuda.so.1", stubs / "stub.c"], check=True
    )
    uvm, caps = major("nvidia-uvm"), major("nvidia-caps")
    faults: list[tuple[str, list[Rule], dict[str, str]]] = [
        ("nothing", [], {}),
        (f"nvidia-uvm refused ({uvm}:*)", [Rule(uvm)], {}),
        ("nvidiactl refused (195:255)", [Rule(195, 255)], {}),
        ("nvidia0 refused (195:0)", [Rule(195, 0)], {}),
        (f"nvidia-caps refused ({caps}:*)", [Rule(caps)], {}),
        ("CUDA_VISIBLE_DEVICES=9", [], {"CUDA_VISIBLE_DEVICES": "9"}),
        ("a stub libcuda first", [], {"LD_LIBRARY_PATH": str(stubs)}),
    ]
    here = {"PYTHONPATH": os.getcwd()}
    for name, refuse, env in faults:
        with DeviceCgroup(refuse=refuse) as group:
            print(name)
            nodes.copy()
            print(
                "    doctor      "
                + told(group, [sys.executable, "-m", "hosttune", "doctor", "--ascii"], env | here, first=True)
            )
            print("    nvidia-smi  " + told(group, ["nvidia-smi", "-L"], env))
            if python:
                print("    PyTorch     " + told(group, [python, "-c", TORCH], env))


if __name__ == "__main__":
    main()
