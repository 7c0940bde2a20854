"""Pods of a Kubernetes cluster, one for each node, as a JobSet.

    launcher        writes the manifests to RUN/job, applies them with kubectl, and follows the run
      pod           `meshctl agent`, the node process; the first pod runs `meshctl head` beside it

`kubernetes/manifest.py` makes the manifests. Where the launcher does not see the run directory of the pods,
it copies what people and commands read of it through `kubectl exec` (`run/mirror.py`).
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.engines.checks.fork import output_of
from meshctl.engines.engine import TOKEN_PLACE, CannotStart, Handle, Job, Rendered
from meshctl.engines.kubernetes.manifest import (
    API_VERSION,
    CONTAINER,
    HEAD_FILE,
    JobSetOptions,
    Object,
    objects_of,
)
from meshctl.engines.kubernetes.pods import JOBSET_LABEL, Pod, Seen, reported
from meshctl.network.connection import new_token
from meshctl.plan.model import Plan
from meshctl.run.directory import NO_START, JobState, Phase, RunDir, Start, write_whole
from meshctl.run.events import Observer
from meshctl.run.mirror import Mirror
from meshctl.text.english import listed
from meshctl.text.kubernetes_names import replicated_job, too_long
from meshctl.text.yaml_text import yaml_text

MANIFEST = "jobset.yaml"
"""The file in RUN/job. It does not contain the token of the run."""
MAX_CONFIG_BYTES = 1_000_000
"""A ConfigMap has at most 1 MiB, its names included."""
JOB_SETS = "jobsets.jobset.x-k8s.io"
LOST_PODS, ERROR = "lost-pods.json", "error: "
TAIL_LINES = 50
"""Lines of the log of a failed pod in which its error is searched."""
ANSWER_S = 60
"""Seconds within which kubectl must end."""
REQUEST = ("--request-timeout", "30s")
"""Options of commands that ask the API server once."""


class JobSetEngine:
    """A `JobEngine`."""

    supervisor: Literal["here", "inside"] = "inside"
    host = ""
    examines_nodes = True
    shares_files = True

    def __init__(self, **options: Any) -> None:
        """The options of `engine.jobset`."""
        self._options = JobSetOptions(**options)
        self.join_limit_s, self.lease_s = self._options.join_limit, self._options.lease
        self._kubectl = Kubectl(self._options.context, self._options.namespace)

    def preflight(self, plan: Plan, start: Start) -> None:
        """Checks that kubectl is there. Raises `CannotStart`. Each pod checks itself before it starts
        workers."""
        try:
            self._kubectl.call("version", "--client", "-o", "json")
        except OSError as error:
            raise CannotStart(f"{error}; the engine `jobset` needs it") from None

    def render(
        self, plan: Plan, run: RunDir, head: str, start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        text = yaml_text(*self._objects(plan, run, start, recipe, TOKEN_PLACE))
        return Rendered((), files={run.submitted / MANIFEST: text}, document=text)

    def _objects(
        self, plan: Plan, run: RunDir, start: Start, recipe: str, token: str
    ) -> tuple[Object, Object, Object]:
        code = (self._options.code,) if self._options.code else start.path  # as the pods see it
        files = {"plan.json": plan.to_json(), "start.json": replace(start, path=code).to_json()}
        if plan.run.elastic:
            files["recipe.yaml"] = recipe
        return objects_of(self._options, plan, run, files, token)

    # The launcher

    def submit(self, plan: Plan, run: RunDir) -> JobSetJob:
        """Creates the objects of a run, in place of those of an earlier launch. Raises `CannotStart`."""
        name = self._options.job_name(plan, run)
        if found := too_long(name, plan.cluster.nodes):
            raise CannotStart(
                f"`{found}` has {len(found)} characters, and Kubernetes allows 63: "
                "write a shorter `engine.jobset.name`"
            )
        start = run.read_start()
        try:
            recipe = run.recipe.read_text(encoding="utf-8")
            run.submitted.mkdir(exist_ok=True)
            for path, text in self.render(plan, run, "", start, recipe).files.items():
                write_whole(path, text, private=True)
        except OSError as error:
            reason = f"{error.strerror}: {error.filename}"
            raise CannotStart(f"the manifests cannot be written: {reason}") from None
        job_set, config, secret = self._objects(plan, run, start, recipe, new_token())
        if sum(map(len, config["data"].values())) > MAX_CONFIG_BYTES:
            raise CannotStart(f"{listed(config['data'])} together are larger than a ConfigMap may be (1 MiB)")
        try:
            kinds = f"{JOB_SETS},configmaps,secrets"
            self._kubectl.call("delete", kinds, name, "--ignore-not-found")
            self._kubectl.apply([job_set])
            made = self._kubectl.get(JOB_SETS, name) or {}
            uid = str(made.get("metadata", {}).get("uid", ""))
            owner = {"apiVersion": API_VERSION, "kind": "JobSet", "name": name, "uid": uid}
            for one in (config, secret):  # the cluster deletes them together with the JobSet
                one["metadata"]["ownerReferences"] = [owner]
            self._kubectl.apply([config, secret])
        except OSError as error:
            raise CannotStart(str(error)) from None
        return self.submitted(run, name)

    def submitted(self, run: RunDir, number: str) -> JobSetJob:
        return JobSetJob(self._kubectl, self._options, run, number)

    # The head

    def start(self, job: Job) -> Handle:
        return HeadHandle(job)

    def observers(self, run: RunDir, environ: Mapping[str, str]) -> Sequence[Observer]:
        return ()


class JobSetJob:
    """A `SubmittedJob`."""

    def __init__(self, kubectl: Kubectl, options: JobSetOptions, run: RunDir, number: str) -> None:
        self.number, self.name = number, f"JobSet {number}"
        self._kubectl, self._options, self._run = kubectl, options, run

    def state(self) -> JobState | None:
        """Returns the state of the JobSet, after a copy of what is new in the run directory."""
        try:
            seen = self._look()
        except OSError:
            return None
        head = seen.head(replicated_job(0))
        if head and head.phase == "Running":
            self._copy(head)
        lost = self._lost(seen)
        phase: Phase = "running" if head and head.phase != "Pending" else "queued"
        text = seen.text(lost)
        if seen.job_set is None or seen.verdict:
            phase, text = "ended", f"{text}{self._error(seen)}"
        return JobState(self.name, phase, text, cause=reported(lost))

    def _lost(self, seen: Seen) -> dict[str, str]:
        """Returns the pods that are or were lost, each with its reason. A file keeps those that exist no
        more."""
        file, known = self._run.submitted / LOST_PODS, dict[str, str]()
        with suppress(OSError, ValueError):
            known = dict(json.loads(file.read_text(encoding="utf-8")))
        lost = {**known, **seen.lost()}
        if lost != known:
            with suppress(OSError):
                write_whole(file, json.dumps(lost, indent=2) + "\n")
        return lost

    def _look(self) -> Seen:
        """Returns the JobSet and its pods. After its end the pods are read once more, because they may have
        ended after the first reading. Raises `OSError`."""
        pods = self._pods()
        seen = Seen(self._kubectl.get(JOB_SETS, self.number), pods)
        return replace(seen, pods=self._pods()) if seen.verdict else seen

    def _pods(self) -> list[Pod]:
        found = self._kubectl.get("pods", "-l", f"{JOBSET_LABEL}={self.number}") or {}
        return [Pod(one) for one in found.get("items", ())]

    def _error(self, seen: Seen) -> str:
        """Returns the error with which the log of a failed pod ends; empty without one."""
        for name in seen.failed():
            with suppress(OSError):
                log = self._kubectl.call("logs", name, "-c", CONTAINER, "--tail", str(TAIL_LINES))
                if errors := [line for line in log.splitlines() if line.startswith(ERROR)]:
                    return f": {errors[-1].removeprefix(ERROR)}"
        return ""

    def _copy(self, head: Pod) -> None:
        """Copies what is new in the run directory, if this machine does not see it. A copy that breaks is
        continued by the next one."""
        folder = self._options.folder(Plan.read(self._run.plan), self._run)
        mirror = Mirror(self._run)
        if str(folder) == str(self._run.path) or (lock := mirror.lock()) is None:
            return
        try:
            known = json.dumps(mirror.known()) + "\n"
            text = self._in_head(head, f'exec "$meshctl" mirror {shlex.quote(str(folder))}', folder, known)
            mirror.apply(text.splitlines())
        except (ValueError, OSError):
            pass
        finally:
            os.close(lock)

    def _in_head(self, head: Pod, script: str, folder: PurePosixPath, given: str = "") -> str:
        """Runs a script in the container of the head. Raises `OSError`."""
        script = f". {shlex.quote(str(folder / HEAD_FILE))}; {script}"
        words = ("exec", *(["-i"] if given else []), head.name, "-c", CONTAINER, "--", "sh", "-c", script)
        return self._kubectl.call(*words, given=given)

    def signal(self, number: signal.Signals) -> None:
        head = self._look().head(replicated_job(0))
        if head is None:
            raise OSError(f"{self.name} has no pod of the head")
        folder = self._options.folder(Plan.read(self._run.plan), self._run)
        self._in_head(head, f'kill -{int(number)} "$pid"', folder)

    def cancel(self) -> None:
        self._kubectl.call("delete", JOB_SETS, self.number, "--ignore-not-found", "--wait=false")


class HeadHandle(Handle):
    """Pods, which connect to the head."""

    def __init__(self, job: Job) -> None:
        self._job = job

    replaces_nodes = True

    def restart(self, nodes: Sequence[int]) -> bool:
        """Returns True: with `run.restarts` the Job of a lost pod starts another one, which connects to the
        head."""
        return True

    def close(self) -> None:
        """Keeps the pod until the launcher's machine has the end of the run, which nobody can read once the
        pod has ended. All observers have ended by now, so `state.json` is the last one."""
        run, ended = self._job.run, time.time()
        if _copied(run) >= ended - RECENT_S:  # a machine copies it
            while time.time() < ended + WAIT_S and _copied(run) <= ended:
                time.sleep(POLL_S)


RECENT_S = 15.0
"""A copy that was made within this time will be made again."""
WAIT_S = 8.0
"""Time that the head waits for the last copy."""
POLL_S = 0.1


def _copied(run: RunDir) -> float:
    """Returns when the last copy began, in seconds since the epoch; 0 if there was none."""
    try:
        return run.copied.stat().st_mtime
    except OSError:
        return 0.0


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a context and a namespace; empty for those of its configuration."""

    context: str = ""
    namespace: str = ""

    def call(self, *words: str, given: str = "") -> str:
        """Runs a command with a standard input. Returns its output. Raises `OSError`."""
        options = ["--context", self.context] if self.context else []
        options += ["--namespace", self.namespace] if self.namespace else []
        argv = ["kubectl", *options, *words]
        try:
            return output_of(argv, ANSWER_S, given=given)
        except OSError as error:
            raise OSError(f"kubectl {words[0]} has failed: {error}") from None

    def get(self, kind: str, *words: str) -> dict[str, Any] | None:
        """Returns an object, or a list of objects; None if it does not exist. Raises `OSError`."""
        try:
            text = self.call("get", kind, *words, "--ignore-not-found", "-o", "json", *REQUEST)
            found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        except ValueError:
            raise OSError("the answer of kubectl get is not JSON") from None
        return found

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Creates objects, or changes them. Raises `OSError`."""
        given = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.call("apply", "-f", "-", *REQUEST, given=given)
