"""The engines that a recipe can choose, and the options of each: the part of the table of fields
(`fields.py`) below `engine`.

    engine: {ssh: {hosts: [a, b]}}        one engine with its options
    engine: commands                      the name of an engine

A new engine is a section here, with the common options that it implements, an entry of `ENGINES` in
`engines/engine.py`, and a file in `conf/engine/`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from meshctl.dataclass import dataclass
from meshctl.recipe import jobset_fields, slurm_fields
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.field_types import (
    OPEN,
    AbsolutePath,
    Boolean,
    Environment,
    Field,
    FieldReader,
    Integer,
    Retired,
    Schema,
    Seconds,
    Section,
    Text,
    Texts,
    Type,
    Word,
    ref,
)
from meshctl.recipe.scalars import number_of
from meshctl.recipe.section_types import Nested
from meshctl.run.directory import EngineChoice
from meshctl.text.english import listed

LEAST_LEASE_S = 1.0
MAX_AMOUNT = 10**9
"""The limit of an amount of a resource."""


class Amounts(Type):
    """A mapping of names to positive numbers."""

    empty: ClassVar[Any] = None

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        """Returns a mapping of names to numbers."""
        if reader.mapping(node, path) is None:
            return None
        found: dict[str, float] = {}
        for key, item in node.items():
            value = number_of(item, float)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < MAX_AMOUNT:
                reader.expected("a positive number", item, (*path, key))
            else:
                found[key] = float(value)
        return found

    def schema(self) -> Schema:
        amount = {"type": ["number", "string"], "exclusiveMinimum": 0, "pattern": OPEN}
        return {"type": ["object", "string"], "pattern": OPEN, "additionalProperties": amount}


@dataclass(frozen=True)
class Options(Nested):
    """The options of an engine. Null means that all of them are left out."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        if node.value is None:
            return {field.key: field.value_if_absent for field in self.section.fields}
        return super().read(reader, node, path)

    def schema(self) -> Schema:
        return {"anyOf": [ref(self.section.name), {"type": "null"}]}


@dataclass(frozen=True)
class OneEngine(Nested):
    """A mapping with one engine, or the name of an engine."""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        """Returns an `EngineChoice`."""
        if not node.is_mapping:
            name = super().read(reader, node, path)
            options = self.section.by_key[name].type if isinstance(name, str) and name else None
            empty = Node({}, node.span)
            return EngineChoice(name, options.read(reader, empty, (*path, name))) if options else None
        found = [(name, item) for name, item in node.items() if name in self.section.by_key]
        if len(found) > 1:
            names, (_, last) = [name for name, _ in found], found[-1]
            help = f"keep one; on the command line, {path[-1]}=NAME replaces the engine of the recipe"
            message = f"`{path[-1]}` names {len(found)} engines: {listed(names)}"
            reader.report(path, "MC601", message, last.key or last.span, help=help)
            return None
        if not found:
            if not any(bad[: len(path)] == path for bad in reader.wrong):
                help = f"write one of {listed(self.section.keys, 'or')}"
                message = f"`{path[-1]}` names no engine"
                reader.report(path, "MC103", message, node.span, help=help, missing=True)
            return None
        ((name, item),) = found
        options = self.section.by_key[name].type.read(reader, item, (*path, name))
        return EngineChoice(name, options) if isinstance(options, dict) else None


# fmt: off
SETUP = Field("setup", Texts(),
    doc="Shell commands that run on each node before its agent, such as `module load` or `source "
        "venv/bin/activate`.",
    aliases="init_script prolog")
JOIN_LIMIT = Field("join_limit", Seconds(), default=300.0,
    doc="Seconds within which all nodes must have connected to the head.",
    aliases="join_timeout rdzv_timeout")
LEASE = Field("lease", Seconds(LEAST_LEASE_S), default=15.0,
    doc="Seconds of silence after which a node and the head regard each other as lost, and end.",
    aliases="heartbeat_timeout")
HEAD = Field("head", Text(),
    doc="Address, host name or network interface at which the head listens. Default: the one from which it "
        "reaches the nodes.",
    aliases="local_addr master_addr head_address")
REMOTE = (SETUP, JOIN_LIMIT, LEASE, HEAD)
"""The options of every engine whose nodes are other machines."""
RETIRED = (Retired("secure", False, "connections are no longer encrypted; use a network that is"),)

