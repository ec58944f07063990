# SPDX-License-Identifier: Apache-2.0
"""`pct` and pve-guests as the lab plays them, on native LXC: what a config does at a start, and what PVE says."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.nodes import GpuNodes
from tests.kernel.proxmox import Proxmox

UVM = "/dev/nvidia-uvm"
BIND = f"lxc.mount.entry: {UVM} dev/nvidia-uvm none bind,optional,create=file\n"
RULE = "lxc.cgroup2.devices.allow: c {}:* rwm\n"


@pytest.fixture
def node(proxmox: Proxmox, nodes: GpuNodes) -> Iterator[Proxmox]:
    """One GPU; nvidia-uvm has major 511."""
    nodes.make_all(1)
    yield proxmox


def started(node: Proxmox, vmid: int) -> None:
    done = node.pct("start", str(vmid))
    assert done.returncode == 0, done.stderr


def test_a_missing_rule_is_eperm_and_a_restart_takes_the_new_one(node: Proxmox) -> None:
    conf = node.container(310, RULE.format(195) + RULE.format(509) + BIND)
    started(node, 310)
    assert node.open_errno(310, "/dev/null") == "ok"
    assert node.open_errno(310, UVM) == "EPERM"
    conf.write_text(conf.read_text().replace("509", "511"))
    assert node.open_errno(310, UVM) == "EPERM"  # nothing reaches a running container
    assert node.pct("reboot", "310").returncode == 0
    assert node.open_errno(310, UVM) == "ENXIO"  # allowed; only the driver is missing
    pid = node.run("lxc-info", "-n", "310", "-p", "-H").stdout.strip()
    assert Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1].startswith("0::/lxc/310/ns")


def test_rules_come_in_pves_order(node: Proxmox) -> None:
    node.container(311, RULE.format(195) + "dev0: /dev/nvidia-uvm,deny-write=1\n")
    started(node, 311)
    lines = Path("/var/lib/lxc/311/config").read_text().splitlines()
    dev = lines.index("lxc.cgroup2.devices.allow = c 511:0 r")
    include, raw = "lxc.include = /usr/share/lxc/config/common.conf", "lxc.cgroup2.devices.allow = c 195:* rwm"
    assert lines.index(include) < dev < lines.index(raw)
    assert lines[dev : dev + 2] == ["lxc.cgroup2.devices.allow = c 511:0 r", "lxc.cgroup2.devices.deny = c 511:0 w"]


@pytest.mark.parametrize("unprivileged", [False, True])
def test_a_dev_entry_follows_a_moved_major(node: Proxmox, nodes: GpuNodes, unprivileged: bool) -> None:
    node.container(312, f"dev0: {UVM},mode=0606,uid=5,gid=6\n", unprivileged)
    started(node, 312)
    assert node.open_errno(312, UVM) == "ENXIO"
    shown = node.pct("exec", "312", "--", "stat", "-c", "%a %u %g %t:%T", UVM).stdout.strip()
    assert shown == "606 5 6 1ff:0"
    nodes.make("nvidia-uvm", 509, 0)
    assert node.pct("reboot", "312").returncode == 0
    assert node.pct("exec", "312", "--", "stat", "-c", "%t:%T", UVM).stdout.strip() == "1fd:0"


def test_a_reboot_from_inside_makes_the_dev_nodes_anew(node: Proxmox, nodes: GpuNodes) -> None:
    node.container(313, f"dev0: {UVM},mode=0666\n")
    started(node, 313)
    nodes.make("nvidia-uvm", 509, 0)
    before = node.run("lxc-info", "-n", "313", "-p", "-H").stdout
    node.pct("exec", "313", "--", "systemctl", "reboot", "--force", "--force")
    end = time.monotonic() + 30
    while node.run("lxc-info", "-n", "313", "-p", "-H").stdout in (before, ""):
        assert time.monotonic() < end, Path("/run/pve/ct-313.log").read_text()[-3000:]
        time.sleep(0.1)
    assert node.pct("exec", "313", "--", "stat", "-c", "%t:%T", UVM).stdout.strip() == "1fd:0"
    assert node.open_errno(313, UVM) == "ENXIO"
    nodes.remove("nvidia-uvm")
    node.pct("exec", "313", "--", "systemctl", "reboot", "--force", "--force")
    while node.run("pct", "status", "313").stdout != "status: stopped\n":
        assert time.monotonic() < end + 30
        time.sleep(0.1)
    assert "Device /dev/nvidia-uvm does not exist" in Path("/run/pve/ct-313.log").read_text()


def test_an_unprivileged_container_needs_no_rule_and_minds_the_mode(node: Proxmox, nodes: GpuNodes) -> None:
    node.container(314, RULE.format(509) + BIND, unprivileged=True)
    started(node, 314)
    assert node.open_errno(314, UVM) == "ENXIO"
    Path(UVM).chmod(0o600)
    assert node.open_errno(314, UVM) == "EACCES"


STOPPERS = {
    "dev entry without a node": ("dev0: /dev/nvidia7\n", "Device /dev/nvidia7 does not exist"),
    "dev entry for a file": ("dev0: /dev/plain\n", "/dev/plain is not a device"),
    "dev and mount entry for one target": (f"dev0: {UVM}\n{BIND}", "Failed to run autodev hooks"),
    "one path in two dev entries": (f"dev0: {UVM}\ndev1: {UVM}\n", "Failed to run lxc.hook.pre-start"),
    "mount entry without a source": ("lxc.mount.entry: /dev/nvidia7 dev/nvidia7 none bind,create=file\n", "No such file"),
    "bridge missing": ("net0: name=eth0,bridge=vmbr77\n", "bridge 'vmbr77' does not exist"),
    "locked": ("lock: backup\n", "CT is locked (backup)"),
    "template": ("template: 1\n", "you can't start a CT if it's a template"),
}


@pytest.mark.parametrize("case", STOPPERS)
def test_a_start_is_refused_with_status_255(node: Proxmox, nodes: GpuNodes, case: str) -> None:
    lines, text = STOPPERS[case]
    Path("/dev/plain").touch()
    node.container(315, lines)
    done = node.pct("start", "315")
    Path("/dev/plain").unlink()
    assert done.returncode == 255 and text in done.stderr, done.stderr
    assert node.pct("status", "315").stdout == "status: stopped\n"


def test_what_a_failing_step_said_is_shown_on_demand(node: Proxmox) -> None:
    node.container(315, f"dev0: {UVM}\n{BIND}")
    done = node.pct("start", "315", "--debug")
    assert done.returncode == 255 and "mknod failed: [Errno 17] File exists" in done.stderr


def test_an_optional_entry_leaves_a_placeholder(node: Proxmox, nodes: GpuNodes) -> None:
    nodes.remove("nvidia-uvm")
    node.container(316, BIND + f"lxc.cgroup2.devices.allow: {UVM} rwm\n")
    started(node, 316)
    assert node.pct("exec", "316", "--", "stat", "-c", "%F %s", UVM).stdout.strip() == "regular empty file 0"


def test_texts_and_statuses_are_pves(node: Proxmox) -> None:
    node.container(317)
    name = f"Configuration file 'nodes/{node.node}/lxc/999.conf' does not exist\n"
    for words in (["status", "999"], ["config", "999"], ["start", "999"], ["set", "999", "--onboot", "1"]):
        done = node.pct(*words)
        assert (done.returncode, done.stderr) == (2, name), words
    for command, kind in (("stop", "CT"), ("shutdown", "CT"), ("reboot", "VM")):
        done = node.pct(command, "317")
        assert (done.returncode, done.stderr) == (255, f"{kind} 317 not running\n")
    started(node, 317)
    done = node.pct("start", "317")
    assert (done.returncode, done.stderr) == (255, "CT 317 already running\n")
    assert node.pct("status", "317").stdout == "status: running\n"
    row = next(line for line in node.pct("list").stdout.splitlines() if line.startswith("317"))
    assert row.split() == ["317", "running", "ct317"]
    done = node.pct("exec", "317", "--", "sh", "-c", "echo $PATH $KEPT; exit 7")
    assert (done.returncode, done.stdout) == (7, "/sbin:/bin:/usr/sbin:/usr/bin\n")
    kept = node.run("/usr/bin/pct", "exec", "317", "--", "printenv", "KEPT", env={"KEPT": "yes"})
    assert kept.stdout == "yes\n"
    assert node.pct("restart", "317").returncode == 255
    assert node.pct("shutdown", "317").returncode == 0


def test_push_hides_a_copy_that_failed(node: Proxmox, tmp_path: Path) -> None:
    node.container(318)
    source = tmp_path / "file"
    source.write_text("content\n")
    assert node.pct("push", "318", str(source), "/root/file").stderr == "can only push files to a running CT\n"
    started(node, 318)
    assert node.pct("push", "318", str(source), "/root/file", "--perms", "0600").returncode == 0
    assert node.pct("exec", "318", "--", "stat", "-c", "%a %s", "/root/file").stdout == "600 8\n"
    for command in (("push", "318", str(tmp_path / "absent"), "/root/x"), ("push", "318", str(source), "/absent/x")):
        done = node.pct(*command)
        assert done.returncode == 0 and done.stderr


def test_set_writes_as_pve_does(node: Proxmox) -> None:
    conf = node.container(320, "# PCI: 01\ngpu-note: x\n" + RULE.format(195).replace(":", " =", 1) + "\tcores: 4\n")
    done = node.pct("set", "320", "--onboot", "yes", "--dev0", f"{UVM},mode=0666")
    assert done.returncode == 0, done.stderr
    assert conf.read_text() == (
        f"# PCI%3A 01\narch: amd64\ndev0: {UVM},mode=0666\nhostname: ct320\nmemory: 512\nonboot: 1\nostype: debian\n"
        "rootfs: local:320/subvol-320-disk-0.subvol,size=0T\nlxc.cgroup2.devices.allow: c 195:* rwm\n"
    )
    assert "c 511:0 rw" in Path("/var/lib/lxc/320/config").read_text()
    assert node.pct("set", "320", "--delete", "dev0,onboot").returncode == 0
    assert "dev0" not in conf.read_text() and "onboot" not in conf.read_text()
    before = conf.read_bytes()
    refused = (("--dev0", "/dev/nvidia9", "Device /dev/nvidia9 does not exist"), ("--dev0", "nvidia0", "dev0: format error"),
               ("--lxc.cap.drop", "x", "400"), ("--memory", "abc", "memory: type check"))  # fmt: skip
    for option, value, text in refused:
        done = node.pct("set", "320", option, value)
        assert done.returncode != 0 and text in done.stderr, option
    done = node.pct("set", "320", "--onboot", "1", "--digest", "0" * 40)
    assert done.returncode == 255 and "file changed by other user" in done.stderr
    assert conf.read_bytes() == before


def test_a_running_container_gets_pending_changes_at_its_next_start(node: Proxmox) -> None:
    conf = node.container(321, BIND.replace("nvidia-uvm", "nvidia-uvm-tools"))
    started(node, 321)
    assert node.pct("set", "321", "--dev0", f"{UVM},mode=0666", "--onboot", "1").returncode == 0
    assert conf.read_text().endswith(f"\n[pve:pending]\ndev0: {UVM},mode=0666\n")
    assert "onboot: 1" in node.pct("config", "321", "--current").stdout
    assert "dev0" in node.pct("config", "321").stdout and "dev0" not in node.pct("config", "321", "--current").stdout
    assert f"new dev0: {UVM},mode=0666" in node.pct("pending", "321").stdout
    assert node.pct("set", "321", "--revert", "dev0").returncode == 0
    assert "pending" not in conf.read_text()
    node.pct("set", "321", "--dev0", f"{UVM},mode=0666")
    assert node.pct("reboot", "321").returncode == 0
    assert "pending" not in conf.read_text() and node.open_errno(321, UVM) == "ENXIO"
    node.pct("set", "321", "--delete", "dev0")
    assert "[pve:pending]\ndelete: dev0\n" in conf.read_text()
    assert node.pct("stop", "321").returncode == 0
    assert "dev0" not in conf.read_text()


def test_lines_appended_below_pending_replace_the_raw_list(node: Proxmox) -> None:
    appended = "\n[pve:pending]\nmemory: 256\n# added\n" + RULE.format(511)
    conf = node.container(322, "#my notes\n" + RULE.format(195) + BIND + appended)
    started(node, 322)
    text = conf.read_text()
    assert "c 511:* rwm" in text and "memory: 256\n" in text and text.startswith("# added\n")
    assert "195" not in text and "mount.entry" not in text and "my notes" not in text


def test_lock_in_the_file_is_honoured_but_by_reboot(node: Proxmox) -> None:
    conf = node.container(323)
    started(node, 323)
    conf.write_text(conf.read_text() + "lock: backup\n")
    for command in (("set", "323", "--onboot", "1"), ("stop", "323"), ("shutdown", "323")):
        done = node.pct(*command)
        assert (done.returncode, done.stderr) == (255, "CT is locked (backup)\n"), command
    assert next(line for line in node.pct("list").stdout.splitlines() if "323" in line).split()[2] == "backup"
    assert node.pct("unlock", "323").returncode == 0
    assert "lock:" not in conf.read_text()
    conf.write_text(conf.read_text() + "lock: mounted\n")
    assert node.pct("reboot", "323").returncode == 0


SCRIPT = """\
#!/bin/sh
exec >>/run/lock/hook-log
flock -n /run/lock/lxc/pve-config-$1.lock true && held=no || held=yes
echo "$2 lock-held=$held generated=$(grep -c 'c 195' /var/lib/lxc/$1/config)"
sed -i s/195/511/ /etc/pve/lxc/$1.conf
test "$2" != "$FAIL"
"""


def test_a_hookscript_runs_in_the_lock_and_after_the_config_was_made(node: Proxmox) -> None:
    script, log = Path("/var/lib/vz/snippets/gpu.sh"), Path("/run/lock/hook-log")
    script.write_text(SCRIPT)
    script.chmod(0o755)
    conf = node.container(324, "hookscript: local:snippets/gpu.sh\n" + RULE.format(195) + BIND)
    started(node, 324)
    assert node.open_errno(324, UVM) == "EPERM"  # the edit in pre-start came too late for this start
    assert "c 511" in conf.read_text()
    assert node.pct("stop", "324").returncode == 0
    phases = [line.split() for line in log.read_text().splitlines()]
    assert [line[0] for line in phases] == ["pre-start", "post-start", "pre-stop", "post-stop"]
    assert {line[1] for line in phases} == {"lock-held=yes"} and phases[0][2] == "generated=1"
    failed = node.run("/usr/bin/pct", "start", "324", env={"FAIL": "pre-start"})
    assert failed.returncode == 255 and "hookscript error for 324 on pre-start" in failed.stderr
    script.unlink()
    assert "does not exist" in node.pct("start", "324").stderr


def test_without_quorum_nothing_starts_or_is_set(node: Proxmox) -> None:
    conf = node.container(325)
    before = conf.read_bytes()
    node.lab("quorum", "off")
    done = node.pct("start", "325")
    assert (done.returncode, done.stderr) == (255, "cluster not ready - no quorum?\n")
    done = node.pct("set", "325", "--onboot", "1")
    assert done.returncode == 13 and "Permission denied" in done.stderr
    assert conf.read_bytes() == before and list(conf.parent.glob("*.tmp.*")) == []


def test_boot_waits_for_quorum_and_starts_in_order_and_shutdown_stops_all(node: Proxmox, tmp_path: Path) -> None:
    (node.conf(200)).write_text(node.conf(200).read_text().replace("onboot: 1", "onboot: 0"))
    node.container(330, "onboot: 1\n")
    node.container(331, "onboot: 1\nstartup: order=2\n")
    node.container(332, "onboot: 1\nstartup: order=1\ndev0: /dev/nvidia9\n")
    node.container(333)
    node.lab("quorum", "off")
    out = tmp_path / "out"
    with open(out, "w") as log:
        boot = subprocess.Popen(["/usr/bin/pve-guests", "startall"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    end = time.monotonic() + 30
    while "waiting for quorum" not in out.read_text():
        assert time.monotonic() < end and boot.poll() is None, out.read_text()
        time.sleep(0.05)
    assert node.running() == []
    node.lab("quorum", "on")
    assert boot.wait(timeout=60) == 0
    told = [line for line in out.read_text().splitlines() if line.startswith(("Starting", "got"))]
    assert told == ["got quorum", "Starting CT 332", "Starting CT 332 failed: Device /dev/nvidia9 does not exist",
                    "Starting CT 331", "Starting CT 330"]  # fmt: skip
    assert node.running() == [330, 331]
    stopped = node.run("/usr/bin/pve-guests", "stopall")
    assert stopped.returncode == 0 and node.running() == []


def test_net0_gives_an_address_on_the_bridge(node: Proxmox) -> None:
    node.container(340, "net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:C7:00:40,ip=10.0.100.240/24,gw=10.0.100.1\n")
    # A network namespace of its own: the bridge is not seen on the machine.
    script = ("mount -t sysfs none /sys && mount -t cgroup2 none /sys/fs/cgroup && ip link add vmbr0 type bridge && "
              "ip address add 10.0.100.1/24 dev vmbr0 && ip link set vmbr0 up && "
              "pct start 340 && pct exec 340 -- ip -4 -o address show eth0 && pct exec 340 -- ip route && "
              "ls /sys/class/net/vmbr0/brif; pct stop 340")  # fmt: skip
    done = node.run("unshare", "--net", "--mount", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "10.0.100.240/24" in done.stdout and "default via 10.0.100.1" in done.stdout and "veth340i0" in done.stdout


def test_the_version_of_pve_container_can_be_read(node: Proxmox) -> None:
    assert node.run("pveversion").stdout.startswith("pve-manager/8.")
    assert "pve-container: 5.3.5\n" in node.run("pveversion", "-v").stdout


def test_ha_is_asked_and_acts_a_round_later(node: Proxmox) -> None:
    node.container(350)
    assert node.run("ha-manager", "add", "ct:350", "--state", "stopped").returncode == 0
    done = node.pct("start", "350")
    assert (done.returncode, done.stdout) == (0, "Requesting HA start for CT 350\n")
    settle(node, 350, "running")
    # A stop that is still queued wins over a start that is asked for right after it.
    assert node.run("ha-manager", "crm-command", "stop", "ct:350", "60").returncode == 0
    assert node.run("ha-manager", "set", "ct:350", "--state", "started").returncode == 0
    settle(node, 350, "stopped")
    assert node.run("ha-manager", "config").stdout == "ct:350\n\tstate stopped\n\n"
    assert node.run("ha-manager", "set", "ct:350", "--state", "started").returncode == 0
    settle(node, 350, "running")
    assert "service ct:350" in node.run("ha-manager", "status").stdout
    assert node.run("ha-manager", "remove", "ct:350").returncode == 0
    assert node.pct("stop", "350").stdout == ""


def settle(node: Proxmox, vmid: int, state: str) -> None:
    end = time.monotonic() + 30
    while node.pct("status", str(vmid)).stdout != f"status: {state}\n":
        assert time.monotonic() < end, f"CT {vmid} is not {state}"
        time.sleep(0.1)
