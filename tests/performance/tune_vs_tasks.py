# SPDX-License-Identifier: Apache-2.0
"""A no-change run of one `tune` task beside the same settings with stock modules task by task (stock.yml).

    python tests/performance/tune_vs_tasks.py [RUNS]            as root

Both run against this machine, whose PCI bus (eight GPUs), NUMA balancing and /etc/sysctl.d are private to the measurement,
through a local connection and through an sshd on loopback, with pipelining and a kept connection. Before the first run both
have brought the machine to the wanted state; a run that changes anything stops the measurement.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.kernel import view  # noqa: E402
from tests.kernel.fake_tree import FakeTrees  # noqa: E402

GPUS = 8
EMPTY = "- hosts: all\n  gather_facts: false\n  tasks: [{meta: noop}]\n"
TUNE = """\
- hosts: all
  gather_facts: false
  tasks:
    - hosttune.hosttune.tune:
        mode: apply
        knobs: {profile: pcie-inference}
"""


def play(playbook: Path, inventory: Path) -> tuple[float, str]:
    """Wall time and output of one run."""
    env = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory), str(playbook)]
    begin = time.perf_counter()
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    taken = time.perf_counter() - begin
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return taken, done.stdout


@contextmanager
def sshd(folder: Path) -> Iterator[str]:
    """An sshd of this mount namespace on loopback; gives the inventory variables that reach it."""
    for name in ("id", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = 20000 + os.getpid() % 20000
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/id.pub\nStrictModes no\n"
        "UsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nSubsystem sftp internal-sftp\n"
    )
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-q", "-f", folder / "config"])
    time.sleep(0.5)
    common = f"-o UserKnownHostsFile={folder}/known -o ControlPath={folder}/mux"
    yield (
        f"ansible_host=127.0.0.1 ansible_port={port} ansible_user=root ansible_ssh_private_key_file={folder}/id "
        f'ansible_ssh_common_args="{common}"'
    )
    subprocess.run(["ssh", "-o", f"ControlPath={folder}/mux", "-O", "exit", "127.0.0.1"], stderr=subprocess.DEVNULL)
    server.terminate()
    server.wait()


def measure(name: str, inventory: Path, folder: Path, runs: int) -> None:
    """Print one line for a connection."""
    plays = {"start-up": folder / "empty.yml", "tune": folder / "tune.yml", "tasks": ROOT / "tests/performance/stock.yml"}
    taken: dict[str, list[float]] = {key: [] for key in plays}
    for key in ("tune", "tasks"):
        play(plays[key], inventory)
    for _ in range(runs):
        for key, path in plays.items():
            seconds, told = play(path, inventory)
            if key != "start-up" and "changed=0" not in told:
                sys.exit("this run was to change nothing:\n" + told)
            taken[key].append(seconds)
    start, tune, tasks = (statistics.median(taken[key]) for key in plays)
    line = "%-6s start-up %.2f s   tune %.2f s   task by task %.2f s   whole run 1 : %.1f   above start-up 1 : %.1f"
    print(line % (name, start, tune, tasks, tasks / tune, (tasks - start) / (tune - start)))


def main(runs: int) -> None:
    """Arrange the machine and measure both connections."""
    reason = view.obstacle()
    if reason:
        sys.exit(reason)
    view.enter()
    fake = FakeTrees()
    fake.gpu_host(gpus=GPUS)
    fake.file("/proc/sys/kernel/numa_balancing", "1\n")
    for place in ("/etc/sysctl.d", "/run/lock", "/var/lib"):
        fake.folder(place, {})
    with tempfile.TemporaryDirectory() as temp:
        folder = Path(temp)
        (folder / "empty.yml").write_text(EMPTY)
        (folder / "tune.yml").write_text(TUNE)
        inventory = folder / "hosts.ini"
        python = "ansible_python_interpreter=/usr/bin/python3"
        print("%d GPUs, no change, %d runs each in turn, median" % (GPUS, runs))
        inventory.write_text("here ansible_connection=local %s\n" % python)
        measure("local", inventory, folder, runs)
        with sshd(folder) as variables:
            inventory.write_text("here %s %s\n" % (python, variables))
            measure("ssh", inventory, folder, runs)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
