"""The options of the engine `jobset`, as fields of a recipe, and the types of their values."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from meshctl.dataclass import dataclass
from meshctl.recipe.compose.yaml_tree import MISSING, KeyPath, Node
from meshctl.recipe.field_types import (
    OPEN,
    AbsolutePath,
    Boolean,
    Bytes,
    Field,
    FieldReader,
    Integer,
    Schema,
    Seconds,
    Section,
    Text,
    Texts,
    Type,
    Word,
    list_of,
    mapping,
    text,
)
from meshctl.recipe.scalars import is_scalar, text_of
from meshctl.recipe.section_types import Named

HEAD_PORT = 29400
"""The port of the head in its pod, which has a network address of its own."""
SECRET_KEY = re.compile(r"[a-z0-9][a-z0-9.-]*/([A-Za-z0-9_.-]+ as )?[A-Za-z_][A-Za-z0-9_]*")
"""`SECRET/KEY as VARIABLE`, or `SECRET/VARIABLE`."""
MAX_PORT = 65535
MAX_RESTARTS = 1000
OPERATORS = {"Exists": "the taint has any value", "Equal": "the taint has this value"}
EFFECTS = {
    "NoSchedule": "new pods are kept away",
    "PreferNoSchedule": "new pods are placed elsewhere if possible",
    "NoExecute": "running pods are evicted, too",
}
PULL_POLICIES = {
    "Always": "the image is looked up at every start",
    "IfNotPresent": "the image is pulled where a node lacks it",
    "Never": "a node has the image already",
}


@dataclass(frozen=True)
class TextMapping(Type):
    """A mapping of names, which users choose, to texts. Numbers and booleans keep their text."""

    empty: ClassVar[Any] = None

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if reader.mapping(node, path) is None:
            return None
        found = dict[str, str]()
        for key, item in node.items():
            if is_scalar(item) and item.value != MISSING:
                found[key] = text_of(item)
            else:
                reader.expected("text", item, (*path, key))
        return found

    def schema(self) -> Schema:
        return mapping(additionalProperties={"type": ["string", "number", "boolean"]})


class SecretKeys(Texts):
    """A list of keys of Secrets, each with the variable that has its value."""

    def check(self, reader: FieldReader, text: str, node: Node, path: KeyPath) -> None:
        if not SECRET_KEY.fullmatch(text):
            reader.expected("SECRET/VARIABLE, or SECRET/KEY as VARIABLE", node, path)

    def schema(self) -> Schema:
        pattern = f"^{SECRET_KEY.pattern}$"
        return list_of(text(pattern), type=["array", "string"], pattern=f"{pattern}|{OPEN}")


@dataclass(frozen=True)
class Sections(Type):
    """A list of mappings with the keys of a section."""

    section: Section
    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        """Returns the values of each mapping."""
        if not node.is_list:
            reader.expected("a list of mappings", node, path)
            return None
        found = []
        for index, item in enumerate(node.value):
            here = (*path, str(index))
            if reader.mapping(item, here) is None:
                continue
            for key, value in item.items():
                if key not in self.section.keys:
                    at, noun = Node(value.value, value.key or value.span), f"a key of {self.section.title}"
                    reader.unknown_word(key, self.section.keys, noun, "MC101", at, (*here, key))
            found.append(reader.section(item, here, self.section))
        return tuple(found)

    def schema(self) -> Schema:
        return list_of(self.section.schema())


# fmt: off
VOLUME = Section("volume", "a volume", (
    Field("claim", Text(), default="",
        required="volume `{name}` needs `claim`, the name of a PersistentVolumeClaim",
        doc="Name of the PersistentVolumeClaim, which exists in the namespace.",
        aliases="pvc claim_name claimName persistent_volume_claim"),
    Field("path", AbsolutePath(), default="",
        required="volume `{name}` needs `path`, the folder where pods see it",
        doc="Folder at which the pods see it.",
        aliases="mount_path mountPath mount"),
    Field("read_only", Boolean(), doc="Whether the pods cannot write to it.", aliases="readOnly"),
))
TOLERATION = Section("toleration", "a toleration", (
    Field("key", Text(), doc="Key of the taint. Default: every key."),
    Field("operator", Word(OPERATORS, "an operator", "MC102"), default="Equal",
        doc="`Exists`, or `Equal` for a taint with this value."),
    Field("value", Text(), doc="Value of the taint."),
    Field("effect", Word(EFFECTS, "an effect", "MC102"),
        doc="`NoSchedule`, `PreferNoSchedule` or `NoExecute`. Default: every effect."),
))
OPTIONS = (
    Field("image", Text(),
        doc="Container image of all pods, with meshctl of the same version. Required.",
        aliases="container_image docker_image container"),
    Field("pull_policy", Word(PULL_POLICIES, "a pull policy", "MC102"),
        doc="When the image is pulled: `Always`, `IfNotPresent` or `Never`. Default: that of the cluster.",
        aliases="imagePullPolicy image_pull_policy"),
    Field("name", Text(),
        doc="First part of the name of the JobSet, before the time of the run. Default: the recipe's name.",
        aliases="job_name jobset_name"),
    Field("namespace", Text(),
        doc="Namespace of the JobSet. Default: that of the context.",
        aliases="ns kubernetes_namespace"),
    Field("context", Text(),
        doc="Context of kubectl. Default: the present one.",
        aliases="kube_context kubectl_context cluster_context"),
    Field("queue", Text(),
        doc="LocalQueue of Kueue, which starts all pods at once.",
        aliases="kueue_queue local_queue queue_name"),
    Field("priority", Text(),
        doc="PriorityClass of the pods; with `queue`, the WorkloadPriorityClass of Kueue.",
        aliases="priority_class priorityClassName"),
    Field("scheduler", Text(),
        doc="Scheduler of the pods, such as `volcano`. Default: that of the cluster.",
        aliases="scheduler_name schedulerName"),
    Field("volcano_queue", Text(),
        doc="Queue of Volcano. The scheduler is `volcano` then."),
    Field("labels", TextMapping(), doc="Labels of the JobSet and of its pods."),
    Field("annotations", TextMapping(), doc="Annotations of the JobSet and of its pods."),
    Field("volumes", Named(VOLUME),
        doc="Volumes by name, {claim: NAME, path: FOLDER}. The run directory is on the first one.",
        aliases="pvcs volume_mounts persistent_volumes"),
    Field("run_dir", AbsolutePath(),
        doc="Folder of runs as the pods see it, in which the run directory is NAME/TIME. Default: `runs` on "
            "the first volume; without volumes, a folder of the pod, which is lost with it."),
    Field("code", AbsolutePath(),
        doc="Folder of the recipe's code as the pods see it, in the image or on a volume. Default: the same "
            "folders as where `launch` is called.",
        aliases="workdir working_dir code_dir"),
    Field("env_from", SecretKeys(),
        doc="Keys of Secrets that are environment variables of the pods: `SECRET/KEY`, or `SECRET/KEY as "
            "VARIABLE`.",
        aliases="secrets env_secrets secret_env"),
    Field("shm_size", Bytes(),
        doc="Size of /dev/shm, such as 16GiB. Default: 512 MiB and 64 MiB for each worker of the node.",
        aliases="shared_memory shm shared_memory_size"),
    Field("resources", TextMapping(),
        doc="Resources of each pod beside its devices, such as {cpu: 32, memory: 200Gi}, as requests and "
            "limits.",
        aliases="requests limits"),
    Field("device_resources", TextMapping(),
        doc="Name of the resource of a device type, such as {cuda: amd.com/gpu}. Default: {cuda: "
            "nvidia.com/gpu, npu: huawei.com/Ascend910}."),
    Field("service_account", Text(),
        doc="Service account of the pods.",
        aliases="serviceAccountName service_account_name"),
    Field("pull_with", Text(),
        doc="Secret with which the image is pulled.",
        aliases="image_pull_secret imagePullSecrets"),
    Field("node_selector", TextMapping(),
        doc="Labels that machines must have, such as {gpu: h100}.",
        aliases="nodeSelector"),
    Field("tolerations", Sections(TOLERATION),
        doc="Taints that pods tolerate, [{key: KEY, operator: Exists}]."),
    Field("host_network", Boolean(),
        doc="Whether pods use the network of their machine, as RDMA may need.",
        aliases="hostNetwork"),
    Field("port", Integer(1, MAX_PORT), default=HEAD_PORT,
        doc="Port of the head in its pod.",
        aliases="head_port master_port rdzv_port"),
    Field("time_limit", Seconds(),
        doc="Time after which the pods are ended, in seconds or as 4h. Default: no limit. `run.time_limit` "
            "ends a run in order.",
        aliases="activeDeadlineSeconds active_deadline timeout walltime"),
    Field("grace", Seconds(), is_optional=True,
        doc="Time from the request to end until the pods are killed. Default: `run.grace` and 30 s.",
        aliases="terminationGracePeriodSeconds termination_grace_period"),
    Field("max_restarts", Integer(0, MAX_RESTARTS), default=0,
        doc="How often the JobSet starts again when the pod of the head is lost. A run that has failed does "
            "not start again.",
        aliases="maxRestarts backoff_limit"),
)
# fmt: on
SECTIONS = (VOLUME,)
