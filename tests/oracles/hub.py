"""A Hugging Face hub on this machine: the few answers that uploading and downloading need."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants


@dataclass
class Repository:
    """Every commit's files, the newest last."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes], message: str = "") -> str:
        mark = hashlib.sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[mark] = files
        self.messages.append(message)
        return mark

    def at(self, revision: str) -> str | None:
        if revision == "main":
            return next(reversed(self.commits), None)
        return revision if revision in self.commits else None


@dataclass
class Hub:
    """The server's state, which tests read and set."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    refuses: int = 0  # an HTTP status for every request

    def add(self, name: str, files: dict[str, bytes], **how: Any) -> str:
        repository = self.repositories.setdefault(name, Repository(**how))
        return repository.commit(files)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body, path = self.rfile.read(length), unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        if token := self.headers.get("Authorization"):
            self.hub.tokens.add(token)
        if self.hub.refuses:
            return self._json({"error": "refused"}, self.hub.refuses)
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if parts[:2] == ["api", "models"]:
            return self._api("/".join(parts[2:4]), parts[4:], body)
        if parts[2:3] != ["resolve"]:
            return self._error(404, "")
        return self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def _create(self, wish: dict[str, Any]) -> None:
        name = f"{wish['organization']}/{wish['name']}"
        url = {"url": f"{self.hub.url}/{name}"}
        if name in self.hub.repositories:
            return self._json(url | {"error": "You already created this model repo"}, 409)
        private = wish.get("visibility") == "private" or bool(wish.get("private"))
        self.hub.repositories[name] = Repository(private)
        self.hub.repositories[name].commit({".gitattributes": b""})
        return self._json(url)

    def _api(self, name: str, rest: list[str], body: bytes) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._error(404, "RepoNotFound")
        match rest:
            case [] | ["revision", _]:
                return self._info(name, repository, rest[1] if rest else "main")
            case ["tree", revision, *_]:
                files = repository.commits[repository.at(revision) or ""]
                entries = [
                    {"type": "file", "path": path, "size": len(data), "oid": _blob(data)}
                    for path, data in files.items()
                ]
                return self._json(entries)
            case ["preupload", _]:
                wishes = json.loads(body)["files"]
                modes = [
                    {"path": wish["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for wish in wishes
                ]
                return self._json({"files": modes})
            case ["commit", _]:
                return self._commit(name, repository, body)
        return self._error(404, "")

    def _info(self, name: str, repository: Repository, revision: str) -> None:
        mark = repository.at(revision)
        if mark is None and repository.commits:
            return self._error(404, "RevisionNotFound")
        files = repository.commits.get(mark or "", {})
        about = {"id": name, "sha": mark or "0" * 40, "private": repository.private}
        return self._json(about | {"siblings": [{"rfilename": each} for each in files]})

    def _commit(self, name: str, repository: Repository, body: bytes) -> None:
        files, message = dict(repository.commits.get(repository.at("main") or "", {})), ""
        for line in body.splitlines():
            order = json.loads(line)
            match order["key"], order["value"]:
                case "header", value:
                    message = value["summary"]
                case "file", value:
                    files[value["path"]] = base64.b64decode(value["content"])
                case "deletedFile", value:
                    del files[value["path"]]
        mark = repository.commit(files, message)
        url = f"{self.hub.url}/{name}/commit/{mark}"
        self._json({"success": True, "commitOid": mark, "commitUrl": url})

    def _file(self, name: str, revision: str, path: str) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._error(404, "RepoNotFound")
        if repository.gated:
            return self._error(403, "GatedRepo")
        mark = repository.at(revision)
        data = repository.commits.get(mark or "", {}).get(path)
        if data is None:
            return self._error(404, "EntryNotFound")
        headers = {"ETag": f'"{_blob(data)}"', "X-Repo-Commit": mark or ""}
        return self._send(200, data, headers)

    def _json(self, content: object, status: int = 200) -> None:
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _blob(data: bytes) -> str:
    """The number that git gives to a file's content."""
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


@contextmanager
def running_hub(cache: Path) -> Iterator[Hub]:
    """A hub that huggingface_hub talks to until the block ends, with a cache of its own."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        pytest.MonkeyPatch.context() as p,
    ):
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        p.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        p.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        p.setattr(constants, "HF_HUB_CACHE", str(cache))
        p.setattr(constants, "HF_HUB_OFFLINE", False)
        p.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
