# SPDX-License-Identifier: Apache-2.0
"""The watch on machines on paper: which events wake it, what it does on them, and that nothing ends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hosttune.core import journal
from hosttune.core.model import Step
from hosttune.core.recording.merge import merge
from hosttune.core.recording.replay import ReplayHost
from hosttune.core.unattended import keeping, uevents, watch
from hosttune.core.wanted.profile import PATH

GPU = "0000:11:00.0"
CONFIG = "/sys/bus/pci/devices/%s/config" % GPU
STATUS = "/sys/bus/pci/devices/%s/power/runtime_status" % GPU
SETPCI = "setpci -s %s CAP_EXP+8.w=5000:7000" % GPU
CASES = Path(__file__).parents[1] / "cases/knobs"
MACHINE = json.loads((CASES / "mrrs-512-to-4096.json").read_text())["machine"]
PROFILE = {"mode": "apply", "knobs": {"pcie-max-read-request": "4096"}}
BIND = {"ACTION": "bind", "SUBSYSTEM": "pci", "PCI_ID": "10DE:2BB5", "PCI_SLOT_NAME": GPU, "DRIVER": "nvidia"}
CLOSE = {"ACTION": "close", "SUBSYSTEM": "inotify", "DEVPATH": "/dev/nvidia0", "PCI_SLOT_NAME": ""}
WRITE = {"ACTION": "write", "SUBSYSTEM": "inotify", "DEVPATH": CONFIG, "PCI_SLOT_NAME": GPU}
ELSEWHERE = dict(BIND, PCI_SLOT_NAME="0000:21:00.0")
LOAD = {"ACTION": "add", "SUBSYSTEM": "module", "DEVPATH": "/module/nvidia_uvm"}


def config(control: int) -> dict[str, str]:
    data = bytearray.fromhex(MACHINE["files"][CONFIG]["hex"])
    data[0x68:0x6A] = control.to_bytes(2, "little")
    return {"hex": data.hex()}


def host(control: int = 0x593F, profile: Any = PROFILE, **more: Any) -> ReplayHost:
    done = {SETPCI: {"rc": 0, "then": {"files": {CONFIG: config(0x593F)}}}}
    files = {PATH: profile if isinstance(profile, str) else json.dumps(profile), keeping.OFF: {"errno": "ENOENT"},
             STATUS: "active\n", "/proc/driver/nvidia/version": "NVRM version: 595.71.05\n", CONFIG: config(control)}  # fmt: skip
    return ReplayHost(merge(merge(MACHINE, {"files": files, "commands": done}), more))


class Story:
    """Waits that a test tells: each is a list of events, [] for a timeout, or a change to the machine before the next one.

    heard: the GPUs whose writers can be heard.
    """

    def __init__(self, machine: ReplayHost, *waits: Any, heard: tuple[str, ...] = ()) -> None:
        self.machine, self.waits, self.said, self.asked = machine, list(waits), list[str](), list[float | None]()
        self.time, self.heard = 0.0, frozenset(heard)

    def wait(self, seconds: float | None) -> list[uevents.Event] | None:
        self.asked.append(seconds)
        while self.waits and callable(self.waits[0]):
            self.waits.pop(0)(self.machine)
        events = self.waits.pop(0) if self.waits else None
        self.time += seconds or 0 if events == [] else 0
        return events

    def told(self) -> list[str]:
        assert watch.watch(self.machine, self.said.append, self.wait, lambda forget: self.heard, lambda: self.time) == 0
        return self.said[1:]


def lost(machine: ReplayHost) -> None:
    """The register is back at its default."""
    machine.view = merge(machine.view, {"files": {CONFIG: config(0x293F)}})


def register(machine: ReplayHost) -> int:
    return int.from_bytes(machine.read_bytes(CONFIG)[0x68:0x6A], "little")


@pytest.mark.parametrize(
    ("event", "woken"),
    [
        (BIND, True),
        (dict(BIND, ACTION="add"), True),
        (dict(BIND, ACTION="change", ERROR_EVENT="BEGIN_RECOVERY", DEVICE_ONLINE="0"), False),
        (dict(BIND, ACTION="change", ERROR_EVENT="SUCCESSFUL_RECOVERY", DEVICE_ONLINE="1"), True),
        (dict(BIND, ACTION="unbind"), False),
        (dict(BIND, ACTION="remove"), False),
        (dict(BIND, PCI_ID="8086:1234"), False),
        (LOAD, True),
        (dict(LOAD, DEVPATH="/module/nvidia"), True),
        (dict(LOAD, DEVPATH="/module/zfs"), False),
        (dict(LOAD, ACTION="remove"), False),
        ({"ACTION": "add", "SUBSYSTEM": "block"}, False),
        ({}, False),
        (uevents.LOST, True),
        (CLOSE, True),
    ],
)
def test_what_wakes_it(event: dict[str, str], woken: bool) -> None:
    assert watch.wakes(event) is woken


def test_a_register_that_was_lost_comes_back_on_the_event() -> None:
    machine = host()
    told = Story(machine, lost, [BIND], []).told()
    assert register(machine) == 0x593F
    assert told == ["bind 0000:11:00.0:", "  changed 0000:11:00.0 MaxReadReq"]


def test_what_happened_before_it_started_is_put_right_first() -> None:
    machine = host(control=0x293F)
    assert Story(machine).told() == ["start:", "  changed 0000:11:00.0 MaxReadReq"]
    assert register(machine) == 0x593F


def test_all_is_well_is_no_news_and_writes_nothing() -> None:
    machine = host()
    story = Story(machine, [BIND, BIND, BIND], [])
    assert story.told() == [] and machine.effects == []
    assert story.asked == [None, 2.0, None], "asleep for ever, once more after two seconds, asleep again"


def test_what_undoes_it_after_the_event_is_undone_too() -> None:
    """A udev rule, or the driver's own start, comes after the event."""
    machine = host()
    told = Story(machine, [BIND], lost, [], []).told()
    assert register(machine) == 0x593F and told == ["once more:", "  changed 0000:11:00.0 MaxReadReq"]


