"""A server that speaks as much of the hub's API as a download of a model needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "a" * 40
Files = Mapping[str, bytes]


class HubServer(ThreadingHTTPServer):
    """Serves models on loopback, and remembers the requests."""

    daemon_threads = True

    def __init__(self, models: Mapping[str, Files]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models, self.requests = models, list[str]()
        self.may_send = threading.Event()
        """Whether the contents of files are sent. A download waits for it."""
        self.may_send.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

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
        for name, files in self.server.models.items():
            if path == f"/api/models/{name}/revision/main":
                return self._json({"id": name, "sha": COMMIT})
            if path.startswith(f"/api/models/{name}/tree/"):
                listed = [
                    {"type": "file", "path": file, "size": len(body), "oid": digest(body)}
                    for file, body in files.items()
                ]
                return self._json(listed)
            start = f"/{name}/resolve/{COMMIT}/"
            if path.startswith(start) and (file := path.removeprefix(start)) in files:
                if self.command == "GET":
                    self.server.may_send.wait(60)
                headers = {"ETag": f'"{digest(files[file])}"', "X-Repo-Commit": COMMIT}
                return self._send(200, files[file], headers)
        self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@contextmanager
def serving(models: Mapping[str, Files]) -> Iterator[HubServer]:
    with HubServer(models) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.may_send.set()
            server.shutdown()
            thread.join()
