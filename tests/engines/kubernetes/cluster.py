"""A cluster on one machine for tests: an API server on loopback, to which a real kubectl talks, and the parts of the
controllers of JobSet and Job and of the kubelet that a run needs, `exec` among them.

Each pod is a process with the command and the environment of its container. It has an address of its own below
127.0.0.0/8. Where a pod would see a ConfigMap or an empty volume, the paths in its command are replaced.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.cli.commands import MAIN
from tests.engines.kubernetes.api_server import Handler

COORDINATOR = "jobset.sigs.k8s.io/coordinator"
INDEX = "batch.kubernetes.io/job-completion-index"
MISSING = [] if shutil.which("kubectl") else ["kubectl"]
"""What this machine lacks for such a cluster."""
Object = dict[str, Any]
EXEC = """
import json, os, subprocess, sys

words = sys.argv[1:]
if "exec" not in words:
    os.execv(KUBECTL, [KUBECTL, *words])
options, command = words[: words.index("--")], words[words.index("--") + 1 :]
assert not subprocess.run([KUBECTL, *options, "--help"], capture_output=True).returncode
[file] = [file for word in options if os.path.exists(file := f"{FOLDER}/{word}.json")]
pod = json.load(open(file))
os.kill(pod["pid"], 0)
for path, here in pod["paths"].items():
    command = [word.replace(path, here) for word in command]
