"""The API server of the cluster of `cluster.py`: what kubectl asks of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from tests.engines.kubernetes.cluster import Cluster

KINDS = {"pods": "Pod", "configmaps": "ConfigMap", "secrets": "Secret"}
JOBSET_API = "jobset.x-k8s.io/v1alpha2"
VERBS = ["get", "list", "create", "patch", "delete"]
Object = dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if discovered := _discovered(url.path):
            self._answer(discovered)
        elif url.path == "/openapi/v2":
            self._send(200, b"", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        else:
            self._get(url.path.split("/"), parse_qs(url.query))

    def _get(self, parts: Sequence[str], query: dict[str, list[str]]) -> None:
        kind, name, below = _object_at(parts)
        with self.cluster.lock:
            pods = {pod.name: pod for pod in self.cluster.pods if not pod.is_gone}
            if kind == "pods" and name in pods and below == "log":
                lines = pods[name].log.read_text().splitlines(keepends=True)
                tail = int(query.get("tailLines", ["0"])[0])
                self._send(200, "".join(lines[-tail:]).encode(), "text/plain")
                return
            if kind == "pods" and not name:
                wanted = dict(one.split("=") for one in query.get("labelSelector", [""])[0].split(",") if one)
                items = [
                    pod.data
                    for pod in pods.values()
                    if wanted.items() <= pod.data["metadata"]["labels"].items()
                ]
                self._answer({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
            elif found := pods[name].data if name in pods else self.cluster.objects.get((kind, name)):
                self._answer(found)
            else:
                self._refuse(404, "NotFound", f"{kind} {name!r} not found")

    def do_POST(self) -> None:
        kind, _, _ = _object_at(urlsplit(self.path).path.split("/"))
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found["metadata"] = {"namespace": "lab", "uid": "11-22", **found["metadata"]}
        with self.cluster.lock:
            self.cluster.objects[kind, found["metadata"]["name"]] = found
        self._answer(found)

    do_PATCH = do_POST

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind, name, _ = _object_at(urlsplit(self.path).path.split("/"))
        with self.cluster.lock:
            pods = [pod for pod in self.cluster.pods if pod.name == name and not pod.is_gone]
            if kind == "pods" and pods:
                self.cluster.delete_pod(pods[0])
            elif kind == "jobsets" and (kind, name) in self.cluster.objects:
                self.cluster.delete_job_set(name)
            elif self.cluster.objects.pop((kind, name), None) is None:
                self._refuse(404, "NotFound", f"{kind} {name!r} not found")
                return
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"uid": "11-22"}})

    def _answer(self, data: Object) -> None:
        self._send(200, json.dumps(data).encode(), "application/json")

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"status": "Failure", "reason": reason, "code": code, "message": message}
        text = json.dumps({"kind": "Status", "apiVersion": "v1", **status})
        self._send(code, text.encode(), "application/json")

    def _send(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _object_at(parts: Sequence[str]) -> tuple[str, str, str]:
    """Returns the kind, the name and what is below it of a path such as /api/v1/namespaces/lab/pods/NAME/log."""
    found = list(parts[parts.index("namespaces") + 2 :]) if "namespaces" in parts else []
    kind, name, below = (*found, "", "", "")[:3]
    return kind, name, below


def _discovered(path: str) -> Object | None:
    """Returns the answer to a question about the kinds of objects that the server has."""
    version = {"groupVersion": JOBSET_API, "version": "v1alpha2"}
    group = {"name": "jobset.x-k8s.io", "versions": [version], "preferredVersion": version}
    kinds = {"/api/v1": KINDS, f"/apis/{JOBSET_API}": {"jobsets": "JobSet"}}
    if path in kinds:
        resources = [
            {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": VERBS}
            for name, kind in kinds[path].items()
        ]
        return {"kind": "APIResourceList", "groupVersion": path.split("/", 2)[2], "resources": resources}
    return {
        "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.4"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]},
    }.get(path)
