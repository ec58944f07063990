# SPDX-License-Identifier: Apache-2.0
"""What a whole doctor costs beside a bare cuInit and nvmlInit in one fresh process, side by side in one run.

`python -m tests.performance.doctor` as root on a machine with a GPU. Medians of seven, after one run that warms the caches.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

BARE = "import ctypes as c; print(c.CDLL('libcuda.so.1').cuInit(0), c.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
RUNS = 7


def seconds(argv: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.perf_counter() - start


def main() -> None:
    ways = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "a bare cuInit and nvmlInit": [sys.executable, "-c", BARE],
        "hosttune doctor": [sys.executable, "-m", "hosttune", "doctor"],
        "hosttune doctor --deep": [sys.executable, "-m", "hosttune", "doctor", "--deep"],
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(RUNS + 1):
        for name, argv in ways.items():
            took = seconds(argv)
            times[name] += [took] if turn else []
    medians = {name: statistics.median(took) for name, took in times.items()}
    bare = medians["a bare cuInit and nvmlInit"]
    for name, took in medians.items():
        print(f"{name:28} {took:6.2f} s   {took - bare:+6.2f} s beside the bare calls   {took / bare:5.2f} times")


if __name__ == "__main__":
    main()
