"""Locks and downloads, against a local server that speaks the needed part of the hub's API."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from colab_utils import fetch
from colab_utils.errors import DownloadFailed
from colab_utils.launch import engine_environment
from colab_utils.manifests import MANIFESTS, load_model_manifest

REVISION = "b968826d9c46dd6066d109eabc6255188de91218"
CANARY = "hf_canary_0123456789"


class Hub(BaseHTTPRequestHandler):
    """Answers model info; `gated` repositories need the canary token."""

    gated = False
    tokens: list[str] = []  # noqa: RUF012  (shared by all requests on purpose)

    def do_GET(self) -> None:
        token = self.headers.get("Authorization", "")
        Hub.tokens.append(token)
        if Hub.gated and CANARY not in token:
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.end_headers()
            return
        shard = {"rfilename": "model-00001-of-00001.safetensors", "size": 10, "blobId": "0" * 40,
                 "lfs": {"size": 10, "sha256": "a" * 64, "pointerSize": 130}}  # fmt: skip
        readme = {"rfilename": "README.md", "size": 3, "blobId": "1" * 40}
        body = {"id": "Qwen/Qwen3-8B", "sha": REVISION, "gated": False, "private": False,
                "siblings": [shard, readme], "downloads": 0, "tags": []}  # fmt: skip
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Nothing on the test's output."""


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    Hub.gated, Hub.tokens = False, []
    yield Hub
    server.shutdown()


@pytest.fixture
def manifest_copy(tmp_path) -> Path:
    path = tmp_path / "qwen3-8b.yaml"
    path.write_bytes((MANIFESTS / "models" / "qwen3-8b.yaml").read_bytes())
    return path


def test_lock_writes_what_the_hub_says(hub, manifest_copy):
    locked = fetch.lock_manifest(str(manifest_copy), token=None)
    assert locked.locked and locked.revision == REVISION
    assert locked.files["model-00001-of-00001.safetensors"].sha256 == "a" * 64
    assert locked.unverified == ("stop_tokens",)
    text = manifest_copy.read_text(encoding="utf-8")
    assert "# The card warns that greedy decoding" in text
    again = fetch.lock_manifest(str(manifest_copy), token=None)
    assert again == locked and manifest_copy.read_text(encoding="utf-8") == text


def test_a_gated_model_without_token_is_told_in_one_sentence(hub, manifest_copy):
    before = manifest_copy.read_bytes()
    hub.gated = True
    with pytest.raises(DownloadFailed, match="gated.*HF_TOKEN"):
        fetch.lock_manifest(str(manifest_copy), token=None)
    assert manifest_copy.read_bytes() == before
    assert fetch.lock_manifest(str(manifest_copy), token=CANARY).locked
    assert f"Bearer {CANARY}" in hub.tokens


def test_an_unreachable_hub_is_told_in_one_sentence(monkeypatch, manifest_copy):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match="could not be reached"):
        fetch.lock_manifest(str(manifest_copy), token=None)


def test_a_failed_download_leaves_no_complete_folder_and_no_token(hub, tmp_path, monkeypatch):
    hub.gated = True
    monkeypatch.delenv("HF_TOKEN", raising=False)
    said: list[str] = []
    with pytest.raises(DownloadFailed, match="is gated"):
        fetch.ensure_weights(
            load_model_manifest("qwen3-8b").model_copy(
                update={"architecture": load_model_manifest("smollm2-135m-instruct").architecture}
            ),
            cache=tmp_path,
            engine_python=Path("unused"),
            token="hf_wrong_token",
            say=said.append,
        )
    assert not list(tmp_path.rglob(".complete"))
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"hf_wrong_token" not in path.read_bytes()


def test_the_engine_gets_no_secret(monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, CANARY)
    environment = engine_environment()
    assert CANARY not in environment.values()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["PATH"] == os.environ["PATH"]
    assert load_model_manifest("qwen3-8b").locked is False
