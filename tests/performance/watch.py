# SPDX-License-Identifier: Apache-2.0
"""How long a lost register stays lost: from the kernel's event to MaxReadReq of eight GPUs written and read back.

    tests/performance/watch.py [RUNS]        as root

The kernel announces a device for real (`add` written to a `uevent` file), the watch is the unit's own program, and setpci writes
to a config space of plain files. Beside it: the same repair by `hosttune apply`, typed the moment it is lost. The timer would
have found it half an hour later, on average, and only told it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.kernel import view
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.test_watch import WATCH, announce

GPUS = 8
PROFILE = {"mode": "apply", "knobs": {"pcie-max-read-request": "4096"}}


def lose(configs: list[Path]) -> None:
    for path in configs:
        with path.open("r+b") as config:
            config.seek(0x68)
            config.write((0x293F).to_bytes(2, "little"))


def wait(configs: list[Path]) -> None:
    """Until the high byte of each Device Control is that of 4096."""
    for path in configs:
        with path.open("rb") as config:
            while os.pread(config.fileno(), 1, 0x69) != b"\x59":
                time.sleep(0.0005)


def main(runs: int) -> int:
    """Print the medians."""
    view.enter()
    trees = FakeTrees()
    trees.gpu_host(GPUS)
    trees.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    private_state()
    Path("/etc/hosttune/profile.json").write_text(json.dumps(PROFILE))
    configs = sorted(trees.pci(trees.functions(GPUS)).glob("devices/*/config"))
    watcher = subprocess.Popen([sys.executable, "-c", WATCH], stdout=subprocess.DEVNULL, env=dict(os.environ))
    wait(configs)
    taken: dict[str, list[float]] = {"watch, on the event": [], "hosttune apply, typed at once": []}
    for _ in range(runs):
        for name, times in taken.items():
            time.sleep(0.3)
            lose(configs)
            begin = time.perf_counter()
            if name.startswith("watch"):
                announce()
                wait(configs)
            else:
                subprocess.run([sys.executable, "-m", "hosttune", "apply", "-o", "json"], stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - begin)
    watcher.terminate()
    watcher.wait()
    base = statistics.median(taken["watch, on the event"])
    print("%d GPUs lost their MaxReadReq, %d runs each in turn, median until all are back" % (GPUS, runs))
    for name, times in taken.items():
        print("%-32s %6.0f ms   ratio %.1f" % (name, statistics.median(times) * 1000, statistics.median(times) / base))
    trees.undo()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