os.execvpe(command[0], command, pod["environ"])
"""
"""The kubectl of the launcher: the real one, but `exec` starts the command itself, beside the process of the pod."""


@dataclass
class Pod:
    """A pod and its process."""

    data: Object
    job: Object
    address: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    """A path in the pod -> the path of this machine."""
    is_gone: bool = False
    is_replaced: bool = False
    """Whether its Job has made another pod in its place."""

    @property
    def name(self) -> str:
        return str(self.data["metadata"]["name"])

    @property
    def container(self) -> Object:
        found: Object = self.data["spec"]["containers"][0]
        return found

    def local(self, text: str) -> str:
        for path, here in self.paths.items():
            text = text.replace(path, here)
        return text

    def end(self, state: Object) -> None:
        code = int(state.get("exitCode", 0))
        self.data["status"] |= {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": self.container["name"], "state": {"terminated": state}}],
        }

    @property
    def exit_code(self) -> int:
        """The exit code of its container; -1 without one."""
        states = self.data["status"].get("containerStatuses", [{}])
        return int(states[0].get("state", {}).get("terminated", {}).get("exitCode", -1))

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without success. One that was deleted and has exited with 0 has succeeded."""
        return self.data["status"]["phase"] == "Failed" or (self.is_gone and not self.is_over)

    @property
    def is_over(self) -> bool:
        return self.data["status"]["phase"] in ("Succeeded", "Failed")


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder, self.objects = folder, dict[tuple[str, str], Object]()
        self.pods: list[Pod] = []
        self.lock = threading.RLock()
        self.restarts = dict[str, int]()
        """JobSet -> how often it has started again."""
        self.failures = dict[tuple[str, str], int]()
        """JobSet and replicated job -> the failed pods that count for `backoffLimit`."""
        self._numbers = itertools.count()
        self.is_holding = False
        """Whether pods wait, as if no machine were free."""
        self._addresses = iter(
            f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}.{n}" for n in range(1, 250)
        )
        self._is_closing = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"cluster": self}))
        self.server.daemon_threads = True
        self._threads = [
            threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}),
            threading.Thread(target=self._control),
        ]
        self._write_tools()
        for thread in self._threads:
            thread.start()

    def _write_tools(self) -> None:
        """Writes the configuration of kubectl, and the `meshctl` of the image."""
        cluster = {"server": f"http://127.0.0.1:{self.server.server_port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "stub", "cluster": cluster}],
            "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "me", "namespace": "lab"}}],
            "users": [{"name": "me", "user": {}}],
            "current-context": "stub",
        }
        (self.folder / "kubeconfig").write_text(json.dumps(config))
        (self.folder / "bin").mkdir()
        kubectl = f"FOLDER, KUBECTL = {str(self.folder)!r}, {shutil.which('kubectl')!r}\n{EXEC}"
        for name, code in (("meshctl", MAIN), ("kubectl", kubectl)):
            tool = self.folder / "bin" / name
            tool.write_text(f"#!{sys.executable}\n{code}\n")
            tool.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        """The variables with which kubectl finds this cluster."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"KUBECONFIG": str(self.folder / "kubeconfig"), "HOME": str(self.folder), "PATH": path}

    def close(self) -> None:
        self._is_closing.set()
        self.server.shutdown()
        for thread in self._threads:
            thread.join()
        self.server.server_close()
        for pod in self.pods:
            self._kill(pod)

    # The controllers

    def _control(self) -> None:
        while not self._is_closing.wait(0.05):
            with self.lock:
                for pod in self.pods:
                    self._look(pod)
                for (kind, _), found in list(self.objects.items()):
                    if kind == "jobsets":
                        self._reconcile(found)

    def _look(self, pod: Pod) -> None:
        if pod.process and not pod.is_over and (code := pod.process.poll()) is not None:
            pod.end(
                {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
            )
        if "deletionTimestamp" in pod.data["metadata"] and (pod.is_over or not pod.process):
            pod.is_gone = True

    def _reconcile(self, job_set: Object) -> None:
        name = job_set["metadata"]["name"]
        own = [pod for pod in self.pods if pod.job["set"] == name and not pod.is_replaced]
        status = job_set.setdefault("status", {"conditions": []})
        if status["conditions"]:
            return
        if not own:
            self._start_pods(job_set)
            return
        for pod in own:
            if not pod.process and not self.is_holding and "deletionTimestamp" not in pod.data["metadata"]:
                self._run(pod)
        why = [self._reconcile_job(job_set, job, own) for job in job_set["spec"]["replicatedJobs"]]
        if reason := next(filter(None, why), ""):
            self._fail(job_set, reason, own)
        elif all(pod.data["status"]["phase"] == "Succeeded" for pod in own):
            status["conditions"] = [{"type": "Completed", "status": "True", "reason": "AllJobsCompleted"}]

    def _reconcile_job(self, job_set: Object, job: Object, pods: Sequence[Pod]) -> str:
        """Replaces the failed pods of a Job, once they have ended. Returns why the Job has failed; empty if it
        has not."""
        key, spec = (job_set["metadata"]["name"], job["name"]), job["template"]["spec"]
        for pod in [pod for pod in pods if pod.job["name"] == job["name"] and pod.has_failed]:
            action = _action(spec["podFailurePolicy"]["rules"], pod)
            if action == "FailJob":
                return "PodFailurePolicy"
            if action != "Ignore":
                self.failures[key] = self.failures.get(key, 0) + 1
            if self.failures.get(key, 0) > spec["backoffLimit"]:
                return "BackoffLimitExceeded"
            pod.is_replaced = True
            head = pod.data["metadata"]["annotations"][COORDINATOR]
            # The name of the head is that of its pod's place, so another pod there has the same address.
            address = head if pod.address == head else next(self._addresses)
            another = self._made(key[0], job["name"], pod.job["index"], spec["template"], address)
            another.data["metadata"]["annotations"][COORDINATOR] = head
            self.pods.append(another)
        return ""

    def _fail(self, job_set: Object, reason: str, pods: Sequence[Pod]) -> None:
        """Starts the JobSet again where its failure policy says so. Otherwise it has failed."""
        name, policy = job_set["metadata"]["name"], job_set["spec"]["failurePolicy"]
        is_final = any(reason in rule["onJobFailureReasons"] for rule in policy.get("rules", ()))
        if is_final or self.restarts.get(name, 0) >= policy["maxRestarts"]:
            job_set["status"]["conditions"] = [{"type": "Failed", "status": "True", "reason": "FailedJobs"}]
            for pod in pods:
                if not pod.is_over:
                    self.delete_pod(pod)
            return
        self.restarts[name] = self.restarts.get(name, 0) + 1
        self.failures = {key: count for key, count in self.failures.items() if key[0] != name}
        for pod in [pod for pod in self.pods if pod.job["set"] == name]:
            self._kill(pod)
            self.pods.remove(pod)

    def _start_pods(self, job_set: Object) -> None:
        name = job_set["metadata"]["name"]
        needed = [("configmaps", name), ("secrets", name)]
        if any(key not in self.objects for key in needed):
            return
        head = ""
        for job in job_set["spec"]["replicatedJobs"]:
            spec = job["template"]["spec"]
            for index in range(spec["completions"]):
                pod = self._made(name, job["name"], index, spec["template"], next(self._addresses))
                head = head or pod.address
                pod.data["metadata"]["annotations"][COORDINATOR] = head
                self.pods.append(pod)

    def _made(self, job_set: str, job: str, index: int, template: Object, address: str) -> Pod:
        given = template["metadata"]
        labels = {
            **given.get("labels", {}),
            "jobset.sigs.k8s.io/jobset-name": job_set,
            "jobset.sigs.k8s.io/replicatedjob-name": job,
            INDEX: str(index),
        }
        name = f"{job_set}-{job}-0-{index}-{next(self._numbers):05d}"
        metadata = {
            "name": name,
            "namespace": "lab",
            "labels": labels,
            "annotations": {**given.get("annotations", {}), INDEX: str(index)},
            "creationTimestamp": now(),
        }
        data = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        log = self.folder / f"{name}.log"
        return Pod(data, {"set": job_set, "name": job, "index": index}, address, log)

    # The kubelet

    def _run(self, pod: Pod) -> None:
        pod.data["status"]["podIP"] = pod.address
        config = self.objects["configmaps", pod.job["set"]]
        files = self.folder / pod.name
        files.mkdir()
        for name, text in config["data"].items():
            (files / name).write_text(text)
        pod.paths = {"/meshctl/files": str(files), "/meshctl/runs": str(files / "runs")}
        pod.environ = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("MESHCTL_", "PYTEST_"))
            },
            "PATH": self.environ["PATH"],
            "JOB_COMPLETION_INDEX": str(pod.job["index"]),
            **{one["name"]: self._value(pod, one) for one in pod.container["env"]},
        }
        with pod.log.open("wb") as log:
            pod.process = subprocess.Popen(
                [pod.local(word) for word in pod.container["command"]],
                env=pod.environ,
                cwd=files,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        facts = {"pid": pod.process.pid, "environ": pod.environ, "paths": pod.paths}
        (self.folder / f"{pod.name}.json").write_text(json.dumps(facts))
        pod.data["status"]["phase"] = "Running"
        pod.data["status"]["containerStatuses"] = [{"name": pod.container["name"], "state": {"running": {}}}]

    def _value(self, pod: Pod, one: Object) -> str:
        if "value" in one:
            return str(one["value"])
        source = one["valueFrom"]
        if secret := source.get("secretKeyRef"):
            return str(self.objects["secrets", secret["name"]]["stringData"][secret["key"]])
        path = source["fieldRef"]["fieldPath"]
        if path == "status.podIP":
            return pod.address
        found = re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)
        assert found, path
        return str(pod.data["metadata"]["annotations"][found[1]])

    def delete_pod(self, pod: Pod) -> None:
        """Asks a pod to end, as its deletion does. The kubelet signals the first process of the container."""
        pod.data["metadata"].setdefault("deletionTimestamp", now())
        if pod.process and pod.process.poll() is None:
            pod.process.send_signal(signal.SIGTERM)

    def _kill(self, pod: Pod) -> None:
        if pod.process:
            with suppress(ProcessLookupError):
                os.killpg(pod.process.pid, signal.SIGKILL)
            pod.process.wait()

    def kill_pod(self, pod: Pod, reason: str = "Error") -> None:
        """Kills all processes of a pod, as the kernel does where it has no more memory."""
        with self.lock:
            self._kill(pod)
            pod.end({"exitCode": 137, "reason": reason})

    def delete_job_set(self, name: str) -> None:
        """Asks all pods of a JobSet to end, that of the head last."""
        for pod in reversed(self.pods):
            if pod.job["set"] == name:
                self.delete_pod(pod)
        for kind in ("jobsets", "configmaps", "secrets"):
            self.objects.pop((kind, name), None)

    def pod(self, job: str, index: int) -> Pod:
        """Returns the pod of a replicated job."""
        [found] = [pod for pod in self.pods if f"-{job}-0-{index}-" in pod.name and not pod.is_replaced]
        return found


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _action(rules: Sequence[Object], pod: Pod) -> str:
    """Returns the action of the first rule of a policy that holds for a failed pod; empty without one."""
    conditions = pod.data["status"].get("conditions", ())
    for rule in rules:
        wanted = [one["type"] for one in rule.get("onPodConditions", ())]
        if any(one["type"] in wanted for one in conditions) or (
            pod.exit_code in rule.get("onExitCodes", {}).get("values", ())
        ):
            return str(rule["action"])
    return ""


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.close()
