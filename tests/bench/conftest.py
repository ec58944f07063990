# SPDX-License-Identifier: Apache-2.0
"""A real engine (llama.cpp by xllamacpp, a tiny random model) and plans to measure it by."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench import tiny_gguf

HERE = Path(__file__).parent


@dataclass
class Llama:
    """A server process that the test may kill."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return "http://127.0.0.1:%d" % self.port

    def kill(self) -> None:
        """As the kernel does when memory runs out: no goodbye."""
        self.process.kill()
        self.process.wait(10)


def serve(model: Path, port: int, slots: int = 4) -> Llama:
    """Start a server and wait until it is healthy, 30 s at most."""
    argv = [sys.executable, str(HERE / "llama_server.py"), str(model), str(port), str(slots)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    llama = Llama(process, port)
    for _ in range(600):
        assert process.poll() is None, "the server ended with %s" % process.returncode
        try:
            with urllib.request.urlopen(llama.url + "/health", timeout=5):
                return llama
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    llama.kill()
    raise AssertionError("the server did not become healthy")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf.write(path)
    return path


@pytest.fixture(scope="session")
def llama(model: Path) -> Iterator[Llama]:
    """One engine for all tests that leave it alive."""
    server = serve(model, free_port())
    yield server
    assert server.process.poll() is None, "a test killed the shared server"
    server.kill()


@pytest.fixture
def own_llama(model: Path) -> Iterator[Llama]:
    """An engine that the test may kill and start again (its `process` is then the new one)."""
    server = serve(model, free_port())
    yield server
    server.kill()


Written = Callable[..., Path]


@pytest.fixture
def plan_file(tmp_path: Path) -> Written:
    """Writes a plan of one short configuration, with the given lines in place of its own."""

    def write(**lines: str) -> Path:
        keys = {
            "prompts": '{fib: "def fib of n"}',
            "max_tokens": "[48]",
            "concurrency": "[2]",
            "trials": "2",
            "warm_up": "1",
        }
        keys.update({"timeout": "20"}, **lines)
        path = tmp_path / "quick.yml"
        path.write_text("".join("%s: %s\n" % pair for pair in keys.items()))
        return path

    return write
