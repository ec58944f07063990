# SPDX-License-Identifier: Apache-2.0
"""Engines on the real thing: systemd in a native container, a real OpenAI-compatible server, and its deaths."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosttune import zipapp
from hosttune.core import engine as changes
from hosttune.core import journal
from hosttune.core.model import Refused, Report
from hosttune.core.place import Reaching
from hosttune.core.wanted.profile import validate
from hosttune.preflight import preflight
from hosttune.serve import alive, quote, see, start, written
from hosttune.serve.arm import EngineArm, identity
from hosttune.serve.wait import wait
from tests.kernel import serving
from tests.kernel.conftest import MakeContainer, _cannot
from tests.kernel.container import Container
from tests.kernel.fake_tree import FakeTrees
from tests.kernel.serving import MODEL, PORT, profile

UNIT = "hosttune-tiny.service"
NASTY = [
    "", " ", "a b", "100%", "%n %Z %%", "$HOME ${HOME} $$", "back\\slash", "\\n \\x41 \\q", "end\\", 'say "hi"', "it's",
    "';'", ";", "#no comment", "; neither", "ünïcödé ✓ 日本", '{"a": [1, "%d", "$x"], "b": {"c": "\\"q\\""}}', "a=b=c",
    "-x", "@-:+!", "~", "*?[a]", "`id` $(id) | & < >", "'", '"', "\\", "secret", "tab?",
]  # fmt: skip


@pytest.fixture
def own_state() -> Iterator[None]:
    """A journal of the test's own."""
    fake = FakeTrees()
    was_there = Path(journal.STATE).exists()
    Path(journal.STATE).mkdir(mode=0o700, parents=True, exist_ok=True)
    fake.folder(journal.STATE, {})
    yield
    fake.undo()
    if not was_there:
        shutil.rmtree(journal.STATE)


@pytest.fixture(scope="module")
def booted(lxc: None) -> Iterator[Container]:
    """One container for all tests that leave it running: a boot costs seconds."""
    package = serving.package()
    if package is None:
        _cannot("not installed: xllamacpp; scripts/setup installs it")
    made = serving.container(Container, package)
    yield made
    made.destroy()


@pytest.fixture
def ct(booted: Container, own_state: None) -> Iterator[Container]:
    """That container, without any unit of an earlier test."""
    yield booted
    if not booted.running:
        booted.start(booted=True)
    units = [path.name for path in (booted.rootfs / "etc/systemd/system").glob("*.service") if not path.is_symlink()]
    booted.attach("systemctl", "kill", "--signal=KILL", "squatter", *units)
    booted.attach("systemctl", "stop", "squatter", *units)
    for path in (*units, "../../../usr/local/lib/hosttune"):
        booted.attach("rm", "-rf", "/etc/systemd/system/" + path)
    booted.attach("systemctl", "daemon-reload")
    booted.attach("systemctl", "reset-failed")


def statuses(report: Report) -> dict[str, str]:
    return {f.id: f.status for f in report.findings if f.status != "ok"}


def completion(ct: Container) -> dict[str, object]:
    ask = (
        "import http.client, json; c = http.client.HTTPConnection('127.0.0.1', %d); c.request('POST', '/v1/completions',"
        " json.dumps({'model': 'tiny', 'prompt': 'def', 'max_tokens': 4, 'ignore_eos': True}),"
        " {'Content-Type': 'application/json'}); print(c.getresponse().read().decode())" % PORT
    )
    told: dict[str, object] = json.loads(ct.attach("python3", "-c", ask).stdout)
    return told


def property_of(ct: Container, name: str) -> str:
    return ct.attach("systemctl", "show", UNIT, "-p", name, "--value").stdout.strip()


