# SPDX-License-Identifier: Apache-2.0
"""site.yml on the founding host: nothing under plan, healed under apply, nothing more the second time, and back again."""

from __future__ import annotations

from pathlib import Path

from tests.ansible.conftest import FoundingHost, Machine
from tests.kernel.standin import codes


def written(founding: FoundingHost) -> dict[str, bytes]:
    """Every file that a run may write to, with its content."""
    places = [founding.host.container.config, founding.host.numa_balancing]
    places += founding.host.bus.glob("devices/*/config")
    for folder in ("/etc/sysctl.d", "/var/lib/hosttune"):
        places += [p for p in Path(folder).rglob("*") if p.is_file()]
    return {str(p): p.read_bytes() for p in places}


def cuda(founding: FoundingHost) -> tuple[int, int | None]:
    """What cuInit returns in the container, and how many GPUs CUDA counts there."""
    said = codes(lambda argv: founding.host.container.attach(*argv))
    return said.cuda, said.cuda_devices


def test_plan_changes_nothing_and_says_what_it_would_do(founding: FoundingHost) -> None:
    before = written(founding)
    told = founding.ansible.play("site", founding.profile("plan"))
    assert told.returncode == 0 and "changed=0" in told.stdout and "failed=0" in told.stdout, told.stdout
    assert "would change 0000:11:00.0 MaxReadReq: 512 -> 4096" in told.stdout
    assert "c 511:* rwm" in told.stdout
    assert written(founding) == before and cuda(founding)[0] == 999


def test_check_mode_predicts_and_changes_nothing(founding: FoundingHost) -> None:
    before = written(founding)
    told = founding.ansible.play("site", founding.profile("apply"), "--check", "--diff")
    assert told.returncode == 0 and "changed=2" in told.stdout, told.stdout
    assert "-lxc.cgroup2.devices.allow = c 509:* rwm" in told.stdout
    assert "+lxc.cgroup2.devices.allow = c 511:* rwm" in told.stdout
    assert written(founding) == before and cuda(founding)[0] == 999


def test_apply_heals_once_and_revert_gives_every_byte_back(founding: FoundingHost) -> None:
    before, init = written(founding), founding.host.container.pid
    told = founding.ansible.play("site", founding.profile("apply"))
    assert told.returncode == 0 and "changed=2" in told.stdout, told.stdout + told.stderr
    assert cuda(founding) == (0, 8) and founding.host.container.pid == init  # live, without a restart
    assert "c 511:* rwm" in founding.host.container.config.read_text()
    seen = founding.ansible.module("doctor", profile=founding.profile("apply"))
    assert seen.get("ok"), seen

    healed = written(founding)
    told = founding.ansible.play("site", founding.profile("apply"))
    assert told.returncode == 0 and "changed=0" in told.stdout, told.stdout
    assert founding.ansible.module("lxc_devices", profile=founding.profile("apply"))["effects"] == []
    assert written(founding) == healed

    told = founding.ansible.play("revert", {})
    assert told.returncode == 0, told.stdout
    now = written(founding)
    assert {path: now.get(path) for path in before} == before


def test_setting_that_has_to_wait_keeps_no_container_from_being_healed(founding: FoundingHost) -> None:
    Path("/etc/sysctl.d/99-local.conf").write_text("kernel.numa_balancing = 1\n")
    told = founding.ansible.play("site", founding.profile("apply"))
    assert told.returncode == 2 and "HT101 boot" in told.stdout
    assert cuda(founding) == (0, 8)


def test_container_that_is_not_there_is_told(founding: FoundingHost) -> None:
    wanted = {**founding.profile("apply"), "containers": {"no-such": {}}}
    told = founding.ansible.play("containers", wanted)
    assert told.returncode == 2 and "no-such" in told.stdout


def test_inventory_that_wants_nothing_is_told(machine: Machine) -> None:
    told = machine.play("site", {})
    assert told.returncode == 2 and "has the variable hosttune" in told.stdout