def test_while_a_gpu_computes_nothing_is_written_and_it_is_tried_again() -> None:
    minor = {"/proc/driver/nvidia/gpus/%s/information" % GPU: "Device Minor: \t 0\n"}
    busy = {"files": minor, "holders": {"511:*": [[77, "python"]], "195:0": [[77, "python"]]}}
    machine = host(0x293F, **busy)

    def idle(machine: ReplayHost) -> None:
        machine.view = merge(machine.view, {"holders": {"511:*": [], "195:0": []}})

    story = Story(machine, [BIND], [], idle, [], [])
    told = "\n".join(story.told())
    assert "deferred: compute processes use this GPU (python 77)" in told
    assert register(machine) == 0x593F and told.endswith("  changed 0000:11:00.0 MaxReadReq")


def test_it_does_not_try_for_ever() -> None:
    machine = host(0x293F, commands={SETPCI: {"rc": 0, "then": {"files": {CONFIG: config(0x293F)}}}})
    story = Story(machine, [BIND], [], [], [])
    told = story.told()
    assert "did not stick" in "\n".join(told) and told[-1].startswith("left as it is")
    assert story.asked == [None, 2.0, 10.0, 60.0, None]


BACK = ["MaxReadReq was lost by 0000:11:00.0:", "  changed 0000:11:00.0 MaxReadReq"]
LEFT = ["0000:11:00.0: somebody wrote to its config space: MaxReadReq is 512, want 4096; left as it is. To have it back: "
        "hosttune apply pcie-max-read-request"]  # fmt: skip


def test_what_hosttune_itself_has_taken_back_is_told_as_that() -> None:
    machine = host()

    def revert(machine: ReplayHost) -> None:
        step = Step("HT201", GPU, "run", GPU, "4096", "512", ("setpci",))
        journal.begin(machine, step, 2 + journal.last(machine), reverts=1)
        lost(machine)

    took_back = [LEFT[0].replace("somebody wrote to its config space", "hosttune revert took it back")]
    assert Story(machine, revert, [WRITE], [CLOSE], heard=(GPU,)).told() == took_back
    assert register(machine) == 0x293F


def silent(machine: ReplayHost) -> None:
    """In the middle of a reset."""
    machine.view = merge(machine.view, {"files": {CONFIG: {"hex": "ff" * 256}}})


def unwanted(machine: ReplayHost) -> None:
    machine.view = merge(machine.view, {"files": {PATH: '{"mode": "apply"}'}})


def spoilt(machine: ReplayHost) -> None:
    machine.view = merge(machine.view, {"files": {PATH: "{"}})


