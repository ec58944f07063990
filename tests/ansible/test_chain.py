# SPDX-License-Identifier: Apache-2.0
"""The whole chain on a machine without GPU and without Proxmox VE, through Ansible over a real ssh: a Debian with systemd, a
model into memory, a real engine, go or no-go, a benchmark, its report, a second run, losses mended, all taken back.

One machine for the whole module, since a boot and a first run take their time: each test says what state it starts from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from tests.ansible.conftest import Ansible
from tests.kernel import serving, sshd
from tests.kernel.conftest import _cannot, _need_tools
from tests.kernel.container import Container

VENV, SOURCE, PORT = "/opt/hosttune-engine", "/srv/models/tiny", 30100
UNIT = "hosttune-tiny.service"
COMMAND = "/usr/local/bin/hosttune"
RESULTS = "var/lib/hosttune/results"
SHORT = """\
name: short
prompts: {fib: "Write a Python function that returns the n-th Fibonacci number."}
max_tokens: [96]
concurrency: [1, 2]
trials: 2
warm_up: 1
"""
LATE = """\
name: late
prompts: {fib: "Write a Python function that returns the n-th Fibonacci number."}
max_tokens: [3800]
trials: 1
warm_up: 0
timeout: 2
"""
"""More than the tiny model can say in that time."""
OWN = ("/proc", "/sys", "/run", "/var/log", "/var/cache", "/var/lib/systemd", "/root/.ansible", "/root/.ansible_async")
"""What the machine itself and Ansible write at any time."""


@dataclass
class Chain(Ansible):
    """The machine, and Ansible on another one that reaches it by ssh."""

    ssh: sshd.SshTarget = field(kw_only=True)

    @property
    def machine(self) -> Container:
        """It, as its owner sees it."""
        return self.ssh.container

    def inventory(self, hosttune: dict[str, Any]) -> str:
        there = {
            "ansible_host": "target",
            "ansible_ssh_common_args": "-F %s -o ControlPath=%s/cm" % (self.ssh.config, self.folder),
            "ansible_python_interpreter": "/usr/bin/python3",
            **({"hosttune": hosttune} if hosttune else {}),
        }
        path = self.folder / "hosts.yml"
        path.write_text(yaml.safe_dump({"all": {"hosts": {"there": there}}}))
        return str(path)

    def profile(self, mode: str, plan: str = "short", when: str = "site") -> dict[str, Any]:
        """As inventory/local/hosts.yml has it, with one thread in place of all."""
        args = {"n_ctx": "4096", "n_parallel": "1", "cpuparams.n_threads": "1"}
        engine = {"in": "host", "engine": "xllamacpp", "venv": VENV, "model": "tiny/tiny.gguf", "port": PORT, "args": args}
        return {
            "mode": mode,
            "knobs": {"profile": "report-only"},
            "models": {"tiny": {"source": SOURCE}},
            "engines": {"tiny": engine},
            "bench": {"plan": "/srv/%s.yml" % plan, "when": when},
        }

    def site(self, *flags: str, mode: str = "apply", **profile: Any) -> Told:
        """site.yml, which must not fail."""
        told = self.told("site", self.profile(mode, **profile), *flags)
        assert told.rc == 0, told.text
        return told

    def told(self, playbook: str, hosttune: dict[str, Any], *flags: str) -> Told:
        """A playbook, and what it said."""
        ran = self.play(playbook, hosttune, *flags)
        return Told(ran.returncode, ran.stdout + ran.stderr)

    def unit(self, name: str) -> str:
        """A property of the engine's unit."""
        return self.machine.attach("systemctl", "show", UNIT, "-P", name).stdout.strip()

    def files(self) -> set[str]:
        """Every file with its size and time, and every mount."""
        pruned = [word for path in OWN for word in ("-path", path, "-prune", "-o")]
        shown = ["-not", "-type", "d", "-printf", "%p %s %T@ %l\\n"]
        found = self.machine.attach("find", "/", "/dev/shm", "-xdev", *pruned, *shown).stdout.splitlines()
        return {*found, *self.machine.attach("cut", "-d ", "-f1-4", "/proc/mounts").stdout.splitlines()}

    def processes(self) -> list[str]:
        """What runs there, but for the sessions that ask."""
        told = self.machine.attach("ps", "-eo", "args", "--no-headers").stdout.splitlines()
        return sorted(line for line in told if not line.startswith(("sshd:", "ps -eo")))

    def results(self, plan: str) -> list[dict[str, Any]]:
        """What was measured by a plan, each result as it was written."""
        found = sorted(self.machine.rootfs.glob(f"{RESULTS}/{plan}-tiny-*/attached_*.json"))
        return [json.loads(path.read_text()) for path in found]


@dataclass(frozen=True)
class Told:
    """Exit code and text of a playbook."""

    rc: int
    text: str

    @property
    def changed(self) -> int:
        """Of the recap."""
        found = re.search(r"there +: ok=\d+ +changed=(\d+)", self.text)
        assert found, self.text
        return int(found.group(1))


