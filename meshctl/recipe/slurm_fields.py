"""The options of the engine `slurm`, as fields of a recipe, and the types of their values."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from meshctl.recipe.compose.yaml_tree import MISSING, KeyPath, Node
from meshctl.recipe.field_types import (
    OPEN,
    Boolean,
    Field,
    FieldReader,
    Integer,
    Schema,
    Text,
    Texts,
    Type,
    text,
)
from meshctl.recipe.scalars import SECONDS_OF, seconds_in, text_of

CLOCK = re.compile(
    r"(?:(?P<days>\d{1,4})-(?P<dh>\d{1,3})(?::(?P<dm>\d{1,2})(?::(?P<ds>\d{1,2}))?)?)"
    r"|(?P<hours>\d{1,4}):(?P<minutes>\d{1,6}):(?P<seconds>\d{1,2})"
)
"""Slurm's times: HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES and with seconds. A number alone and
MINUTES:SECONDS are refused, because they look like seconds and like hours."""
UNLIMITED = ("unlimited", "infinite")
OWN = {
    **dict.fromkeys(("nodes", "N"), "the plan determines the nodes"),
    **dict.fromkeys(("ntasks", "n", "ntasks-per-node"), "there is one task on each node"),
    **dict.fromkeys(("array", "a", "wrap"), "the job is the run, once"),
    **dict.fromkeys(("output", "o", "error", "e", "open-mode"), "the output is in the run directory"),
    **dict.fromkeys(("signal", "no-kill", "k"), "the engine sets it"),
    **dict.fromkeys(("requeue", "no-requeue"), "write `engine.slurm.requeue`"),
    **dict.fromkeys(("time", "t"), "write `engine.slurm.time`"),
    **dict.fromkeys(("partition", "p"), "write `engine.slurm.partition`"),
    **dict.fromkeys(("account", "A"), "write `engine.slurm.account`"),
    **dict.fromkeys(("qos", "q"), "write `engine.slurm.qos`"),
    **dict.fromkeys(("constraint", "C"), "write `engine.slurm.constraint`"),
    **dict.fromkeys(("gres", "gpus", "G", "gpus-per-node", "gpus-per-task"), "write `engine.slurm.gres`"),
    **dict.fromkeys(("cpus-per-task", "c"), "write `engine.slurm.cpus`"),
}
"""Option of sbatch -> why it is not given as a free line."""
OPTION_SCHEMA = "^(--[a-z][a-z0-9-]*([= ].*)?|-[A-Za-z]( ?.*)?)$"
OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:[= ].*)?|-([A-Za-z])(?: ?.*)?")


class SlurmTime(Type):
    """A time limit, in one of Slurm's forms or with units. Its value is DAYS-HH:MM:SS."""

    empty: ClassVar[Any] = ""

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> Any:
        text = text_of(node) if node.value is not None else ""
        if text == MISSING or not text:
            reader.expected("a time such as 4h or 1-12:00:00", node, path)
            return None
        if found := slurm_time(text):
            return found
        help = "write 90m, 4h, 1d12h, 4:00:00 or 1-12:00:00"
        reader.report(path, "MC610", f"`{text}` is not a time that Slurm reads", node.span, help=help)
        return None

    def schema(self) -> Schema:
        units = "".join(rf"([0-9]{{1,9}}([.][0-9]{{1,6}})? ?{unit})?" for unit in SECONDS_OF)
        slurm = r"[0-9]{1,4}-[0-9]{1,3}(:[0-9]{1,2}){0,2}$|^[0-9]{1,4}:[0-9]{1,6}:[0-9]{1,2}"
        words = "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in UNLIMITED)
        return {"type": "string", "pattern": f"^(?=[0-9]){units}$|^{slurm}$|^({words})$|{OPEN}"}


def slurm_time(text: str) -> str:
    """Returns a time as DAYS-HH:MM:SS, or UNLIMITED; empty for a text that is no time, for a bare number and
    for zero."""
    if text.lower() in UNLIMITED:
        return "UNLIMITED"
    seconds = slurm_seconds(text)
    if seconds <= 0:
        return ""
    return f"{seconds // 86400}-{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def slurm_seconds(text: str) -> int:
    """Returns the seconds of a time; 0 for no limit, and for a text that is no time."""
    found, seconds = CLOCK.fullmatch(text), 0
    if found:
        part = {name: int(value or 0) for name, value in found.groupdict().items()}
        hours, minutes = part["hours"] + part["dh"], part["minutes"] + part["dm"]
        seconds = ((part["days"] * 24 + hours) * 60 + minutes) * 60 + part["seconds"] + part["ds"]
    elif not text.isdigit():
        seconds = int(seconds_in(text) or 0)
    return seconds


class SbatchLines(Texts):
    """Free options of sbatch."""

    def check(self, reader: FieldReader, text: str, node: Node, path: KeyPath) -> None:
        option, message = OPTION.fullmatch(text), f"`{text}` is not an option of sbatch"
        help = "write the text after #SBATCH, such as --exclusive or --mem=0"
        if option:
            why = OWN.get(option[1] or option[2])
            if why is None:
                return
            message = f"`{text}` cannot be a line of its own: {why}"
            help = why if "write" in why else "remove it"
        reader.report(path, "MC611", message, node.span, help=help)

    def schema(self) -> Schema:
        return {**text(OPTION_SCHEMA), "type": ["string", "array"], "items": text(OPTION_SCHEMA)}


# fmt: off
FIELDS = (
    Field("partition", Text(),
        doc="Partition, or several with commas between them.",
        aliases="queue"),
    Field("account", Text(),
        doc="Account that is charged."),
    Field("time", SlurmTime(),
        doc="Time limit: 90m, 4h, 1d12h, or as Slurm writes it, 4:00:00 or 1-12:00:00. Before its end the "
            "run writes a checkpoint and ends. Default: that of the partition.",
        aliases="time_limit walltime"),
    Field("qos", Text(),
        doc="Quality of service."),
    Field("constraint", Text(),
        doc="Features that the nodes must have.",
        aliases="constraints features"),
    Field("gres", Text(),
        doc="Devices of a node: gpu:h100 adds the number that the plan needs there, gpu:h100:8 states it. "
            "Default: gpu, or npu."),
    Field("cpus", Integer(1),
        doc="CPUs of a node. Default: those of the partition, often one; `sbatch: [--exclusive]` takes all.",
        aliases="cpus_per_task cpus_per_node"),
    Field("container_image", Text(),
        doc="Image in which the nodes run, with pyxis. The head runs outside of it.",
        aliases="container"),
    Field("container_mounts", Texts(),
        doc="Folders that the containers see, as PATH or PATH:PATH[:FLAGS]. The run directory and the "
            "working directory are added.",
        aliases="mounts"),
    Field("sbatch", SbatchLines(),
        doc="Further options of sbatch, each as the text after #SBATCH.",
        aliases="sbatch_args extra_args"),
    Field("requeue", Boolean(),
        doc="Whether the job is queued again, and resumes, after its time limit, a preemption or the loss of "
            "the head's node."),
)
# fmt: on