def test_an_engine_is_started_answers_and_a_second_start_changes_nothing(ct: Container) -> None:
    p = profile(ct)
    planned = start.start(Reaching(), p, "tiny", dry_run=True)
    assert [s.target.rpartition("/")[2] for s in planned.steps] == ["xllamacpp_server.py", UNIT] and planned.actions
    assert planned.effects == () and "not-found" in property_of(ct, "LoadState")

    done = start.start(Reaching(), p, "tiny")
    assert statuses(done) == {} and done.changed, done.findings
    lines: list[str] = []
    waited = wait(Reaching(), p, "tiny", tell=lines.append)
    assert statuses(waited) == {}, waited.findings
    assert any("Started hosttune-tiny" in line for line in lines), lines
    told = completion(ct)
    assert told["usage"] == {**told["usage"], "completion_tokens": 4}, told  # type: ignore[dict-item]

    invocation = property_of(ct, "InvocationID")
    host = Reaching()
    again = start.start(host, p, "tiny")
    assert not again.changed and host.effects == [] and statuses(again) == {}, again.findings
    seen = see.see(Reaching(), p, "tiny", health=True)
    assert [f.status for f in [*written.verified(seen), *alive.running(seen)]] == ["ok", "ok"]
    assert property_of(ct, "InvocationID") == invocation

    entries = journal.entries(host)
    assert [e.state for e in entries] == ["done", "done"] and entries[0].step.target.startswith("ct:%s:" % ct.name)


def test_a_changed_declaration_is_written_but_restarts_nothing_until_asked(ct: Container) -> None:
    start.start(Reaching(), profile(ct), "tiny")
    wait(Reaching(), profile(ct), "tiny")
    pid = property_of(ct, "MainPID")
    other = profile(ct, env={"EXTRA": "1"})
    done = start.start(Reaching(), other, "tiny")
    assert statuses(done) == {"HT610": "warn"} and property_of(ct, "MainPID") == pid
    planned = start.restart(Reaching(), other, "tiny", dry_run=True)
    assert any(pid in loss for action in planned.actions for loss in action.destroys)
    assert property_of(ct, "MainPID") == pid
    done = start.restart(Reaching(), other, "tiny")
    assert statuses(done) == {} and property_of(ct, "MainPID") not in (pid, "0"), done.findings

    ended = start.stop(Reaching(), other, "tiny")
    assert ended.changed and property_of(ct, "ActiveState") == "inactive"
    assert not start.stop(Reaching(), other, "tiny").changed


def test_an_engine_runs_in_an_unprivileged_container_as_an_ordinary_user(
    lxc: None, make_container: MakeContainer, own_state: None
) -> None:
    package = serving.package()
    assert package is not None
    ct = serving.container(make_container, package, unprivileged=True)
    p = profile(ct, user="daemon", model=MODEL)
    done = start.start(Reaching(), p, "tiny")
    assert statuses(done) == {}, done.findings
    assert statuses(wait(Reaching(), p, "tiny")) == {}
    assert ct.attach("stat", "-c", "%U", "/proc/" + property_of(ct, "MainPID")).stdout == "daemon\n"
    assert [f.status for f in alive.running(see.see(Reaching(), p, "tiny", health=True))] == ["ok"]


def test_a_killed_engine_is_shown_with_how_it_ended(ct: Container) -> None:
    start.start(Reaching(), profile(ct), "tiny")
    wait(Reaching(), profile(ct), "tiny")
    ct.attach("kill", "-9", property_of(ct, "MainPID"))
    told = wait(Reaching(), profile(ct), "tiny")
    (f,) = told.findings
    assert f.id == "HT606" and "SIGKILL" in f.summary and f.evidence, f


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"args": {"no_such": "1"}}, "does not know an argument"),
        ({"model": "tiny/bad.gguf"}, "could not be loaded"),
    ],
)
def test_an_engine_that_dies_while_it_loads_says_why(ct: Container, change: dict[str, str], words: str) -> None:
    (ct.rootfs / "srv/models/tiny/bad.gguf").write_bytes(b"GGUF" + bytes(100))
    p = profile(ct, **change)
    start.start(Reaching(), p, "tiny")
    (f,) = wait(Reaching(), p, "tiny").findings
    assert f.id == "HT606" and words in f.summary and f.proof == "proved", f


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "tiny/absent.gguf"}, "the model is not there"),
        ({"venv": "/opt/absent"}, "program is not there"),
        ({"user": "nobody-of-that-name"}, "there is no user"),
        ({"secrets": {"key": "/etc/absent"}}, "the secret key is not there"),
        ({"packages": {"Compressed_Tensors": "0.15.0.1"}}, "Compressed_Tensors is 0.8.1, want 0.15.0.1"),
        ({"packages": {"absent": "1.0"}}, "absent is not installed, want 1.0"),
    ],
)
def test_a_start_that_cannot_work_is_refused_before_anything_is_written(
    ct: Container, change: dict[str, str], words: str
) -> None:
    host = Reaching()
    done = start.start(host, profile(ct, **change), "tiny")
    assert [f.id for f in done.findings if f.status == "fail"] == ["HT602"] and words in str(done.findings)
    assert not done.changed and host.effects == [] and property_of(ct, "LoadState") == "not-found"


