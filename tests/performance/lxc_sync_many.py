# SPDX-License-Identifier: Apache-2.0
"""Fifty containers of one host: what `lxc sync` of all of them asks, writes and takes, beside one after the other.

    python tests/performance/lxc_sync_many.py [CONTAINERS]            as root

The containers' files lie on the lab's /etc/pve (a FUSE file system), /proc/devices and /dev are private to the measurement.
A fifth of them has stale numbers, the rest is right: devN, path rules, right numbers, no GPU at all. Counted are the passes
over /proc/devices, questions, writes and restarts; the two ways are run in turn, and the ratio of the medians is the figure.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from hosttune.core.door.host import Ran  # noqa: E402
from hosttune.core.door.live import LiveHost  # noqa: E402
from hosttune.core.lxc import fleet, sync  # noqa: E402
from hosttune.core.lxc.needs import Wanted  # noqa: E402
from hosttune.core.model import Report  # noqa: E402
from tests.kernel import view  # noqa: E402
from tests.kernel.fake_tree import FakeTrees  # noqa: E402
from tests.kernel.nodes import GpuNodes  # noqa: E402
from tests.kernel.proxmox import Proxmox  # noqa: E402

NODES = ("nvidia0", "nvidiactl", "nvidia-uvm")
BINDS = "".join(f"lxc.mount.entry: /dev/{name} dev/{name} none bind,optional,create=file\n" for name in NODES)
RULE = "lxc.cgroup2.devices.allow: {} rwm\n"
KINDS = {
    "stale": RULE.format("c 195:*") + RULE.format("c 509:*") + BINDS,
    "numbers": RULE.format("c 195:*") + RULE.format("c 511:*") + BINDS,
    "paths": "".join(RULE.format(f"/dev/{name}") for name in NODES) + BINDS,
    "devN": "".join(f"dev{n}: /dev/{name},mode=0666\n" for n, name in enumerate(NODES)),
    "no GPU": "lxc.apparmor.profile: unconfined\n",
}
RUNS = 5


class Counting(LiveHost):
    """This machine, and how often it was asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def read_bytes(self, path: str, limit: int = 0) -> bytes:
        self.asked["/proc/devices" if path == "/proc/devices" else "file"] += 1
        return super().read_bytes(path, limit)

    def run(self, argv: Sequence[str], timeout: float = 20, stdin: bytes = b"") -> Ran:
        self.asked[argv[0]] += 1
        return super().run(argv, timeout, stdin)


Way = Callable[[LiveHost, Sequence[str]], list[Report]]


def together(host: LiveHost, ids: Sequence[str]) -> list[Report]:
    return fleet.sync_each(host, {ct_id: fleet.Order(Wanted) for ct_id in ids})


def one_by_one(host: LiveHost, ids: Sequence[str]) -> list[Report]:
    return [sync.sync(host, ct_id, Wanted()) for ct_id in ids]


def measure(way: Way, ids: Sequence[str]) -> tuple[float, Counting, list[Report]]:
    """Milliseconds for each container, what was asked, what was said. Stops the measurement when a container failed."""
    host = Counting()
    begin = time.perf_counter()
    reports = way(host, ids)
    taken = (time.perf_counter() - begin) * 1000 / len(ids)
    wrong = [f.summary for report in reports for f in report.findings if f.status in ("fail", "error")]
    if wrong:
        sys.exit("\n".join(wrong))
    return taken, host, reports


def line(name: str, taken: float, host: Counting, reports: Sequence[Report], base: float) -> str:
    commands = sum(count for name, count in host.asked.items() if name not in ("/proc/devices", "file"))
    restarts = sum(action.name == "restart" for report in reports for action in report.actions)
    return "%-28s %6.1f ms   ratio %5.2f   /proc/devices %2d   files %3d   commands %3d   written %2d   restarts %d" % (
        name, taken, taken / base, host.asked["/proc/devices"], host.asked["file"], commands,
        sum(report.changed for report in reports), restarts)  # fmt: skip


def main(containers: int) -> int:
    """Print the table; returns 1 if the devices were looked at more than once, or a container was restarted."""
    view.enter()
    trees, nodes = FakeTrees(), GpuNodes()
    proxmox = Proxmox()
    try:
        trees.proc_devices()
        nodes.make_all(1)
        ids = [str(1000 + n) for n in range(containers)]
        texts = list(KINDS.values())
        for n, ct_id in enumerate(ids):
            proxmox.conf(int(ct_id)).write_text("arch: amd64\nhostname: ct%s\nmemory: 512\n%s" % (ct_id, texts[n % len(texts)]))
        print("%d containers on /etc/pve, one in %d with stale numbers; a container, median of %d runs in turn" % (
            containers, len(KINDS), RUNS))  # fmt: skip
        healing = measure(together, ids)
        taken: dict[Way, list[float]] = {together: [], one_by_one: []}
        last: dict[Way, tuple[float, Counting, list[Report]]] = {}
        for _ in range(RUNS):
            for way in taken:
                last[way] = measure(way, ids)
                taken[way].append(last[way][0])
        base = statistics.median(taken[together])
        print(line("all at once, healing", *healing, base))
        print(line("all at once, nothing to do", base, *last[together][1:], base))
        print(line("one by one, nothing to do", statistics.median(taken[one_by_one]), *last[one_by_one][1:], base))
        passes = max(run[1].asked["/proc/devices"] for run in (healing, last[together]))
        restarts = any(action.name == "restart" for report in healing[2] for action in report.actions)
        print("passes over /proc/devices for all: %d, want 1; restarts: %s" % (passes, "some" if restarts else "none"))
        return int(passes != 1 or restarts)
    finally:
        proxmox.undo()
        nodes.clear()
        trees.undo()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