SHIP = Field("ship", Boolean(), default=False,
    doc="Copies the recipe's folder to each node, where no file system is shared. Logs and checkpoints then "
        "stay on the nodes.",
    aliases="upload sync_code working_dir")
SHIP_FOLDER = Field("ship_to", AbsolutePath(),
    doc="With `ship`: the folder on the nodes for the logs and checkpoints of runs. Default: ~/meshctl-runs.",
    aliases="remote_dir")
SHIPPING = (SHIP, SHIP_FOLDER)

LOCAL = Section("local", "`engine.local`", ())
LOOPBACK = Section("loopback", "`engine.loopback`", ())
COMMANDS = Section("commands", "`engine.commands`", REMOTE, RETIRED)
SSH = Section("ssh", "`engine.ssh`", (
    Field("hosts", Texts(),
        doc="The hosts, in the order of the plan's nodes: names of ssh's configuration, or USER@HOST.",
        aliases="hostnames nodes machines"),
    Field("hosts_file", AbsolutePath(),
        doc="A file with one host per line, in place of `hosts`, as an absolute path. `#` begins a comment.",
        aliases="hostfile machinefile"),
    Field("ssh_options", Texts(),
        doc="Further arguments of ssh, such as `-p 2222`.",
        aliases="ssh_args"),
    *SHIPPING,
    *REMOTE,
), RETIRED)
RAY = Section("ray", "`engine.ray`", (
    Field("address", Text(), default="auto",
        doc="Address of the cluster, as in ray.init: `auto` is the one of this machine, or of RAY_ADDRESS.",
        aliases="ray_address"),
    Field("namespace", Text(), default="meshctl",
        doc="Namespace of the placement group and its actors in the cluster.",
        aliases="ray_namespace"),
    Field("cpus", Integer(), is_optional=True,
        doc="CPUs of the cluster that each node takes. Default: one for each of its workers.",
        aliases="num_cpus cpus_per_node num_cpus_per_node"),
    Field("resources", Amounts(),
        doc="Further resources of the cluster that each node takes, such as {rack_a: 0.001}. Its GPUs and "
            "NPUs follow from the groups.",
        aliases="custom_resources"),
    Field("env", Environment(),
        doc="Environment variables of the nodes: a mapping with values, or a list of names to pass through.",
        aliases="env_vars runtime_env environment"),
    Field("placement_limit", Seconds(), is_optional=True,
        doc="Seconds to wait for room in the cluster, e.g. until it has scaled. Default: 5 for what is in "
            "use, and none for what no machine has.",
        aliases="placement_timeout placement_group_timeout_s"),
    *SHIPPING,
    *REMOTE,
), RETIRED)
JOBSET = Section("jobset", "`engine.jobset`", (*jobset_fields.OPTIONS, SETUP, JOIN_LIMIT, LEASE), RETIRED)
SLURM = Section("slurm", "`engine.slurm`", (*slurm_fields.FIELDS, *REMOTE), RETIRED)
# fmt: on

MEANINGS = {
    "local": "this machine, as one node",
    "loopback": "this machine, with a process for each node: to try a recipe of several nodes",
    "commands": "`launch` prints a command for each node, which you or another tool starts there",
    "ssh": "the hosts of `engine.ssh.hosts` or `engine.ssh.hosts_file`",
    "ray": "the machines of a running Ray cluster",
    "jobset": "pods of a Kubernetes cluster with JobSet, one for each node",
    "slurm": "a job of Slurm: `launch` submits it, or uses the allocation in which it is called",
}
"""The name of each engine, with its meaning."""
OPTIONS = (LOCAL, LOOPBACK, COMMANDS, SSH, RAY, JOBSET, SLURM)
SECTIONS = (*OPTIONS, *jobset_fields.SECTIONS)
ENGINE = Section(
    "engine",
    "`engine`",
    tuple(
        Field(one.name, Options(one), doc=f"{MEANINGS[one.name][0].upper()}{MEANINGS[one.name][1:]}.")
        for one in OPTIONS
    ),
)
CHOICE = OneEngine(ENGINE, Word(MEANINGS, "an engine", "MC600"), "an engine, such as {ssh: {hosts: [a, b]}}")
