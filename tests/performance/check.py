# SPDX-License-Identifier: Apache-2.0
"""What a whole `hosttune check` of an eight-GPU host costs beside `python -c pass`, with the same interpreter.

    tests/performance/check.py [RUNS]        as root

Every setting of an owner's profile (pcie-inference) and everything that is only reported, on real files: the machine's own /proc
and /sys, with eight GPUs bound over it. The runs are made in turn, so that whatever else the machine does hits all of them.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.kernel import view
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state

GPUS = 8
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "hosttune --version": ["-m", "hosttune", "--version"],
    "hosttune check": ["-m", "hosttune", "check"],
    "hosttune check -o json": ["-m", "hosttune", "check", "-o", "json"],
    "hosttune topo": ["-m", "hosttune", "topo"],
}


def seconds(argv: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Wall time and processor time of one run."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *argv], stdout=subprocess.DEVNULL, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begin, used


def main(runs: int) -> int:
    """Print a line a command."""
    view.enter()
    trees = FakeTrees()
    trees.gpu_host(GPUS)
    trees.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    private_state()
    Path("/etc/hosttune/profile.json").write_text(json.dumps({"knobs": {"profile": "pcie-inference"}}))
    told = subprocess.run([sys.executable, "-m", "hosttune", "check", "-o", "json"], capture_output=True, text=True)
    host = json.loads(told.stdout)["hosts"][0]
    # As installed: with bytecode, of its own here, since a checkout may be told to write none.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(view.scratch("bytecode"))
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for argv in COMMANDS.values():
        seconds(argv, env)
    for _ in range(runs):
        for name, argv in COMMANDS.items():
            taken[name].append(seconds(argv, env))
    print("Python %s, %d GPUs, %d settings, %d values, %d runs each in turn, median" % (
        sys.version.split()[0], GPUS, len(host["settings"]), len(host["findings"]), runs))  # fmt: skip
    base = [statistics.median(kind) for kind in zip(*taken["python -c pass"], strict=True)]
    for name, values in taken.items():
        wall, used = (statistics.median(kind) for kind in zip(*values, strict=True))
        print("%-24s %6.1f ms   ratio %5.2f      processor %6.1f ms   ratio %5.2f" % (
            name, wall * 1000, wall / base[0], used * 1000, used / base[1]))  # fmt: skip
    trees.undo()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
