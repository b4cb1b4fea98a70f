"""A local server that speaks the part of the Hub's protocol that a gated model's download needs."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def _handler(
    folder: Path, repo: str, revision: str, token: str, seen: list[str]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            seen.append(self.headers.get("Authorization", ""))
            names = sorted(file.name for file in folder.iterdir() if file.is_file())
            name = path.rpartition("/")[2]
            if seen[-1] != f"Bearer {token}":
                self.answer(403, b"{}", X_Error_Code="GatedRepo")
            elif path == f"/api/models/{repo}/revision/{revision}":
                siblings = [{"rfilename": name} for name in names]
                info: dict[str, Any] = {"id": repo, "sha": revision, "siblings": siblings}
                self.answer(200, json.dumps(info).encode(), Content_Type="application/json")
            elif path.startswith(f"/api/models/{repo}/tree/{revision}"):
                tree = [
                    {"type": "file", "path": name, "size": (folder / name).stat().st_size,
                     "oid": hashlib.sha1((folder / name).read_bytes()).hexdigest()}
                    for name in names
                ]  # fmt: skip
                self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
            elif path.startswith(f"/{repo}/resolve/{revision}/") and name in names:
                data = (folder / name).read_bytes()
                etag = f'"{hashlib.sha1(data).hexdigest()}"'
                date = formatdate(usegmt=True)
                self.answer(200, data, ETag=etag, X_Repo_Commit=revision, Date=date)
            else:
                self.answer(404, b"{}", X_Error_Code="EntryNotFound")

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            """Nothing on the test's output."""

    return Handler


@contextmanager
def model_hub(folder: Path, repo: str, revision: str, token: str):
    """Yields (address, list of Authorization headers met) of a server of one gated model."""
    seen: list[str] = []
    handler = _handler(folder, repo, revision, token, seen)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
