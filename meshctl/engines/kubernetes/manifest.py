"""The objects of a run in a Kubernetes cluster: a JobSet, and the ConfigMap and the Secret that its pods use.

    JobSet NAME        a replicated job for each set of nodes that host the same groups, a pod for each node
    ConfigMap NAME     the plan and the start of the run, which pods copy to the run directory, and the recipe
                       of one that may change its size
    Secret NAME        the token of the run

The first pod of the first replicated job is the head: it runs `meshctl head` beside the node process. The
controller of JobSet gives it a host name that all pods resolve, and announces it in an annotation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.remote import NO_MESHCTL, NO_SETUP
from meshctl.network.connection import TOKEN_VARIABLE
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import NodeSet, node_sets
from meshctl.run.directory import RunDir
from meshctl.run.process import ENDED_BY_HEAD, ENDED_BY_SCHEDULER
from meshctl.text.kubernetes_names import RESOURCES, label_of, replicated_job, subdomain_of

API_VERSION = "jobset.x-k8s.io/v1alpha2"
CONTAINER = "node"
FILES = "/meshctl/files"
"""The folder in pods at which the ConfigMap is mounted."""
COORDINATOR = "jobset.sigs.k8s.io/coordinator"
"""The annotation of pods with the host name of the head."""
TOKEN_KEY = "token"
MANAGED = {"app.kubernetes.io/managed-by": "meshctl"}
QUEUE, QUEUE_PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
VOLCANO = "volcano"
VOLCANO_QUEUE, VOLCANO_MEMBERS = "scheduling.volcano.sh/queue-name", "scheduling.volcano.sh/group-min-member"
VERDICTS = (1, 4, 5, 70, 130)
"""Exit codes of the head, and of nodes that it has ended, with which a run is over. After another one the
JobSet may start again."""
HEAD_FILE = ".pod"
"""The file in the run directory with the pid of the head and the path of `meshctl` as variables of a shell,
for commands that are started in the pod later."""
RUNS = "/meshctl/runs"
"""The folder of runs in a pod without volumes."""
MIB = 1 << 20
SHM_BYTES = 512 * MIB
"""Bytes of /dev/shm for NCCL and loaders of data, which `doctor` recommends as well."""
WORKER_SHM_BYTES = 64 * MIB
"""Bytes of /dev/shm for each worker."""
GRACE_S = 30.0
"""Seconds that the pods have in addition to `run.grace`, to end after the run has stopped."""
SECRET_KEY = re.compile(r"(?P<secret>[^/]+)/(?P<key>[^ ]+)(?: as (?P<variable>.+))?")

Object = dict[str, Any]


def objects_of(
    options: JobSetOptions, plan: Plan, run: RunDir, files: Mapping[str, str], token: str
) -> tuple[Object, Object, Object]:
    """Returns the JobSet, the ConfigMap and the Secret. `files` are those of the
    ConfigMap, by name."""
    name = options.job_name(plan, run)
    metadata: Object = {"name": name}
    if options.namespace:
        metadata["namespace"] = options.namespace
    shared = {**metadata, "labels": MANAGED}
    labels = {**MANAGED, **(options.labels or {})}
    if options.queue:
        labels[QUEUE] = options.queue
    if options.queue and options.priority:
        labels[QUEUE_PRIORITY] = options.priority
    metadata["labels"] = labels
    if options.annotations:
        metadata["annotations"] = dict(options.annotations)
    failure_policy: Object = {"maxRestarts": options.max_restarts}
    if options.max_restarts:
        rule = {"name": "failed", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
        failure_policy["rules"] = [rule]
    job_set = {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "coordinator": {"replicatedJob": replicated_job(0), "jobIndex": 0, "podIndex": 0},
            "network": {"enableDNSHostnames": True, "subdomain": subdomain_of(name)},
            "failurePolicy": failure_policy,
            "replicatedJobs": [
                _replicated_job(options, plan, run, name, index, nodes)
                for index, nodes in enumerate(node_sets(plan))
            ],
        },
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": shared, "data": dict(files)}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": shared,
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }
    return job_set, config, secret


def _replicated_job(
    options: JobSetOptions, plan: Plan, run: RunDir, name: str, index: int, nodes: NodeSet
) -> Object:
    spec: Object = {
        "completionMode": "Indexed",
        "completions": nodes.count,
        "parallelism": nodes.count,
        "backoffLimit": plan.run.restarts.times if plan.run.restarts else 0,
        "podFailurePolicy": {"rules": list(_pod_failure_rules(options, plan))},
    }
    if options.time_limit:
        spec["activeDeadlineSeconds"] = round(options.time_limit)
    annotations = dict(options.annotations or {})
    if options.volcano_queue:
        annotations[VOLCANO_QUEUE] = options.volcano_queue
    metadata: Object = {"labels": {**MANAGED, **(options.labels or {})}}
    if annotations:
        metadata["annotations"] = annotations
    spec["template"] = {"metadata": metadata, "spec": _pod(options, plan, run, name, index, nodes)}
    template: Object = {"spec": spec}
    if _scheduler(options) == VOLCANO:
        template["metadata"] = {"annotations": {**annotations, VOLCANO_MEMBERS: str(nodes.count)}}
    return {"name": replicated_job(index), "replicas": 1, "template": template}


def _pod_failure_rules(options: JobSetOptions, plan: Plan) -> Iterator[Object]:
    """Yields the rules by which a Job judges a pod that has failed; the first one that holds counts. With
    `run.restarts` the Job replaces pods, but only with `max_restarts` that of the head. Those count for
    `backoffLimit` that have failed by themselves: the head has counted the nodes that it has ended, and an
    eviction is no failure."""

    def codes(*values: int) -> Object:
        return {"onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(values)}}

    replaces_nodes = plan.run.restarts is not None
    stops_with_head = replaces_nodes and not options.max_restarts
    yield {"action": "FailJob", **codes(*VERDICTS, *([ENDED_BY_SCHEDULER] if stops_with_head else []))}
    if replaces_nodes:
        yield {"action": "Ignore", **codes(ENDED_BY_HEAD)}
        disrupted = {"type": "DisruptionTarget", "status": "True"}
        yield {"action": "Ignore", "onPodConditions": [disrupted]}


def _scheduler(options: JobSetOptions) -> str:
    return options.scheduler or (VOLCANO if options.volcano_queue else "")


def _pod(options: JobSetOptions, plan: Plan, run: RunDir, name: str, index: int, nodes: NodeSet) -> Object:
    claims = {_volume_name(key): volume for key, volume in (options.volumes or {}).items()}
    size = f"{-(-options.shm_bytes(plan, nodes) // MIB)}Mi"  # a quantity of Kubernetes, rounded up
    pod: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(
            plan.run.grace + GRACE_S if options.grace is None else options.grace
        ),
        "containers": [_container(options, plan, run, name, index, nodes)],
        "volumes": [
            {"name": "meshctl-files", "configMap": {"name": name}},
            {"name": "meshctl-shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}},
            *(
                {"name": key, "persistentVolumeClaim": {"claimName": volume["claim"]}}
                for key, volume in claims.items()
            ),
        ],
    }
    if options.host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    further = {
        "imagePullSecrets": [{"name": options.pull_with}] if options.pull_with else [],
        "tolerations": [{key: text for key, text in one.items() if text} for one in options.tolerations],
        "schedulerName": _scheduler(options),
        "serviceAccountName": options.service_account,
        "nodeSelector": dict(options.node_selector or {}),
        "priorityClassName": "" if options.queue else options.priority,
    }
    return pod | {key: value for key, value in further.items() if value}


def _container(
    options: JobSetOptions, plan: Plan, run: RunDir, name: str, index: int, nodes: NodeSet
) -> Object:
    names = {**RESOURCES, **(options.device_resources or {})}
    limits = {names[kind]: str(count) for kind, count in nodes.devices.items() if kind in names}
    limits |= options.resources or {}
    mounts: list[Object] = [
        {"name": "meshctl-files", "mountPath": FILES, "readOnly": True},
        {"name": "meshctl-shm", "mountPath": "/dev/shm"},
    ]
    for key, volume in (options.volumes or {}).items():
        read_only = {"readOnly": True} if volume["read_only"] else {}
        mounts.append({"name": _volume_name(key), "mountPath": volume["path"], **read_only})
    container: Object = {
        "name": CONTAINER,
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "command": ["sh", "-c", script_of(options, plan, options.folder(plan, run), index)],
        "env": list(_environment(options, name)),
        "ports": [{"name": "head", "containerPort": options.port, "protocol": "TCP"}] if index == 0 else [],
        "resources": {"requests": limits, "limits": limits} if limits else {},
        "volumeMounts": mounts,
    }
    return {key: value for key, value in container.items() if value}


def _volume_name(name: str) -> str:
    return name.lower().replace("_", "-")


def _environment(options: JobSetOptions, name: str) -> Iterator[Object]:
    """Yields the environment variables of the pods, with those that have keys of Secrets as values."""
    yield {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": TOKEN_KEY}}}
    coordinator = f"metadata.annotations['{COORDINATOR}']"
    for variable, path in (("POD_IP", "status.podIP"), ("COORDINATOR", coordinator)):
        yield {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for text in options.env_from:
        if one := SECRET_KEY.fullmatch(text):
            secret = {"name": one["secret"], "key": one["key"]}
            yield {"name": one["variable"] or one["key"], "valueFrom": {"secretKeyRef": secret}}


def script_of(options: JobSetOptions, plan: Plan, folder: PurePosixPath, index: int) -> str:
    """Returns the script of the pods of a replicated job.

    `JOB_COMPLETION_INDEX` is the number of a pod in its job. The plan is that of the latest launch, as is the
    recipe, which the head resolves again for fewer nodes. `start.json` is the head's own once it has begun.
    """
    run, wait = shlex.quote(str(folder)), f"{options.join_limit:g}"
    agent = f'meshctl agent --plan "$run/plan.json" --node {index}.$JOB_COMPLETION_INDEX'
    agent += f' --head "$COORDINATOR:{options.port}" --wait {wait} --in-job'
    lines = [
        'fail() { echo "error: $1" >&2; exit "$2"; }',
        f"run={run}",
        'mkdir -p "$run" || fail "the run directory cannot be made: $run" 4',
        "copy() {",
        f'  cp "{FILES}/$1" "$run/.$1.$POD_IP" && mv "$run/.$1.$POD_IP" "$run/$1" ||',
        '    fail "$run/$1 cannot be written" 4',
        "}",
        "copy plan.json",
        *(["copy recipe.yaml"] if plan.run.elastic else []),
        '[ -e "$run/start.json" ] || copy start.json',
    ]
    for line in options.setup:
        message = shlex.quote(f"`engine.jobset.setup` has failed: {line}")
        lines.append(f"{{ {line}\n}} || fail {message} {NO_SETUP}")
    lines.append(f'command -v meshctl >/dev/null || fail "the image has no meshctl on its PATH" {NO_MESHCTL}')
    if index:
        return "\n".join([*lines, f"exec {agent}", ""])
    lines += [
        'if [ "$JOB_COMPLETION_INDEX" = 0 ]; then',
        f'  echo "pid=$$ meshctl=$(command -v meshctl)" >"$run/{HEAD_FILE}"',
        f"  {agent} &",
        f'  exec meshctl head --plan "$run/plan.json" --host "$POD_IP" --port {options.port}',
        "fi",
        f"exec {agent}",
    ]
    return "\n".join([*lines, ""])


@dataclass(frozen=True)
class JobSetOptions:
    """See `recipe/jobset_fields.py`."""

    image: str = ""
    pull_policy: str = ""
    name: str = ""
    namespace: str = ""
    context: str = ""
    queue: str = ""
    priority: str = ""
    scheduler: str = ""
    volcano_queue: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    volumes: Mapping[str, Mapping[str, Any]] | None = None
    run_dir: str = ""
    code: str = ""
    env_from: Sequence[str] = ()
    shm_size: int = 0
    resources: Mapping[str, str] | None = None
    device_resources: Mapping[str, str] | None = None
    service_account: str = ""
    pull_with: str = ""
    node_selector: Mapping[str, str] | None = None
    tolerations: Sequence[Mapping[str, str]] = ()
    host_network: bool = False
    port: int = 29400
    time_limit: float = 0.0
    grace: float | None = None
    max_restarts: int = 0
    setup: Sequence[str] = ()
    join_limit: float = 300.0
    lease: float = field(default=15.0)

    def job_name(self, plan: Plan, run: RunDir) -> str:
        """Returns the name of the JobSet of a run."""
        return f"{label_of(self.name or plan.name)}-{label_of(f't{run.path.name}')[1:]}"

    def folder(self, plan: Plan, run: RunDir) -> PurePosixPath:
        """Returns the run directory as the pods see it. Where a volume contains the run directory of the
        launcher, both see the same files."""
        volumes = [PurePosixPath(volume["path"]) for volume in (self.volumes or {}).values()]
        if not self.run_dir and any(run.path.is_relative_to(path) for path in volumes):
            return PurePosixPath(run.path)
        runs = self.run_dir or (volumes[0] / "runs" if volumes else RUNS)
        return PurePosixPath(runs) / plan.name / run.path.name

    def shm_bytes(self, plan: Plan, nodes: NodeSet) -> int:
        """Returns the size of /dev/shm of each pod of some nodes, in bytes. Batches are not there: they wait
        in memory that has no file."""
        first, last = nodes.nodes[0][0], nodes.nodes[-1][1]
        workers = 0  # the greatest number of each group on one of the nodes
        for name in nodes.groups:
            runs = [run for run in plan.node_runs(name) if run.first_node < last and run.last_node >= first]
            workers += max(run.each for run in runs)
        return self.shm_size or SHM_BYTES + WORKER_SHM_BYTES * workers