def test_a_unit_that_systemd_warns_of_is_refused(ct: Container) -> None:
    host = Reaching()
    done = start.start(host, profile(ct, user="nobody"), "tiny")
    (f,) = [f for f in done.findings if f.status == "fail"]
    assert f.id == "HT603" and "Special user nobody" in f.evidence[0] and host.effects == []


def test_a_port_that_another_has_is_named_with_its_owner(ct: Container) -> None:
    serve = "import socket, time; s = socket.create_server(('127.0.0.1', %d)); time.sleep(60)" % PORT
    ct.attach("systemd-run", "--unit=squatter", "python3", "-c", serve)
    pid = ct.attach("systemctl", "show", "squatter", "-p", "MainPID", "--value").stdout.strip()
    while not see.see(Reaching(), profile(ct), "tiny").told["port"]["listens"]:
        pass
    host = Reaching()
    done = start.start(host, profile(ct), "tiny")
    (f,) = [f for f in done.findings if f.status == "fail"]
    assert f.id == "HT607" and "python3 %s" % pid in f.summary and host.effects == []


def test_revert_takes_the_files_out_of_the_container_again(ct: Container) -> None:
    start.start(Reaching(), profile(ct), "tiny")
    start.stop(Reaching(), profile(ct), "tiny")
    assert (ct.rootfs / "etc/systemd/system" / UNIT).exists()
    steps, failed = changes.revert(Reaching(), {})
    assert len(steps) == 2 and failed == []
    assert not (ct.rootfs / "etc/systemd/system" / UNIT).exists()
    assert property_of(ct, "LoadState") == "not-found", "systemd was not told"


def test_what_a_process_gets_is_what_was_declared(ct: Container) -> None:
    """The property behind all quoting: argv and environ of a real process, against what went in."""
    show = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('/run/shown', 'w'))"
    env = {"V%d" % n: text for n, text in enumerate(NASTY)}
    lines = "".join("Environment=%s\n" % quote.environment(k, v) for k, v in env.items())
    argv = ["/usr/bin/python3", "-c", show, *NASTY]
    text = "[Service]\nType=oneshot\n%sExecStart=%s\n" % (lines, quote.command(argv))
    (ct.rootfs / "etc/systemd/system/shown.service").write_text(text)
    silent = ct.attach("systemd-analyze", "verify", "--man=no", "shown.service")
    assert silent.returncode == 0 and silent.stderr == ""
    done = ct.attach("systemctl", "start", "shown.service")
    assert done.returncode == 0, done.stderr
    words, environ = json.loads(ct.attach("cat", "/run/shown").stdout)
    assert words == NASTY
    assert {k: environ.get(k) for k in env} == env
    told = quote.read_back(ct.attach("systemctl", "show", "shown.service", "-p", "Environment", "--value").stdout)
    assert told == env


def test_what_an_engine_gets_is_what_its_declaration_says(ct: Container) -> None:
    """The same through the whole way: profile, template, file in the container, systemd, process."""
    show = ct.rootfs / "opt/show/bin/llama-server"
    show.parent.mkdir(parents=True, exist_ok=True)
    show.write_text(
        "#!/usr/bin/python3\nimport json, os, sys, time\n"
        "json.dump([sys.argv[1:], dict(os.environ)], open('/run/shown.new', 'w'))\n"
        "os.rename('/run/shown.new', '/run/shown')\ntime.sleep(600)\n"
    )
    show.chmod(0o755)
    ct.attach("rm", "-f", "/run/shown")
    args = {"a%d" % n: text for n, text in enumerate(NASTY)}
    env = {"V%d" % n: text for n, text in enumerate(NASTY)}
    p = profile(ct, engine="llama.cpp", venv="/opt/show", args=args, env=env)
    done = start.start(Reaching(), p, "tiny")
    assert statuses(done) == {}, done.findings  # systemd-analyze silent, and Environment read back equal
    while not (told := ct.attach("cat", "/run/shown").stdout):
        pass
    words, environ = json.loads(told)
    rendered = see.see(Reaching(), p, "tiny").rendered
    assert words == list(rendered.argv[1:]) and [w for w in words if w in NASTY and w] == [text for text in NASTY if text]
    assert {k: environ.get(k) for k in rendered.environment} == dict(rendered.environment) and set(env) <= set(environ)