@pytest.fixture(scope="module")
def chain(lxc: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """A machine that hosttune has never seen."""
    _need_tools("ssh", "ssh-keygen", "nsenter")
    package = serving.package()
    if package is None:
        _cannot("not installed: xllamacpp; scripts/setup installs it")
    folder = tmp_path_factory.mktemp("chain")
    machine = Container(serving.bind(package, VENV))
    serving.install(machine, VENV)
    serving.write_model(machine, SOURCE + "/tiny.gguf", blocks=48)  # slow enough to be timed beside all that runs here
    for name, text in (("short", SHORT), ("late", LATE)):
        (machine.rootfs / f"srv/{name}.yml").write_text(text)
    try:
        target = sshd.booted_target(machine, folder)
        yield Chain(folder, {}, target.enter, ssh=target)
    finally:
        machine.destroy()


@pytest.fixture(scope="module")
def untouched(chain: Chain) -> set[str]:
    """Its files before hosttune came."""
    return chain.files()


@pytest.fixture(scope="module")
def first(chain: Chain, untouched: set[str]) -> Told:
    """The first run under apply. From here on the machine serves."""
    return chain.site()


def test_plan_says_all_that_would_be_done_and_leaves_nothing(chain: Chain) -> None:
    files, processes = chain.files(), chain.processes()
    assert any(line.startswith(SOURCE) for line in files) and any("systemd-journald" in line for line in processes)
    told = chain.site(mode="plan")
    assert told.changed == 0
    for words in ("hosttune stage add tiny", "would change /etc/systemd/system/" + UNIT, "systemctl start " + UNIT,
                  "attached_fib_t96_c2: to be measured, by 6 requests"):  # fmt: skip
        assert words in told.text, words
    assert chain.files() == files and chain.processes() == processes


def test_check_predicts_what_apply_then_does(chain: Chain, request: pytest.FixtureRequest) -> None:
    files, processes = chain.files(), chain.processes()
    predicted = chain.site("--check", "--diff")
    assert "+AssertPathExists=/dev/shm/models/tiny/tiny.gguf" in predicted.text
    assert chain.files() == files and chain.processes() == processes
    first: Told = request.getfixturevalue("first")
    assert predicted.changed == first.changed == 5  # file and link of the command; model, engine, benchmark


def test_first_run_ends_with_valid_figures_and_a_report(chain: Chain, first: Told) -> None:
    assert chain.unit("ActiveState") == "active"
    results = chain.results("short")
    assert [r["status"] for r in results] == ["valid", "valid"] and all(r["figures"]["output"]["mean"] > 0 for r in results)
    assert len(re.findall(r"attached_fib_t96_c[12]: [\d.]+ ± \S+ tokens/s", first.text)) == 2, first.text
    report = chain.machine.attach(COMMAND, "bench", "report")
    assert report.returncode == 0 and "All 2 configurations are valid." in report.stdout
    wanted = json.dumps(chain.profile("apply"), sort_keys=True)  # as the inventory has it: arguments have an order
    go = chain.machine.attach(COMMAND, "preflight", "-v", "--profile", "/dev/stdin", input=wanted)
    assert go.returncode == 0 and go.stdout.endswith("preflight: go\n")
    assert go.stdout.count("no NVIDIA GPU on the PCI bus") == 2, go.stdout
    check = chain.machine.attach(COMMAND, "unit", "check", "-v", "--profile", "/dev/stdin", input=wanted)
    assert re.search(r"weights were loaded in \d+\.\d s, staging them took \d+\.\d s", check.stdout), check.stdout


def test_second_run_changes_nothing(chain: Chain, first: Told) -> None:
    files, process = chain.files(), chain.unit("MainPID")
    told = chain.site()
    assert told.changed == 0 and chain.files() == files and chain.unit("MainPID") == process


def test_lost_model_and_killed_engine_come_back(chain: Chain, first: Told) -> None:
    chain.machine.attach("kill", "-9", chain.unit("MainPID"))
    chain.machine.attach(COMMAND, "stage", "drop", "tiny", "--force")
    predicted = chain.site("--check", "--tags", "models")
    assert predicted.changed == 1 and "hosttune stage add tiny" in predicted.text
    assert chain.site("--tags", "models,serving").changed == 2
    assert chain.unit("ActiveState") == "active"
    assert chain.machine.attach("head", "-c4", "/dev/shm/models/tiny/tiny.gguf").stdout == "GGUF"


def test_no_go_measures_nothing_and_says_why(chain: Chain, first: Told) -> None:
    chain.machine.attach("systemctl", "stop", UNIT)
    told = chain.told("benchmark", chain.profile("apply", "late"))
    assert told.rc == 2 and "HT605 host tiny: it is not started" in told.text
    assert "hosttune unit start tiny --wait" in told.text and chain.results("late") == []
    wanted = json.dumps(chain.profile("apply"), sort_keys=True)
    assert chain.machine.attach(COMMAND, "unit", "start", "--wait", "--profile", "/dev/stdin", input=wanted).returncode == 0


def test_invalid_result_fails_the_play_with_its_reason_and_without_a_number(chain: Chain, first: Told) -> None:
    told = chain.told("benchmark", chain.profile("apply", "late"))
    assert told.rc == 2 and "invalid: no whole answer in time: not whole after 2 s" in told.text
    assert "--retry" in told.text and "tokens/s" not in told.text
    (result,) = chain.results("late")
    assert result["status"] == "invalid" and "figures" not in result
    report = chain.machine.attach(COMMAND, "bench", "report")
    assert report.returncode == 1 and "no whole answer in time" in report.stdout


def test_revert_takes_every_file_back_and_says_what_lives_on(chain: Chain, untouched: set[str], first: Told) -> None:
    kept = ("/var/lib/hosttune/", "/usr/local/lib/hosttune/0", COMMAND, "/dev/shm/models/", "hosttune-models")
    predicted = chain.told("revert", {}, "--check", "--diff")
    assert "-AssertPathExists=" in predicted.text and chain.unit("LoadState") == "loaded"
    told = chain.told("revert", {})
    assert told.rc == 0 and told.changed == predicted.changed == 1
    assert "goes on without its unit file" in told.text and "systemctl stop " + UNIT in told.text
    assert "umount /dev/shm/models" in told.text
    new = {line.split()[0] for line in chain.files() - untouched}
    assert [path for path in new if not path.startswith(kept)] == []
