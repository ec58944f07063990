# SPDX-License-Identifier: Apache-2.0
"""How long a lost register stays lost: from the kernel's event to MaxReadReq of eight GPUs written and read back.

    tests/performance/watch.py [RUNS]        as root

The kernel announces a device for real (`add` written to a `uevent` file), the watch is the unit's own program, and setpci writes
to a config space of plain files. A reset that nobody announces is played as what it is: registers are other, no file was
written, and then a node is closed. Beside them: the same repair by `hosttune apply`, typed the moment it is lost. The timer would
have found it half an hour later, on average, and only told it.

Last, what it costs while nothing is lost: CPU time of the watch while all nodes are opened and closed ten times a second, and as
fast as one program can; and how long an open and close take with and without it.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.kernel import view
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.mission import private_state
from tests.kernel.nodes import GpuNodes
from tests.kernel.test_watch import WATCH, announce, close_a_node

GPUS = 8
SECONDS = 20
OFTEN = "from hosttune.core.unattended import registers\nregisters.TIMES = 1 << 30\n"
"""Else the watch takes the losses of this program for somebody's who will not give way."""
PROFILE = {"mode": "apply", "knobs": {"pcie-max-read-request": "4096"}}


def lose(configs: list[Path]) -> None:
    for path in configs:
        with path.open("r+b") as config, mmap.mmap(config.fileno(), 0) as space:  # of a mapping nobody hears
            space[0x68:0x6A] = (0x293F).to_bytes(2, "little")


def wait(configs: list[Path]) -> None:
    """Until the high byte of each Device Control is that of 4096."""
    for path in configs:
        with path.open("rb") as config:
            while os.pread(config.fileno(), 1, 0x69) != b"\x59":
                time.sleep(0.0005)


def spent(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    words = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


NODES = [*("nvidia%d" % n for n in range(GPUS)), "nvidiactl"]


def close_all(seconds: float, pause: float) -> float:
    """Open and close all nodes again and again. Seconds that one open and close took, the pauses left out."""
    closes, end, paused = 0, time.monotonic() + seconds, 0.0
    begin = time.monotonic()
    while time.monotonic() < end:
        for name in NODES:
            close_a_node(name)
        closes += len(NODES)
        at = time.monotonic()
        if pause:
            time.sleep(pause)
        paused += time.monotonic() - at
    return (time.monotonic() - begin - paused) / closes


def main(runs: int) -> int:
    """Print the medians."""
    view.enter()
    trees = FakeTrees()
    trees.gpu_host(GPUS)
    trees.file("/proc/cmdline", "root=/dev/sda1 ro quiet\n")
    private_state()
    Path("/etc/hosttune/profile.json").write_text(json.dumps(PROFILE))
    configs = sorted(trees.pci(trees.functions(GPUS)).glob("devices/*/config"))
    for name in NODES:
        GpuNodes().make(name, 1, 3)
    watcher = subprocess.Popen([sys.executable, "-c", OFTEN + WATCH], stdout=subprocess.DEVNULL, env=dict(os.environ))
    wait(configs)
    apply = [sys.executable, "-m", "hosttune", "apply", "-o", "json"]
    ways: dict[str, Callable[[], object]] = {
        "watch, on the event": announce,
        "watch, on a node's close": close_a_node,
        "hosttune apply, typed at once": lambda: subprocess.run(apply, stdout=subprocess.DEVNULL),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs):
        for name, times in taken.items():
            time.sleep(3)  # all looks on what was before are over
            lose(configs)
            begin = time.perf_counter()
            ways[name]()
            wait(configs)
            times.append(time.perf_counter() - begin)
    base = statistics.median(taken["watch, on the event"])
    print("%d GPUs lost their MaxReadReq, %d runs each in turn, median until all are back" % (GPUS, runs))
    for name, times in taken.items():
        print("%-32s %6.0f ms   ratio %.1f" % (name, statistics.median(times) * 1000, statistics.median(times) / base))
    time.sleep(3)
    for what, pause in (("ten times a second", 0.1), ("without a pause", 0.0)):
        before = spent(watcher.pid)
        each = close_all(SECONDS, pause)
        told = "CPU of the watch in %d s, all nodes closed %-18s: %.2f s" % (SECONDS, what, spent(watcher.pid) - before)
        print(told)
    watcher.terminate()
    watcher.wait()
    print("an open and close: %.2f us, without the watch %.2f us" % (each * 1e6, close_all(SECONDS, 0.0) * 1e6))
    trees.undo()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