SPOILT = "%s: this is not JSON\n  fix: ansible-playbook hosttune.hosttune.site writes it anew" % PATH


def asleep(machine: ReplayHost) -> None:
    """Then a question about config space is one too many."""
    machine.view = merge(machine.view, {"files": {STATUS: "suspended\n", CONFIG: None}})


def awake(machine: ReplayHost) -> None:
    machine.view = merge(machine.view, {"files": {STATUS: "active\n"}})


def again(machine: ReplayHost) -> None:
    machine.view = merge(machine.view, {"files": {CONFIG: config(0x593F)}})


@pytest.mark.parametrize(
    ("heard", "waits", "told", "left"),
    [
        ((GPU,), [lost, [CLOSE]], BACK, 0x593F),
        ((GPU,), [lost, []], BACK, 0x593F),
        ((GPU,), [[CLOSE], lost, []], BACK, 0x593F),
        ((GPU,), [silent, [CLOSE], lost, []], BACK, 0x593F),
        ((GPU,), [asleep, [CLOSE], [], lost, awake, []], BACK, 0x593F),
        ((GPU,), [[CLOSE], [CLOSE], [WRITE], []], [], 0x593F),
        ((GPU,), [lost, [WRITE], [CLOSE], [], [CLOSE]], LEFT, 0x293F),
        ((GPU,), [lost, [CLOSE, WRITE], [WRITE]], LEFT, 0x293F),
        ((GPU,), [lost, [dict(WRITE, PCI_SLOT_NAME="")]], LEFT, 0x293F),
        ((GPU,), [lost, [WRITE], [ELSEWHERE], []], LEFT, 0x293F),
        ((GPU,), [lost, [WRITE], [BIND]], [*LEFT, "bind 0000:11:00.0:", BACK[1]], 0x593F),
        ((GPU,), [lost, [WRITE], again, [WRITE], lost, [CLOSE]], LEFT + BACK, 0x593F),
        ((GPU,), [lost, [WRITE], [uevents.LOST]], [*LEFT, "lost:", BACK[1]], 0x593F),
        ((GPU,), [unwanted, [ELSEWHERE], lost, [WRITE], [CLOSE]], [], 0x293F),
        ((GPU,), [lost, [WRITE], unwanted, [ELSEWHERE], [WRITE]], LEFT, 0x293F),
        ((GPU,), [spoilt, lost, [CLOSE], [CLOSE]], ["MaxReadReq was lost by 0000:11:00.0: " + SPOILT], 0x293F),
        ((), [lost, [CLOSE], []], [], 0x293F),
    ],
    ids=["closed", "in-time", "after-the-close", "while-it-resets", "asleep", "nothing-lost", "by-hand", "written-and-closed",
         "missed", "another-comes-back", "it-comes-back", "by-hand-and-back", "announcements-missed", "no-longer-wanted",
         "by-hand-and-no-longer-wanted", "bad-profile", "nobody-is-heard"],
)  # fmt: skip
def test_a_register_that_nobody_wrote_is_put_right_and_one_that_somebody_wrote_is_left(
    heard: tuple[str, ...], waits: list[Any], told: list[str], left: int
) -> None:
    machine = host()
    assert Story(machine, *waits, heard=heard).told() == told
    assert register(machine) == left


def test_what_sets_a_register_again_and_again_without_being_heard_is_not_fought() -> None:
    machine = host()
    told = Story(machine, *[lost, [CLOSE], []] * 5, heard=(GPU,)).told()
    assert told[: 3 * len(BACK)] == BACK * 3
    assert told[3 * len(BACK) :] == [
        "0000:11:00.0: something sets MaxReadReq to 512 again and again and cannot be heard; left as it is. "
        "To have it back: hosttune apply pcie-max-read-request"
    ]
    assert register(machine) == 0x293F
    seldom = Story(host(), *[lost, [CLOSE], *[[]] * 12] * 5, heard=(GPU,))
    assert seldom.told() == BACK * 5, "five resets, ten minutes apart"


def test_it_sleeps_for_ever_where_no_register_is_declared_or_heard() -> None:
    for profile, heard, idle in ((PROFILE, (GPU,), 60.0), (PROFILE, (), None), ({"mode": "apply"}, (GPU,), None)):
        story = Story(host(profile=profile), [], heard=heard)
        story.told()
        assert story.asked[0] == idle, (profile, heard)


