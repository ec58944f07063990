# SPDX-License-Identifier: Apache-2.0
"""The picture of a machine: what is drawn is what sysfs said, and what it did not say is drawn as unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from hosttune.cli import main
from hosttune.core.gpu import groups
from hosttune.core.model import Refused
from hosttune.core.pci import topology
from hosttune.core.recording.merge import merge
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.recording.shape import SCHEMA
from hosttune.render import topo_svg, topo_text
from tests.unit import topology_machines as machines
from tests.unit.topology_machines import End, Port

GOLDEN = Path(__file__).parent / "golden"
VIEWS = {"founding": machines.founding, "switched": machines.switched, "small": machines.small}


def seen(view: dict[str, Any]) -> topology.Topology:
    return topology.see(ReplayHost(view))


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize(("kind", "render"), [("txt", topo_text.render), ("svg", topo_svg.render)])
def test_a_picture_is_the_one_that_was_looked_at(name: str, kind: str, render: Any) -> None:
    """HOSTTUNE_GOLDEN=write makes them anew: then look at them."""
    machine = seen(VIEWS[name]())
    chosen = groups.choose(machine, "1-4") if name != "small" else ()
    drawn = render(machine, chosen, [groups.crossing(machine, chosen)] if chosen else [])
    golden = GOLDEN / ("topo-%s.%s" % (name, kind))
    if os.environ.get("HOSTTUNE_GOLDEN") == "write":
        golden.write_text(drawn, encoding="utf-8")
    assert drawn == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", VIEWS)
def test_the_svg_holds_every_device_once_inside_its_frame(name: str) -> None:
    machine = seen(VIEWS[name]())
    root = ET.fromstring(topo_svg.render(machine))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [t for t in texts if t in {d.bdf for d in machine.devices}] == [d.bdf for d in sorted(
        machine.devices, key=lambda d: (d.node or 0, machine.devices.index(d)))]  # fmt: skip
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height


def test_each_gpu_hangs_where_sysfs_says() -> None:
    machine = seen(machines.switched())
    assert {g.number: (g.node, g.way) for g in machine.gpus}[2] == (0, ("0000:10:01.1", "0000:11:00.0", "0000:12:02.0"))
    assert [machine.bridges[b].kind for b in machine.gpus[2].way] == ["root port", "switch", "switch port"]
    assert (
        machine.bridges["0000:12:02.0"].acs == "redirects"
        and machine.bridges["0000:82:02.0"].acs == "does not redirect"
    )
    assert machine.iommu == "translating" and machine.unknown == ()
    assert {(n.id, n.socket, n.cpus, n.memory >> 30) for n in machine.nodes} == {
        (0, 0, "0-31", 512),
        (1, 1, "32-63", 512),
    }


def test_few_lanes_are_a_fault_and_a_slow_idle_link_is_none() -> None:
    gpus = seen(machines.founding(idle=True)).gpus
    assert [g.number for g in gpus if g.narrow] == [5]
    assert topo_text.link_words(gpus[5].link, gpus[5].can) == ("x8 of x16", "2.5 of 32 GT/s")


def test_a_link_can_what_its_weaker_end_can() -> None:
    """A card that can x16 in a slot that can x8 is as fast as it gets."""
    view = machines.machine({"pci0000:10": [Port("0000:10:01.0", [End("gpu", "0000:11:00.0", 0, width=8)], width=8)]})
    (gpu,) = seen(view).gpus
    assert not gpu.narrow and gpu.can.max_width == 8


def test_what_firmware_does_not_tell_is_on_no_node() -> None:
    ports = {"pci0000:%d0" % n: [Port("0000:%d0:01.0" % n, [End("gpu", "0000:%d1:00.0" % n, -1)])] for n in (1, 2)}
    machine = seen(machines.machine(ports))
    assert [g.node for g in machine.gpus] == [None, None] and groups.groups(machine) == []
    assert "NUMA node not told" in topo_text.render(machine)
    assert "not told" in groups.crossing(machine, (0, 1)).summary
    assert groups.path(*machine.gpus) == "?"


def test_what_hangs_on_a_node_that_the_kernel_does_not_show_is_drawn_all_the_same() -> None:
    """A node without CPU and memory is not online; its devices are."""
    machine = seen(machines.machine({"pci0000:10": [Port("0000:10:01.0", [End("gpu", "0000:11:00.0", 7)])]}))
    for picture in (topo_text.render(machine), topo_svg.render(machine)):
        assert "NUMA node 7" in picture and "11:00.0" in picture


def test_a_lost_gpu_is_drawn_without_lanes() -> None:
    """A function that fell off the bus: sysfs gives 63 or 255 lanes and an unknown speed."""
    view = machines.machine({"pci0000:10": [Port("0000:10:01.0", [End("gpu", "0000:11:00.0", 0, width=63)])]})
    base = "/sys/bus/pci/devices/0000:11:00.0/current_link_speed"
    (gpu,) = seen(merge(view, {"files": {base: "Unknown\n"}})).gpus
    assert topo_text.link_words(gpu.link, gpu.can) == ("x? of x16", "? of 32 GT/s")


@pytest.mark.parametrize(
    ("view", "pair", "word"),
    [
        (machines.founding(), (0, 1), "NODE"),
        (machines.founding(), (3, 4), "SYS"),
        (machines.switched(), (0, 3), "PIX"),
        (machines.switched(), (0, 4), "SYS"),
        (machines.small(), (0, 1), "PHB"),
    ],
)
def test_ways_have_the_words_of_nvidia_smi(view: dict[str, Any], pair: tuple[int, int], word: str) -> None:
    assert groups.paths(seen(view))[pair] == word


def test_a_second_switch_on_the_way_is_another_word() -> None:
    deep = Port("0000:13:00.0", [Port("0000:14:00.0", [End("gpu", "0000:15:00.0", 0)])])
    ports = [Port("0000:12:00.0", [deep]), Port("0000:12:01.0", [End("gpu", "0000:16:00.0", 0)])]
    machine = seen(machines.machine({"pci0000:10": [Port("0000:10:01.0", [Port("0000:11:00.0", ports)])]}))
    assert groups.paths(machine)[0, 1] == "PXB"
    alone = Port("0000:08:01.0", [End("gpu", "0000:09:00.0", 0)])
    whole = {"pci0000:08": [alone], "pci0000:10": [Port("0000:10:01.0", [Port("0000:11:00.0", ports)])]}
    assert groups.groups(seen(machines.machine(whole)))[0].gpus == (1, 2), (
        "a pair is made below a switch, if it can"
    )
    ET.fromstring(topo_svg.render(machine))


def test_groups_stay_inside_a_node_as_long_as_one_is_large_enough() -> None:
    told = [(g.size, g.gpus, g.nodes) for g in groups.groups(seen(machines.founding()))]
    assert told == [
        *[(2, pair, (n // 2,)) for n, pair in enumerate([(0, 1), (2, 3), (4, 5), (6, 7)])],
        (4, (0, 1, 2, 3), (0,)), (4, (4, 5, 6, 7), (1,)), (8, tuple(range(8)), (0, 1)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "gpus", "status", "fix"),
    [
        ("0-3", (0, 1, 2, 3), "ok", ""),
        ("1-4", (1, 2, 3, 4), "warn", 'gpus: "0,1,2,3"'),
        ("3,5,6,7", (3, 5, 6, 7), "warn", 'gpus: "4,5,6,7"'),
        ("numa:1", (4, 5, 6, 7), "ok", ""),
        ("all", tuple(range(8)), "warn", ""),
        ("7", (7,), "ok", ""),
    ],
)
def test_a_set_that_crosses_a_node_is_told_the_nearest_that_does_not(
    text: str, gpus: tuple[int, ...], status: str, fix: str
) -> None:
    machine = seen(machines.founding())
    assert groups.choose(machine, text) == gpus
    found = groups.crossing(machine, gpus)
    assert (found.status, found.hint.command) == (status, fix)


def test_gpus_of_a_virtual_machine_hang_on_the_root_bus_itself() -> None:
    """As seen on a real one: no port above, node -1 on a machine of one node, a virtio device without a link."""
    ends = [End("gpu", "0000:00:0%d.0" % number, -1) for number in (6, 7)]
    machine = seen(machines.machine({"pci0000:00": ends}, ((0, "0-31", 0),)))
    assert [(g.node, g.root, g.way) for g in machine.gpus] == [(0, "pci0000:00", ())] * 2
    assert groups.paths(machine)[0, 1] == "PHB"
    assert "no port is above the GPUs" in topo_text.render(machine)
    ET.fromstring(topo_svg.render(machine))


def test_engines_whose_gpus_cross_a_node_are_named() -> None:
    sets = {
        "good": "0,1,2,3",
        "founding": "1,2,3,4",
        "node": "numa:0",
        "whole": "all",
        "none": "none",
        "gone": "7,9",
        "one": "5",
    }
    found = groups.of_engines(seen(machines.founding()), {name: {"gpus": gpus} for name, gpus in sets.items()})
    assert [(f.subject, f.status) for f in found] == [
        ("engine good, GPUs 0-3", "ok"), ("engine founding, GPUs 1-4", "warn"), ("engine gone", "warn"),
    ]  # fmt: skip
    assert "there is no GPU 9" in found[2].summary


@pytest.mark.parametrize("text", ["", "a", "3-1", "0,,1", "-1", "8", "0-9999", "numa:7", "numa:", "1;2"])
def test_a_set_that_is_none_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(Refused) as e:
        groups.choose(seen(machines.founding()), text)
    assert e.value.way_out


def test_what_a_recording_lacks_is_unknown_and_named() -> None:
    view = machines.founding()
    del view["files"]["/sys/bus/pci/devices/0000:11:00.0/numa_node"]
    view["files"]["/sys/bus/pci/devices/0000:21:00.0/numa_node"] = {"errno": "EACCES"}
    machine = seen(view)
    assert [g.node for g in machine.gpus[:3]] == [None, None, 0]
    assert dict(machine.unknown) == {
        "/sys/bus/pci/devices/0000:11:00.0/numa_node": "not recorded",
        "/sys/bus/pci/devices/0000:21:00.0/numa_node": "EACCES",
    }
    assert "EACCES (run it as root)" in topo_text.render(machine)


def test_no_text_of_the_machine_steers_a_terminal_or_spoils_the_picture() -> None:
    view = machines.founding()
    view["dirs"]["/sys/bus/pci/devices/0000:01:00.0/nvme"] = ["\x1b[31m<&\u202e"]
    view["uname"] = "\x1b]0;x\x07 6 x86_64"
    machine = seen(view)
    for drawn in (topo_text.render(machine), topo_svg.render(machine)):
        assert "\x1b" not in drawn and "\u202e" not in drawn and "\x07" not in drawn
    ET.fromstring(topo_svg.render(machine))


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"schema": SCHEMA, "machines": {"host": machines.founding()}}))
    return path


def test_the_command_draws_a_recording(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "host.svg"
    assert main(["topo", "--replay", str(recording), "--gpus", "1-4", "--svg", str(svg), "--strict"]) == 1
    assert "HT910  GPUs 1-4: they cross NUMA nodes" in capsys.readouterr().out
    assert main(["topo", "--replay", str(recording), "--svg", str(svg), "-o", "json"]) == 0, (
        "its own picture is made anew"
    )
    told = json.loads(capsys.readouterr().out)
    profile = tmp_path / "site.yml"
    profile.write_text("engines:\n  e: {engine: vllm, model: /m, port: 1, gpus: '3,4'}\n")
    assert main(["topo", "--replay", str(recording), "--profile", str(profile), "--strict"]) == 1
    assert "HT910  engine e, GPUs 3-4: they cross NUMA nodes" in capsys.readouterr().out
    assert told["schema"] == "hosttune.topology/1" and told["paths"]["0"]["7"] == "SYS" and len(told["devices"]) == 11
    ET.parse(svg)


def test_what_is_no_picture_of_ours_is_never_drawn_over(recording: Path, tmp_path: Path) -> None:
    letter = tmp_path / "letter.svg"
    letter.write_text("dear owner")
    assert main(["topo", "--replay", str(recording), "--svg", str(letter)]) == 2
    assert main(["topo", "--replay", str(recording), "--svg", str(tmp_path / "no" / "x.svg")]) == 2
    assert letter.read_text() == "dear owner" and sorted(p.name for p in tmp_path.iterdir()) == [
        "host.json",
        "letter.svg",
    ]


@pytest.mark.parametrize("command", ["topo", "check"])
def test_what_was_recorded_here_is_told_again_elsewhere(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host.json"
    words = [command, "-o", "json", "--record", str(path)]
    code = main(words)
    here = json.loads(capsys.readouterr().out)
    assert path.stat().st_mode & 0o777 == 0o600
    assert main([command, "-o", "json", "--replay", str(path)]) == code
    again = json.loads(capsys.readouterr().out)
    if command == "topo":
        del here["machine"], again["machine"]  # a recording names no host
        assert again == here
    else:
        told = [
            [(f["id"], f["subject"], f["status"], f["have"]) for f in d["hosts"][0]["findings"]] for d in (here, again)
        ]
        assert told[0] == told[1]
    before = path.read_bytes()
    assert main(words) == 2 and path.read_bytes() == before, "a recording is never written over"


def test_it_is_drawn_from_files_alone(recording: Path) -> None:
    """Python's audit hook sees every process that is started and every library that is loaded."""
    watch = (
        "import sys\n"
        "sys.addaudithook(lambda event, args: event in ('subprocess.Popen', 'os.exec', 'os.fork', 'os.posix_spawn', 'os.system',"
        " 'ctypes.dlopen') and sys.exit('%s %s' % (event, args)))\n"
        "from hosttune.cli import main\nsys.exit(main(['topo', *sys.argv[1:]]))"
    )
    for more in (["--replay", str(recording)], []):
        done = subprocess.run([sys.executable, "-c", watch, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
