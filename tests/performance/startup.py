# SPDX-License-Identifier: Apache-2.0
"""What `python -m hosttune --version` costs beside `python -c pass`, with the same interpreter.

    python tests/performance/startup.py [RUNS]

The two are run in turn, so that whatever else the machine does hits both. The ratio of the medians is the figure to keep:
wanted is at most 2.5.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -m hosttune --version": ["-m", "hosttune", "--version"],
    "python -m hosttune --help": ["-m", "hosttune", "--help"],
}
WANT = 2.5


def seconds(argv: list[str]) -> float:
    """Wall time of one run."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main(runs: int) -> int:
    """Print a line a command; returns 1 if the version costs too much."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, argv in COMMANDS.items():
            taken[name].append(seconds(argv))
    base = statistics.median(taken["python -c pass"])
    print("Python %s, %d runs each, median" % (sys.version.split()[0], runs))
    for name, values in taken.items():
        median = statistics.median(values)
        print("%-30s %6.1f ms   ratio %.2f" % (name, median * 1000, median / base))
    ratio = statistics.median(taken["python -m hosttune --version"]) / base
    print("start-up ratio %.2f, want at most %.1f: %s" % (ratio, WANT, "ok" if ratio <= WANT else "too much"))
    return int(ratio > WANT)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 40))
