# SPDX-License-Identifier: Apache-2.0
"""The doctor on a whole machine: what was broken is the first cause, asked from the host about its container and from inside
the container, where nothing is known of the host; and where its fix is one command, that command heals. The founding story is
the demo's (scripts/demo), and test_reboot.py's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import cases, deploy
from lab.machine import Machine


def doctor(guest: Machine, *words: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(guest.run("hosttune", "doctor", "-o", "json", *words).stdout)
    return report


def inside(guest: Machine) -> dict[str, Any]:
    """The same command in the container, without a word from the host."""
    ask = "cat /usr/local/bin/hosttune | pct exec 200 -- sh -c 'cat >/root/hosttune && python3 /root/hosttune doctor -o json'"
    report: dict[str, Any] = json.loads(guest.run("sh", "-c", ask).stdout)
    return report


def cause(report: dict[str, Any]) -> dict[str, Any]:
    findings = report["hosts"][0]["findings"]
    return next(
        (f for f in findings if f["status"] == "fail" and not f["because"]), {"id": "", "evidence": [], "hint": {}}
    )


def broken(name: str) -> Callable[[Machine], None]:
    def apply(guest: Machine) -> None:
        cases.apply(name, guest)

    return apply


def config_mended(guest: Machine) -> None:
    """nvidia-uvm moves, its node is made anew inside, the config is mended, and the container is not restarted."""
    cases.apply("moved-live", guest)
    guest.run("sed", "-i", "s/c 509:/c 510:/", "/etc/pve/lxc/200.conf", check=True)
    for name, minor in (("nvidia-uvm", "0"), ("nvidia-uvm-tools", "1")):
        make = f"umount /dev/{name}; rm -f /dev/{name}; mknod -m 666 /dev/{name} c 510 {minor}"
        guest.run("pct", "exec", "200", "--", "sh", "-c", make, check=True)


def uvm_absent(guest: Machine) -> None:
    guest.run("rmmod", "nvidia_uvm", check=True)  # modprobe -r would take nvidia too


@pytest.mark.parametrize(
    ("breaks", "from_host", "from_inside", "heals"),
    [
        (config_mended, "HT402", "HT401", True),
        (broken("moved-live"), "HT406", "HT406", True),
        (uvm_absent, "HT303", "HT303", False),
        (broken("mismatch"), "HT350", "HT350", False),
        (broken("sick-gpu"), "HT409", "HT409", False),
        (broken("gpu-gone"), "HT409", "HT409", False),
    ],
    ids=["config-mended", "moved-live", "uvm-absent", "mismatch", "sick-gpu", "gpu-gone"],
)
def test_it_names_what_was_broken(
    guest: Machine, breaks: Callable[[Machine], None], from_host: str, from_inside: str, heals: bool
) -> None:
    deploy.hosttune(guest)
    breaks(guest)
    joined, alone = doctor(guest, "--ct", "200", "--gpus", "8"), inside(guest)
    told = json.dumps([joined["hosts"][0]["findings"], alone["hosts"][0]["findings"]], indent=1)
    assert (joined["first_cause"], alone["first_cause"]) == (from_host, from_inside), told
    assert cause(joined)["evidence"] and cause(alone)["hint"]["command"], told
    if heals:
        guest.run("sh", "-c", cause(joined)["hint"]["command"], check=True)
        assert doctor(guest, "--ct", "200", "--gpus", "8")["first_cause"] in (None, "")


def test_containers_of_the_other_forms_are_healthy(module_guest: Machine) -> None:
    deploy.hosttune(module_guest)
    for ct_id in ("201", "202"):
        module_guest.run("pct", "start", ct_id)
        assert doctor(module_guest, "--ct", ct_id)["first_cause"] in (None, "")


def test_the_next_boot_of_the_host_is_foreseen(module_guest: Machine) -> None:
    """Numeric rules that nobody renews, and no unit: the founding story, told before the reboot that makes it."""
    deploy.hosttune(module_guest)
    report = doctor(module_guest, "--next-boot")
    told = {(f["id"], f["status"], f["subject"]) for f in report["hosts"][0]["findings"]}
    assert ("HT707", "warn", "ct:200") in told, told
    assert not [f for f in told if f[0] == "HT707" and f[2] in ("ct:201", "ct:202")], told


def test_another_machine_asks_over_ssh_what_the_host_would_say(module_guest: Machine, tmp_path: Path) -> None:
    """Nothing is installed there: the core goes through ssh, and from there into the container."""
    settings = dict(line.split() for line in module_guest.ssh_config.read_text().splitlines() if len(line.split()) == 2)
    key = Path(settings["UserKnownHostsFile"]).read_text().split(None, 1)[1]
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "known_hosts").write_text(f"[{settings['HostName']}]:{settings['Port']} {key}")
    kept = "".join(f"  {word} {settings[word]}\n" for word in ("HostName", "Port", "User", "IdentityFile"))
    (folder / "config").write_text("Host pve1\n" + kept)
    cases.apply("sick-gpu", module_guest)
    argv = [sys.executable, "-m", "hosttune", "doctor", "--host", "pve1", "--ct", "200", "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)})
    assert json.loads(done.stdout)["first_cause"] == "HT409", done.stdout + done.stderr
    assert doctor(module_guest, "--ct", "201")["first_cause"] == "HT409", "an unprivileged container has the same GPUs"