def test_after_a_close_it_looks_again_soon_since_the_driver_acts_on_it_later() -> None:
    story = Story(host(), [CLOSE], [], heard=(GPU,))
    story.told()
    assert story.asked == [60.0, 2.0, 60.0]


def test_a_node_that_is_new_is_listened_to_and_nothing_is_forgotten_for_it() -> None:
    story, asked = Story(host(), [CLOSE], [dict(CLOSE, ACTION="node", DEVPATH="/dev")], []), list[bool]()

    def listen(forget: bool) -> frozenset[str]:
        asked.append(forget)
        return frozenset({GPU})

    watch.watch(story.machine, story.said.append, story.wait, listen, lambda: story.time)
    assert asked == [True, False], "at the start, after its own writes; and then"


def test_what_somebody_writes_while_the_watch_begins_to_listen_is_his() -> None:
    """hosttune's own writes are forgotten then, and his with them: so the register is read once more."""
    machine = host(0x293F)
    story = Story(machine, [CLOSE], [], heard=(GPU,))

    def listen(forget: bool) -> frozenset[str]:
        lost(machine)
        return frozenset({GPU})

    assert watch.watch(machine, story.said.append, story.wait, listen, lambda: story.time) == 0
    assert register(machine) == 0x293F and story.said[1:] == ["start:", BACK[1]]


def test_what_waited_for_a_process_is_put_right_when_it_closes_its_files() -> None:
    """The three times at which is looked again are over by then."""
    minor = {"/proc/driver/nvidia/gpus/%s/information" % GPU: "Device Minor: \t 0\n"}
    busy = {
        "files": minor,
        "holders": {"511:*": [[77, "python"]], "195:0": [[77, "python"]]},
        "dirs": {"/proc/77/fd": ["3"]},
    }

    def ended(machine: ReplayHost) -> None:
        gone: dict[str, Any] = {"holders": {"511:*": [], "195:0": []}, "dirs": {"/proc/77/fd": []}}
        machine.view = merge(machine.view, gone)

    machine = host(0x593F, **busy)
    told = Story(machine, lost, [CLOSE], [], [], [], [CLOSE], ended, [CLOSE], heard=(GPU,)).told()
    assert told[-2:] == BACK and register(machine) == 0x593F
    assert told.count("MaxReadReq was lost by 0000:11:00.0:") == 2, "the closes of others in between say nothing"


def test_a_plan_only_says_what_it_would() -> None:
    machine = host(0x293F, dict(PROFILE, mode="plan"))
    told = Story(machine, [BIND]).told()
    assert "  would change 0000:11:00.0 MaxReadReq" in told and register(machine) == 0x293F


@pytest.mark.parametrize(
    "profile", ["{", '{"kobs": {}}', '{"knobs": {"numa-balancing": "9"}}'], ids=["no-json", "no-such-key", "impossible"]
)
def test_a_bad_profile_is_told_and_ends_no_watch(profile: str) -> None:
    machine = host(0x293F)
    good = machine.view["files"][PATH]

    def spoilt(machine: ReplayHost) -> None:
        machine.view = merge(machine.view, {"files": {PATH: profile}})

    def mended(machine: ReplayHost) -> None:
        lost(machine)
        machine.view = merge(machine.view, {"files": {PATH: good}})

    told = Story(machine, spoilt, [BIND], mended, [BIND], []).told()
    assert any(PATH in line or "numa-balancing" in line for line in told)
    assert register(machine) == 0x593F, "a profile that is mended counts at the next event"


def test_one_word_stops_it() -> None:
    machine = host(0x293F, files={keeping.OFF: ""})
    assert Story(machine, [BIND], []).told() == [] and register(machine) == 0x293F


def test_a_message_of_the_kernel_is_read_as_it_is() -> None:
    data = b"bind@/devices/pci0000:10/0000:11:00.0\0ACTION=bind\0DRIVER=nvidia\0A=b=c\0SEQNUM=1\0"
    assert uevents.parse(data) == {"ACTION": "bind", "DRIVER": "nvidia", "A": "b=c", "SEQNUM": "1"}
    assert uevents.parse(b"libudev\0\xfe\xed\xca\xfe") == {} and uevents.parse(b"") == {}
