# SPDX-License-Identifier: Apache-2.0
"""A container whose root wants to harm the host that looks into it: hosttune runs none of its code, and reads it as data."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from hosttune.core.door.live import LiveHost
from hosttune.core.lxc import inside
from tests.kernel.conftest import MakeContainer
from tests.kernel.nodes import GpuNodes, bind_entries
from tests.kernel.proxmox import Proxmox

SPY = """\
#include <fcntl.h>
#include <sys/stat.h>
__attribute__((constructor)) static void loaded(void) {
    struct stat root;
    if (stat("/", &root) == 0 && root.st_uid != 0) open("/caught", O_CREAT | O_WRONLY, 0600);
}
"""
"""A library of the container's own: it leaves a file where the container's root folder does not belong to user 0, that is
outside the container's user namespace. The container's own processes load it too, and leave none."""


@pytest.mark.parametrize("as_its_root", [True, False])
def test_no_library_of_a_container_runs_on_the_host(
    make_container: MakeContainer, nodes: GpuNodes, tmp_path: Path, as_its_root: bool
) -> None:
    """The child that looks at nodes enters the mount table of the container with the host's rights: glibc would take
    nsswitch.conf and the libraries it names from there."""
    container = make_container(bind_entries(nodes.make_all(), optional=True), unprivileged=True).start()
    libraries = container.rootfs / "usr" / "lib" / str(sysconfig.get_config_var("MULTIARCH"))
    (tmp_path / "spy.c").write_text(SPY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", libraries / "libnss_spy.so.2", tmp_path / "spy.c"], check=True)
    for database in ("passwd", "group", "initgroups"):
        (container.rootfs / "etc/nsswitch.conf").open("a").write(f"{database}: spy files\n")
    root = int(Path(f"/proc/{container.pid}/uid_map").read_text().split()[1])
    seen = LiveHost().inquire(["/dev/nvidia0"], (), uid=root if as_its_root else 4242, pid=container.pid)
    assert seen.nodes["/dev/nvidia0"]["type"] == "char", "it was looked at"
    assert not (container.rootfs / "caught").exists(), "code of the container ran with the rights of the host's root"


@pytest.mark.parametrize("proxmox_ve", [True, False])
def test_the_callers_environment_stays_outside(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, proxmox_ve: bool
) -> None:
    if proxmox_ve:
        node: Proxmox = request.getfixturevalue("proxmox")
        node.container(351)
        assert node.pct("start", "351").returncode == 0
        ct_id = "351"
    else:
        ct_id = request.getfixturevalue("make_container")().start().name
    monkeypatch.setenv("HF_TOKEN", "a secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    entered = inside.enter(LiveHost(), ct_id)
    assert ("pct" in entered) == proxmox_ve
    ran = LiveHost().run([*entered, "env"])
    assert ran.rc == 0 and "PATH=" in ran.out, ran
    assert "HF_TOKEN" not in ran.out and "CUDA_VISIBLE_DEVICES" not in ran.out
