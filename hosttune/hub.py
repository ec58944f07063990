# SPDX-License-Identifier: Apache-2.0
"""Models from the hub into a Hugging Face cache of this machine, by huggingface_hub, which an engine's environment has anyway.

It runs in a Python of its own (hub_script.py): hosttune on a target is one file without packages, and a download that hangs can
be ended. Its cache keeps whole files, so a download that was cut short goes on with what is missing. A token never stands in
argv: huggingface_hub reads it from its file (HF_TOKEN_PATH) or from the environment (HF_TOKEN).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

from .core.door.host import Host
from .core.model import Refused
from .core.wanted.profile import Profile

OWN = "/usr/local/lib/hosttune/hub"
"""A virtual environment for this alone, where there is one."""
INSTALL = "python3 -m venv %s && %s/bin/pip install huggingface_hub" % (OWN, OWN)
_PASSED = ("HF_", "HUGGINGFACE_", "SSL_CERT_", "XDG_CACHE_HOME", "REQUESTS_CA_BUNDLE", "HOME", "PATH", "LANG", "LC_")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
_OF_HUB = "huggingface_hub"
_SAID = {
    "ENOSPC": ("there is no room for it", "free that disk, or name another with HF_HUB_CACHE"),
    "RepositoryNotFoundError": ("the hub knows no such repository, or does not show it without a token",
                                "look at its name; for a private one give --token-file FILE"),
    "GatedRepoError": ("its owner lets nobody in without consent", "agree on its page, then give --token-file FILE"),
    "RevisionNotFoundError": ("the hub has no such revision of it", "name a commit, a tag or a branch after the @"),
    "LocalEntryNotFoundError": ("the hub cannot be reached, and the cache lacks it",
                                "look at the network (HTTPS_PROXY, HF_ENDPOINT), or bring the directory by other means"),
    "OfflineModeIsEnabled": ("HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"),
    "SeveralModels": ("the repository holds several GGUF models, and one is wanted",
                      "hf download REPO FILE.gguf --revision COMMIT, then stage the same source"),
    "ConnectError": ("the hub cannot be reached", "look at the network (HTTPS_PROXY, HF_ENDPOINT)"),
}  # fmt: skip

Ticked = Callable[[int, int], None]


def pythons(profile: Profile, environ: Mapping[str, str]) -> list[str]:
    """Interpreters that may have huggingface_hub, best first: hosttune's own, OWN, those of engines of this host."""
    named = [environ["HOSTTUNE_HUB_PYTHON"]] if environ.get("HOSTTUNE_HUB_PYTHON") else []
    engines = [str(row["venv"]) + "/bin/python" for row in profile.engines.values() if row["in"] == "host" and row["venv"]]
    return list(dict.fromkeys([*named, sys.executable, OWN + "/bin/python", *engines]))


def fetch(host: Host, repository: str, revision: str, cache: str, token_file: str, candidates: Iterable[str],
          told: Ticked = lambda done, total: None) -> None:  # fmt: skip
    """Bring one revision into the cache. told(bytes, total) some times a second. Raises Refused, with the way out."""
    environ = environment(os.environ, token_file and private(host, token_file))
    python = next((p for p in candidates if host.run([p, "-I", "-c", "import " + _OF_HUB], 60).rc == 0), "")
    spec = "hf:%s@%s" % (repository, revision)
    if not python:
        raise Refused("no Python here has huggingface_hub, which downloads it", spec, INSTALL)
    source = (files(__package__) / "hub_script.py").read_text(encoding="utf-8")
    asked = json.dumps({"repository": repository, "revision": revision, "cache": cache})
    run = subprocess.Popen([python, "-I", "-c", source], env=environ, text=True, stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        assert run.stdin and run.stdout
        run.stdin.write(asked)
        run.stdin.close()
        last: dict[str, Any] = {}
        for line in run.stdout:
            if line.startswith("{"):
                last = json.loads(line)
                if "total" in last:
                    told(last["bytes"], last["total"])
    finally:
        if run.poll() is None:
            run.terminate()
        run.wait()
    if "folder" not in last:
        raise _refused(spec, last, run.returncode)


def environment(environ: Mapping[str, str], token_file: str = "") -> dict[str, str]:
    """What the download sees of the caller's environment: the hub's variables, proxies and certificates."""
    kept = {k: v for k, v in environ.items() if k.startswith(_PASSED) or k.lower() in _PROXIES}
    if token_file:
        kept.pop("HF_TOKEN", None)
        kept["HF_TOKEN_PATH"] = token_file
    kept["HF_HUB_DISABLE_PROGRESS_BARS"] = kept["HF_HUB_DISABLE_TELEMETRY"] = "1"
    return kept


def private(host: Host, path: str) -> str:
    """The path of a token, if only its owner can read it. Raises Refused and OSError."""
    seen = host.lstat(path)
    if seen.type != "file" or int(seen.mode, 8) & 0o077:
        raise Refused("others can read this token (mode %s, a %s)" % (seen.mode, seen.type), path, "chmod 600 %s" % path)
    return path


def _refused(spec: str, last: Mapping[str, Any], code: int) -> Refused:
    name = str(last.get("error", ""))
    what, way_out = _SAID.get(name, ("the download did not end well", "run this again: whole files are kept"))
    said = (str(last.get("what", "")).splitlines() or ["exit code %d" % code])[0]
    told = name in ("ENOSPC", "SeveralModels") or name not in _SAID  # what the other classes say is long, and no more
    return Refused("%s: %s" % (what, said) if told else what, spec, way_out)
