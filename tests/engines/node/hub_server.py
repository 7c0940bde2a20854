"""A server that speaks as much of the hub's API as a download of a model or dataset needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

COMMIT = "a" * 40
DATASETS = "datasets/"
"""The prefix of the names of datasets. Other names are those of models."""
Files = Mapping[str, bytes]


class HubServer(ThreadingHTTPServer):
    """Serves models and datasets and remembers the requests."""

    daemon_threads = True

    def __init__(self, repositories: Mapping[str, Files], host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.repositories, self.requests = repositories, list[str]()
        self.may_send = threading.Event()
        """Whether the contents of files are sent. A download waits for it."""
        self.may_send.set()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_address[1]}"

    def downloads(self, file: str) -> int:
        """Returns how often a file was requested."""
        return sum(one.startswith("GET ") and one.endswith(f"/{file}") for one in self.requests)


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        for name, files in self.server.repositories.items():
            api = f"/api/{name}" if name.startswith(DATASETS) else f"/api/models/{name}"
            if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
                return self._json({"id": name.removeprefix(DATASETS), "sha": COMMIT})
            if path.startswith(f"{api}/tree/"):
                return self._json([_entry(file, body) for file, body in files.items()])
            if path.startswith(f"{api}/paths-info/"):
                wanted = parse_qs(self._body())["paths"]
                return self._json([_entry(file, files[file]) for file in wanted if file in files])
            for revision in (COMMIT, "main"):
                start = f"/{name}/resolve/{revision}/"
                if path.startswith(start):
                    return self._file(files.get(path.removeprefix(start)))
        self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def do_POST(self) -> None:
        self.do_GET()

    def _body(self) -> str:
        return self.rfile.read(int(self.headers["Content-Length"])).decode()

    def _file(self, body: bytes | None) -> None:
        if body is None:
            return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        if self.command == "GET":
            self.server.may_send.wait()
        return self._send(200, body, {"ETag": f'"{digest(body)}"', "X-Repo-Commit": COMMIT})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(file: str, body: bytes) -> dict[str, Any]:
    return {"type": "file", "path": file, "size": len(body), "oid": digest(body)}


def digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextmanager
def serving(repositories: Mapping[str, Files], host: str = "127.0.0.1") -> Iterator[HubServer]:
    with HubServer(repositories, host) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.may_send.set()
            server.shutdown()
            thread.join()
