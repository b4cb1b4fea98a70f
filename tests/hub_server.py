"""A local server that speaks the part of the Hub's protocol that a data set mirror needs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_canary_0123456789"
REPOSITORY = "someone/answers"


def blob_id(data: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class HubState:
    """One data set: its commits (revision -> files), and what the server is told to do wrong.

    `fail` is a status that every request gets; `spoil` changes what a commit stores.
    """

    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    exists: bool = False
    private: bool = True
    fail: int = 0
    spoil: Any = None
    requests: list[str] = field(default_factory=list)

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1][1] if self.commits else {}

    def at(self, revision: str) -> dict[str, bytes] | None:
        if revision == "main":
            return self.files
        return next((files for oid, files in self.commits if oid == revision), None)

    def create(self, private: bool) -> None:
        self.exists, self.private = True, private
        self.commit({".gitattributes": b""})

    def commit(self, files: dict[str, bytes]) -> str:
        merged = {**self.files, **files}
        oid = hashlib.sha1(repr((len(self.commits), sorted(merged))).encode()).hexdigest()
        self.commits.append((oid, merged))
        return oid


def _handler(state: HubState) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        @property
        def site(self) -> str:
            return f"http://{self.headers['Host']}"

        def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            path = unquote(urlsplit(self.path).path)
            state.requests.append(f"{self.command} {path}")
            if state.fail:
                self.answer(state.fail, {"error": "told to fail"})
            elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.answer(401, {"error": "no"}, {"X-Error-Code": "RepoNotFound"})
            elif path == "/api/repos/create":
                self.create(json.loads(body))
            elif path.startswith(f"/api/datasets/{REPOSITORY}"):
                self.of_repository(path.removeprefix(f"/api/datasets/{REPOSITORY}"), body)
            elif path.startswith(f"/datasets/{REPOSITORY}/resolve/"):
                revision, _, name = path.split("/resolve/")[1].partition("/")
                self.resolve(revision, name)
            else:
                self.answer(404, {"error": path})

        do_GET = do_POST = do_HEAD = handle_any

        def create(self, asked: dict[str, Any]) -> None:
            assert asked["type"] == "dataset"
            if state.exists:
                self.answer(409, {"error": "exists", "url": REPOSITORY})
                return
            state.create(asked.get("visibility") == "private" or bool(asked.get("private")))
            self.answer(200, {"url": f"{self.site}/datasets/{REPOSITORY}"})

        def of_repository(self, rest: str, body: bytes) -> None:
            if not state.exists:
                self.answer(404, {"error": "none"}, {"X-Error-Code": "RepoNotFound"})
            elif rest == "" or rest.startswith("/revision/"):
                revision = rest.removeprefix("/revision/") or "main"
                sha = state.commits[-1][0] if revision == "main" else revision
                siblings = [{"rfilename": name} for name in state.at(sha) or {}]
                self.answer(200, {"id": REPOSITORY, "sha": sha, "private": state.private,
                                  "siblings": siblings, "downloads": 0, "tags": []})  # fmt: skip
            elif rest.startswith("/tree/"):
                revision, _, folder = rest.removeprefix("/tree/").partition("/")
                files = state.at(revision) or {}
                below = {n: d for n, d in files.items() if n.startswith(f"{folder}/") or not folder}
                if not below:
                    self.answer(404, {"error": "no"}, {"X-Error-Code": "EntryNotFound"})
                    return
                self.answer(200, [_info(name, data) for name, data in below.items()])
            elif rest.startswith("/preupload/"):
                asked = json.loads(body)["files"]
                plain = {"uploadMode": "regular", "shouldIgnore": False}
                self.answer(200, {"files": [{"path": f["path"], **plain} for f in asked]})
            elif rest.startswith("/commit/"):
                lines = [json.loads(line) for line in body.splitlines()]
                files = {
                    line["value"]["path"]: base64.b64decode(line["value"]["content"])
                    for line in lines if line["key"] == "file"
                }  # fmt: skip
                if state.spoil is not None:
                    files = state.spoil(files)
                oid = state.commit(files)
                self.answer(200, {"commitUrl": f"{self.site}/datasets/{REPOSITORY}/commit/{oid}",
                                  "commitOid": oid})  # fmt: skip
            elif rest.startswith("/paths-info/"):
                files = state.at(rest.removeprefix("/paths-info/")) or {}
                asked = parse_qs(body.decode())["paths"]
                self.answer(200, [_info(n, files[n]) for n in asked if n in files])
            else:
                self.answer(404, {"error": rest})

        def resolve(self, revision: str, name: str) -> None:
            files = state.at(revision) or {}
            if name not in files:
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            oid = revision if revision != "main" else state.commits[-1][0]
            data = files[name]
            headers = {"ETag": f'"{blob_id(data)}"', "X-Repo-Commit": oid,
                       "Date": formatdate(usegmt=True)}  # fmt: skip
            self.answer(200, data, headers)

        def log_message(self, *arguments: object) -> None:
            """Nothing on the test's output."""

    return Handler


def _info(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(data), "oid": blob_id(data)}


@contextmanager
def hub_server():
    """Yields (address, state) of a server that ends with the block."""
    state = HubState()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
