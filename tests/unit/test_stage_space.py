# SPDX-License-Identifier: Apache-2.0
"""How much memory a model may take, on machines on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hosttune.core.recording.replay import ReplayHost
from hosttune.core.stage import space

MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n"
ROOT, UNIT = "/sys/fs/cgroup", "/sys/fs/cgroup/system.slice/x.service"
SLICE = "/sys/fs/cgroup/system.slice"
ABSENT = {"errno": "ENOENT"}


def limit(folder: str, most: str, used: str = "0", cache: str = "0") -> dict[str, str]:
    """The files of a cgroup."""
    return {folder + "/memory.max": most, folder + "/memory.current": used, folder + "/memory.stat": "inactive_file " + cache}


@pytest.mark.parametrize(
    ("cgroup", "files", "room"),
    [
        ("/system.slice/x.service", {}, None),  # the top of a machine's tree has no memory.max
        ("/system.slice/x.service", limit(UNIT, "1000", "600", "100"), 500),
        ("/system.slice/x.service", {**limit(UNIT, "max"), **limit(SLICE, "900")}, 900),
        ("/system.slice/x.service", limit(ROOT, "800", "300"), 500),  # in a container the top is the container's own
        ("/", limit(ROOT, "800", "300"), 500),
        ("/", {}, None),
    ],
)
def test_the_tightest_limit_above_this_process_counts(cgroup: str, files: dict[str, str], room: int | None) -> None:
    absent = {folder + "/memory.max": ABSENT for folder in (ROOT, SLICE, UNIT)}
    absent[space.ARC] = ABSENT
    told = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "1:name=systemd:/\n0::%s\n" % cgroup, **absent, **files}
    seen = space.memory(ReplayHost({"files": told}))
    assert seen.cgroup == room and seen.room == (11 << 30 if room is None else room)


@pytest.mark.parametrize(("most", "room"), [("9223372036854771712", None), ("1000", 500)], ids=["no limit", "a limit"])
def test_a_limit_of_cgroup_v1_counts_too(most: str, room: int | None) -> None:
    top, own = "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/x"
    stat = "inactive_file 1\ntotal_inactive_file 60\ntotal_active_file 40\n"
    files = {own + "/memory.limit_in_bytes": most, own + "/memory.usage_in_bytes": "600", top + "/memory.limit_in_bytes": ABSENT,
             own + "/memory.stat": stat, ROOT + "/memory.max": ABSENT,
             "/proc/meminfo": MEMINFO, "/proc/self/cgroup": "4:cpu,memory:/x\n1:name=systemd:/\n0::/\n", space.ARC: ABSENT}
    assert space.memory(ReplayHost({"files": files})).cgroup == room


def test_what_zfs_gives_back_counts_and_what_engines_need_does_not_and_the_sum_says_so() -> None:
    arcstats = "13 1 0x01 123 33456 1 2\nname type data\nsize 4 4294967296\nc_min 4 1073741824\n"
    told = {"/proc/meminfo": MEMINFO, "/proc/self/cgroup": "0::/\n", ROOT + "/memory.max": ABSENT, space.ARC: arcstats}
    seen = space.memory(ReplayHost({"files": told}))
    assert seen.room == (11 << 30) + (3 << 30)
    less = replace(seen, engines=4 << 30)
    assert less.room == 10 << 30
    refused = space.fit(12 << 30, 0, 0, less)
    assert "12.9 GB are wanted and 10.7 GB fit" in refused and "2.1 GB too much" in refused
    for part in ("12.9 GB available", "3.2 GB in ZFS's cache", "a reserve of 1.1 GB", "4.3 GB for engines"):
        assert part in refused


@pytest.mark.parametrize(
    ("text", "rate"), [("2GB/s", 2e9), ("500 MB/s", 5e8), ("1.5G", 1.5e9), ("800k", 8e5), ("1TB/s", 1e12)]
)
def test_rate_is_read_as_a_person_writes_it(text: str, rate: float) -> None:
    assert space.rate_of(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "7", "7B/s", "0GB/s", "-1G", "2GiB/s", "2 G B", "2Gb/s", "1e9", "G"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate such as 2GB/s"):
        space.rate_of(text)