def test_a_secret_reaches_the_engine_as_a_file_and_nothing_else(ct: Container) -> None:
    secret = ct.rootfs / "etc/engine-key"
    secret.write_text("s3cr3t")
    secret.chmod(0o600)
    p = profile(ct, env={"KEY_FILE": "secret:key"}, secrets={"key": "/etc/engine-key"})
    done = start.start(Reaching(), p, "tiny")
    assert statuses(done) == {}, done.findings
    wait(Reaching(), p, "tiny")
    pid = property_of(ct, "MainPID")
    environ = ct.attach("cat", "/proc/%s/environ" % pid).stdout.split("\0")
    (path,) = [item.partition("=")[2] for item in environ if item.startswith("KEY_FILE=")]
    assert ct.attach("nsenter", "-t", pid, "-m", "cat", path).stdout == "s3cr3t"
    assert (
        "s3cr3t"
        not in str(journal.entries(Reaching())) + " ".join(environ) + ct.attach("systemctl", "cat", UNIT).stdout
    )


def test_the_model_is_what_its_path_says(ct: Container) -> None:
    assert ct.attach("head", "-c", "4", MODEL).stdout == "GGUF"


def test_preflight_is_go_with_a_running_engine_and_no_go_with_a_dead_one(ct: Container) -> None:
    p = profile(ct, model=MODEL)
    told = preflight(Reaching(), p)
    assert statuses(told)["HT605"] == "fail" and told.facts["verdict"] == "no-go"
    (f,) = [f for f in told.findings if f.id == "HT605"]
    assert f.hint.command == "hosttune unit start tiny --wait"
    start.start(Reaching(), p, "tiny")
    wait(Reaching(), p, "tiny")
    host = Reaching()
    told = preflight(host, p)
    assert told.facts["verdict"] == "go" and set(statuses(told).values()) <= {"skip"} and host.effects == [], told.findings
    ct.attach("kill", "-SEGV", property_of(ct, "MainPID"))
    while property_of(ct, "ActiveState") == "active":
        pass
    told = preflight(Reaching(), p)
    (f,) = [f for f in told.findings if f.status == "fail"]
    assert f.id == "HT606" and "SIGSEGV" in f.summary


def test_an_arm_is_started_for_a_benchmark_and_what_ran_before_comes_back(ct: Container) -> None:
    plain = profile(ct).engines["tiny"]
    p = validate({"models": {"tiny": {"source": "/x"}}, "engines": {"tiny": plain, "other": {**plain, "listen": "0.0.0.0"}}})
    start.start(Reaching(), p, "tiny")
    wait(Reaching(), p, "tiny")
    arm = EngineArm("b", Reaching(), p, "other")
    with pytest.raises(Refused, match="has no address"):  # this container has a loopback only
        arm.start()
    running = [name for name in ("tiny", "other") if see.see(Reaching(), p, name).runs]
    assert running == ["other"], "it took the port of the one that ran"
    who = identity(Reaching(), see.see(Reaching(), p, "other").engine)()
    assert who["MainPID"] not in ("", "0") and len(who["InvocationID"]) == 32
    arm.stop()
    assert arm.leftovers() == ()
    arm.restore()
    assert [name for name in ("tiny", "other") if see.see(Reaching(), p, name).runs] == ["tiny"]


