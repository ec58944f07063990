# SPDX-License-Identifier: Apache-2.0
"""A small model hub on loopback: the requests that huggingface_hub makes for a download, answered as the hub answers them.

GET  /api/models/REPO/revision/REV    the commit         GET /api/models/REPO/tree/COMMIT    every file, with hashes
HEAD, GET /REPO/resolve/COMMIT/PATH   a file             (Range; X-Repo-Commit, X-Linked-Etag, X-Linked-Size)

Weights are LFS files (ETag: sha256), the rest is git's (ETag: sha1). Faults: a token that must be shown, a connection that
is cut in the middle of a file, content that is not what the list says.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
WEIGHTS = (".safetensors", ".gguf")


@dataclass
class Hub:
    """One repository. files: path -> content. token: must be shown, "" for a public one. cut: path -> how many answers are
    still cut in half. wrong: path -> content that is sent in place of the right one. asked: "GET /path", in order. seen:
    tokens that were shown."""

    repo: str
    files: Mapping[str, bytes]
    commit: str = COMMIT
    token: str = ""
    cut: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    url: str = ""

    def fetched(self) -> list[str]:
        """Files whose content was asked for."""
        mark = "GET /%s/resolve/%s/" % (self.repo, self.commit)
        return [line[len(mark) :] for line in self.asked if line.startswith(mark)]

    def row(self, path: str) -> dict[str, Any]:
        """One file as the hub lists it."""
        data = self.files[path]
        out: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_hash(data)}
        if path.endswith(WEIGHTS):
            out["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return out


def git_hash(data: bytes) -> str:
    """The name git gives a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(hub, self, body=True)

        def do_HEAD(self) -> None:
            _answer(hub, self, body=False)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    hub.url = "http://127.0.0.1:%d" % server.server_address[1]
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(hub: Hub, request: BaseHTTPRequestHandler, body: bool) -> None:
    path = unquote(request.path.partition("?")[0])
    hub.asked.append("%s %s" % (request.command, path))
    shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if shown:
        hub.seen.add(shown)
    if hub.token and shown != hub.token:
        _send(request, 401, b'{"error": "Invalid credentials"}', {"X-Error-Code": "RepoNotFound"}, body)
        return
    api, files = "/api/models/%s/" % hub.repo, "/%s/resolve/%s/" % (hub.repo, hub.commit)
    if path in (api + "revision/main", api + "revision/" + hub.commit):
        _json(request, {"id": hub.repo, "sha": hub.commit, "siblings": [{"rfilename": name} for name in hub.files]}, body)
    elif path.startswith(api + "revision/"):
        _send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
    elif path == api + "tree/" + hub.commit:
        _json(request, [hub.row(name) for name in hub.files], body)
    elif path.startswith(files) and path[len(files) :] in hub.files:
        _file(hub, request, path[len(files) :], body)
    else:
        _send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)


def _json(request: BaseHTTPRequestHandler, data: Any, body: bool) -> None:
    _send(request, 200, json.dumps(data).encode(), {"Content-Type": "application/json"}, body)


def _file(hub: Hub, request: BaseHTTPRequestHandler, path: str, body: bool) -> None:
    row = hub.row(path)
    etag = row["lfs"]["oid"] if "lfs" in row else row["oid"]
    data = hub.wrong.get(path, hub.files[path])
    head = {"ETag": '"%s"' % etag, "X-Repo-Commit": hub.commit, "X-Linked-Etag": '"%s"' % etag,
            "X-Linked-Size": str(row["size"]), "Accept-Ranges": "bytes"}  # fmt: skip
    part = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
    status = 206 if part else 200
    start = int(part[1]) if part else 0
    if part:
        head["Content-Range"] = "bytes %d-%d/%d" % (start, len(data) - 1, len(data))
    cut = body and hub.cut.get(path, 0) > 0
    if cut:
        hub.cut[path] -= 1
    _send(request, status, data[start:], head, body, (len(data) - start) // 2 if cut else None)


def _send(request: BaseHTTPRequestHandler, status: int, data: bytes, head: Mapping[str, str], body: bool,
          cut: int | None = None) -> None:  # fmt: skip
    request.send_response(status)
    for name, value in head.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    if body:
        request.wfile.write(data if cut is None else data[:cut])
    if cut is not None:
        request.close_connection = True
