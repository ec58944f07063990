# SPDX-License-Identifier: Apache-2.0
"""Staged models on a machine with two NUMA nodes: their pages lie where the profile says, as the kernel itself shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hosttune import zipapp
from lab import deploy
from lab.machine import Machine

PROFILE = "/root/placement.json"
MODELS = {"over": "interleave", "bound": "node:1", "each": "per-node"}
MAKE = """\
import os
os.makedirs("/root/large")
with open("/root/large/m.gguf", "wb") as f:
    f.write(b"GGUF" + bytes([3, 0, 0, 0]) + bytes(16) + os.urandom(1 << 20) * 48)
"""
ABSTRACT = """\
import os
os.makedirs("/root/models--a--b/snapshots/" + "0" * 40)
os.mkdir("/root/models--a--b/blobs")
blob = "/root/models--a--b/blobs/" + "f" * 64
with open(blob, "wb") as f:
    f.write(b"GGUF" + bytes([3, 0, 0, 0]) + bytes(16))
    f.truncate(1 << 30)
os.symlink(blob, "/root/models--a--b/snapshots/" + "0" * 40 + "/m.gguf")
"""
"""A model of a gigabyte that takes no room: where the hub's hash is known, only the copy itself reads it."""
TIGHT = ("systemd-run", "--scope", "-q", "-p", "MemoryMax=64M")


def test_pages_lie_on_the_nodes_that_are_declared_and_a_cgroups_limit_counts(guest: Machine) -> None:
    deploy.hosttune(guest)
    guest.run("python3", "-c", MAKE, check=True)
    models = {name: {"source": "/root/large", "placement": placement} for name, placement in MODELS.items()}
    guest.write(PROFILE, json.dumps({"mode": "apply", "models": models}))
    # A copy is charged to the cgroup that it runs in, and would be killed by its limit, however much the machine has.
    refused = guest.run(*TIGHT, "hosttune", "stage", "add", "over", "--profile", PROFILE, timeout=300)
    assert "the cgroup of this process leaves" in refused.stdout, refused.stdout + refused.stderr
    assert guest.run("findmnt", "/dev/shm/models").returncode != 0
    for name in MODELS:
        done = guest.run("hosttune", "stage", "add", name, "--profile", PROFILE, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    told = guest.run("hosttune", "stage", "status", "--profile", PROFILE, "-o", "json", timeout=300)
    rows = json.loads(told.stdout)["hosts"][0]["findings"]
    where = {row["subject"]: row["have"] for row in rows if row["id"] == "HT510"}
    assert set(where) == {"over", "bound", "each", "each@node1"}, told.stdout
    assert "100% on node 1" in where["bound"] and "node 0" not in where["bound"]
    assert "100% on node 0" in where["each"] and "100% on node 1" in where["each@node1"]
    assert "on node 0" in where["over"] and "on node 1" in where["over"]
    assert not [row for row in rows if row["status"] in ("fail", "error")], told.stdout
    sums = guest.run("sha256sum", "/root/large/m.gguf", *("/dev/shm/models/%s/m.gguf" % name for name in where), check=True)
    assert len({line.split()[0] for line in sums.stdout.splitlines()}) == 1, sums.stdout


def test_inside_a_container_the_containers_limit_counts(guest: Machine) -> None:
    deploy.hosttune(guest)
    inside = ("pct", "exec", "200", "--")
    guest.run(*inside, "python3", "-c", ABSTRACT, check=True)
    guest.run(*inside, "sh", "-c", "cat > /root/hosttune", input=Path(zipapp.cached()["path"]).read_bytes(), check=True)
    guest.run("lxc-cgroup", "-n", "200", "memory.max", str(512 << 20), check=True)
    add = (*inside, "python3", "/root/hosttune", "stage", "add", "m", "--source", "/root/models--a--b/snapshots/" + "0" * 40)
    told = guest.run(*add, timeout=300)
    fits = re.search(r"1\.1 GB are wanted and (\d+) MB fit", told.stdout)  # by its cgroup, or by lxcfs, which shows its limit
    assert told.returncode == 1 and fits and 0 < int(fits[1]) <= 537, told.stdout + told.stderr
    assert guest.run(*inside, "findmnt", "/dev/shm/models").returncode != 0, "and nothing is made there"
    guest.run("lxc-cgroup", "-n", "200", "memory.max", "max", check=True)
    freed = guest.run(*add, "--dry-run", timeout=300)
    assert "HT501" in freed.stdout and "HT503" not in freed.stdout, freed.stdout + freed.stderr