def test_a_run_that_was_killed_between_intent_and_done_is_settled_by_the_next(ct: Container) -> None:
    host, p = Reaching(), profile(ct)
    first = see.steps(see.see(host, p, "tiny"))[0]
    journal.begin(host, first, 1 + journal.last(host))  # and then it was killed
    assert [e.state for e in journal.entries(host)] == ["intent"]
    ct.stop()
    assert changes.recover(Reaching(), {}) == [] and journal.entries(host)[0].state == "intent", "nobody can look there now"
    ct.start(booted=True)
    start.start(Reaching(), p, "tiny")
    assert [e.state for e in journal.entries(host)] == ["dropped", "done", "done"]


def told_by(ct: Container, tmp_path: Path, *words: str, **engine: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `hosttune unit WORDS`."""
    p = profile(ct, **engine)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"models": p.models, "engines": p.engines}))
    argv = [sys.executable, "-m", "hosttune", "unit", *words, "--profile", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_the_command_line_from_a_plan_to_the_end(ct: Container, tmp_path: Path) -> None:
    code, out, _ = told_by(ct, tmp_path, "render", "tiny")
    assert code == 0 and "\n[Service]\n" in out
    code, out, _ = told_by(ct, tmp_path, "diff", "tiny")
    assert code == 1 and "+AssertPathExists=" in out
    code, out, _ = told_by(ct, tmp_path, "check", "tiny", "-v")
    assert code == 1 and "the unit is not there yet" in out and "systemd-analyze has nothing to say" in out
    code, out, err = told_by(ct, tmp_path, "start", "tiny", "--wait")
    assert code == 0 and "tiny | Started" in err, out + err
    code, out, _ = told_by(ct, tmp_path, "check", "-v")
    assert code == 0 and "systemd has read all" in out and "it runs and answers" in out, out
    assert told_by(ct, tmp_path, "diff")[0] == 0
    pid = property_of(ct, "MainPID")
    code, out, _ = told_by(ct, tmp_path, "stop", "tiny", "--dry-run")
    assert code == 0 and "process %s of %s" % (pid, UNIT) in out and property_of(ct, "MainPID") == pid
    code, out, _ = told_by(ct, tmp_path, "stop", "tiny")
    assert code == 0 and "process %s of %s" % (pid, UNIT) in out and property_of(ct, "ActiveState") == "inactive"
    code, out, err = told_by(ct, tmp_path, "start", "tini")
    assert code == 2 and "no such engine: tini (declared: tiny)" in err and out == ""
    code, out, _ = told_by(ct, tmp_path, "start", "tiny", "--wait", args={"no_such": "1"})
    assert code == 1 and "HT606" in out and "does not know an argument" in out
    code, out, _ = told_by(ct, tmp_path, "check", "tiny", env={"NCCL_BUFFSIZE": "16M"})
    assert code == 1 and "NCCL reads 16, in silence" in out and "NCCL_BUFFSIZE: 16777216" in out


def test_the_same_on_a_host_of_its_own_with_the_command_as_one_file(ct: Container, tmp_path: Path) -> None:
    """In this test the container is the host: it has systemd, Python 3.11, and nothing of hosttune but one file."""
    zipapp.write(ct.rootfs / "opt/hosttune")
    p = profile(ct, **{"in": "host", "model": MODEL})
    (ct.rootfs / "opt/profile.json").write_text(json.dumps({"models": p.models, "engines": p.engines}))

    def run(*words: str) -> tuple[int, str]:
        done = ct.attach("/opt/hosttune", *words, timeout=120)
        return done.returncode, done.stdout + done.stderr

    there = ("--profile", "/opt/profile.json")
    code, told = run("unit", "start", "--wait", *there)
    assert code == 0 and property_of(ct, "ActiveState") == "active", told
    code, told = run("preflight", *there)
    assert code == 0 and told.endswith("preflight: go\n"), told
    code, told = run("unit", "start", "-o", "json", *there)
    assert code == 0 and json.loads(told)["hosts"][0]["effects"] == [] and not json.loads(told)["changed"]
    code, told = run("journal")
    assert code == 0 and "/etc/systemd/system/" + UNIT in told
    run("unit", "stop", "tiny", *there)
    code, told = run("revert")
    assert code == 0 and property_of(ct, "LoadState") == "not-found", told
    ct.attach("rm", "-rf", "/opt/hosttune", "/opt/profile.json", "/var/lib/hosttune")
