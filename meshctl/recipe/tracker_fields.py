"""The options of each tracker that `run.track` names, as fields of a recipe, and the type of `run.track`.

    track: wandb
    track: [tensorboard, {wandb: {project: grpo}}, "my_trackers:Csv"]
    track: {tensorboard: {}, wandb: {project: grpo}}

A new tracker is a `Section` and a `Field` of `TRACK` here, its library in `LIBRARIES`, and its class in
`trackers/`. There are no options for secrets: libraries read them from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from meshctl.dataclass import dataclass
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.field_types import (
    REST,
    WORD,
    Boolean,
    Field,
    FieldReader,
    Schema,
    Seconds,
    Section,
    Text,
    Texts,
    Type,
    Word,
    ref,
    words,
)
from meshctl.recipe.section_types import Nested, PlainData
from meshctl.text.english import abbreviated
from meshctl.text.redaction import is_secret, spans

USER_TRACKER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""A tracker of the user, `module:NAME`."""
SECRETS = {
    "wandb": "WANDB_API_KEY",
    "mlflow": "MLFLOW_TRACKING_URI or MLFLOW_TRACKING_TOKEN",
    "trackio": "HF_TOKEN",
}
"""Tracker -> the variables of the environment that may hold its secret."""
LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny", "trackio": "trackio"}
"""Tracker -> the library that it needs."""
EXTRA = "track"
"""The extra of meshctl that installs these libraries."""
PATIENCE_S = 120.0
WANDB_MODES = {
    "online": "metrics are sent while the run goes on",
    "offline": "metrics are written to disk, for `wandb sync`",
    "disabled": "nothing is written",
}

# fmt: off
PATIENCE = Field("patience", Seconds(), default=PATIENCE_S,
    doc="Time in which the tracker must begin, take a row, and finish at the end of the run, in seconds or "
        "as 5m. One that takes longer is stopped; 0: no limit.",
    aliases="timeout timeout_seconds")
CHECKPOINTS = Field("checkpoints", Boolean(),
    doc="Whether the files of checkpoints are uploaded. Default: their paths are recorded.",
    aliases="log_model log_checkpoints")

TENSORBOARD = Section("tensorboard", "`tensorboard`", (
    Field("dir", Text(),
        doc="Folder of event files, in which each run has a folder NAME/TIME. Default: "
            "`trackers/tensorboard` in the run directory.",
        aliases="log_dir logdir save_dir tensorboard_dir"),
    PATIENCE,
))
WANDB = Section("wandb", "`wandb`", (
    Field("project", Text(),
        doc="Project. Default: the recipe's name.",
        aliases="project_name wandb_project"),
    Field("entity", Text(), doc="User or team. Default: that of the login.", aliases="team wandb_entity"),
    Field("name", Text(), doc="Name of the run. Default: NAME/TIME.", aliases="run_name experiment_name"),
    Field("group", Text(), doc="Name by which several runs are grouped.", aliases="run_group"),
    Field("tags", Texts(), doc="Tags of the run."),
    Field("mode", Word(WANDB_MODES, "a mode of wandb", "MC102"),
        doc="`online`, `offline` or `disabled`. Default: WANDB_MODE, or `online`."),
    CHECKPOINTS,
    PATIENCE,
))
MLFLOW = Section("mlflow", "`mlflow`", (
    Field("uri", Text(),
        doc="Tracking server, or a database such as sqlite:///mlflow.db. Default: MLFLOW_TRACKING_URI, or "
            "the SQLite database `mlflow.db` in `run.dir`.",
        aliases="tracking_uri backend_store_uri"),
    Field("experiment", Text(),
        doc="Experiment. Default: the recipe's name.",
        aliases="experiment_name project"),
    Field("name", Text(), doc="Name of the run. Default: NAME/TIME.", aliases="run_name"),
    CHECKPOINTS,
    PATIENCE,
))
TRACKIO = Section("trackio", "`trackio`", (
    Field("project", Text(), doc="Project. Default: the recipe's name.", aliases="project_name"),
    Field("name", Text(), doc="Name of the run. Default: NAME/TIME.", aliases="run_name"),
    Field("space", Text(),
        doc="Space on the hub that shows the project. Default: none; the project is local.",
        aliases="space_id"),
    CHECKPOINTS,
    PATIENCE,
))

TRACK = Section("track", "`run.track`", (
    Field("tensorboard", Nested(TENSORBOARD), doc="Event files for TensorBoard."),
    Field("wandb", Nested(WANDB), doc="Weights & Biases, on its server or offline."),
    Field("mlflow", Nested(MLFLOW), doc="An MLflow server or database."),
    Field("trackio", Nested(TRACKIO), doc="A local project of Trackio."),
))
# fmt: on
TRACKER_SECTIONS = (TRACK, TENSORBOARD, WANDB, MLFLOW, TRACKIO)
NAMES = {field.key: field.doc.rstrip(".") for field in TRACK.fields}


@dataclass(frozen=True)
class Trackers(Type):
    """The name of a tracker, a list of names and of mappings with one name and its options, or a mapping of
    names to options."""

    section: Section = TRACK
    empty: ClassVar[Any] = ()

    def read(self, reader: FieldReader, node: Node, path: KeyPath) -> tuple[tuple[str, dict[str, Any]], ...]:
        """Returns the trackers, each with its options; none for `false` and null."""
        if node.value is None or node.value is False:
            return ()
        found: dict[str, dict[str, Any]] = {}
        for name, where, options, here in self._entries(reader, node, path):
            at = replace(where, span=where.key or where.span)
            if name in found:
                reader.report(here, "MC102", f"`{name}` is listed twice in `track`", at.span)
            elif name in self.section.keys or USER_TRACKER.fullmatch(name):
                found[name] = self._options(reader, name, options, here)
            else:
                reader.unknown_word(abbreviated(name), self.section.keys, "a tracker", "MC102", at, here)
        return tuple(found.items())

    def _entries(
        self, reader: FieldReader, node: Node, path: KeyPath
    ) -> Iterator[tuple[str, Node, Node | None, KeyPath]]:
        """Yields name, the node that contains it, that of its options, and its key path."""
        if node.is_mapping:
            for name, options in node.items():
                if options.value is not False:
                    yield name, options, options, (*path, name)
            return
        if not node.is_list and not (isinstance(node.value, str) and node.value and "?" not in node.value):
            reader.expected(
                "a list of trackers", node, path, "write [tensorboard], or {wandb: {project: NAME}}"
            )
            return
        for index, item in enumerate(node.value if node.is_list else [node]):
            here = (*path, str(index)) if node.is_list else path
            if item.is_mapping and len(tuple(item.items())) == 1:
                name, options = next(iter(item.items()))
                yield name, options, options, here
            elif isinstance(item.value, str) and item.value:
                yield item.value, item, None, here
            else:
                help = "write NAME, or {NAME: {OPTION: VALUE}}"
                reader.expected("a tracker", item, here, help)

    def _options(self, reader: FieldReader, name: str, node: Node | None, path: KeyPath) -> dict[str, Any]:
        """Returns the options that are given. Those of a user's tracker are plain data."""
        if node is None or node.value is None or node.value is True:
            return {}
        if reader.mapping(node, path, f"write {{{name}: {{OPTION: VALUE}}}}") is None:
            return {}
        if name not in self.section.keys:
            return PlainData().read(reader, node, path) or {}
        section = self.section.by_key[name].type.section  # type: ignore[attr-defined]
        for key, item in node.items():
            self._check_option(reader, name, key, item, section, (*path, key))
        given = {key for key, item in node.items() if item.value is not None}
        return {key: value for key, value in reader.section(node, path, section).items() if key in given}

    def _check_option(
        self, reader: FieldReader, name: str, key: str, item: Node, section: Section, path: KeyPath
    ) -> None:
        at = replace(item, span=item.key or item.span)
        called = [field.key for field in section.fields if key in field.aliases.split()]
        help = f"set {SECRETS[name]} in the environment" if name in SECRETS else ""
        if key in section.keys:
            if isinstance(item.value, str) and spans(item.value):
                reader.report(path, "MC102", f"`{key}` of `{name}` contains a secret", item.span, help=help)
        elif is_secret(key) and name in SECRETS:
            help = f"{help}, or log in; a recipe contains no keys"
            reader.report(path, "MC101", f"`{name}` has no option `{abbreviated(key)}`", at.span, help=help)
        else:
            noun = f"an option of `{name}`"
            reader.unknown_word(abbreviated(key), called or section.keys, noun, "MC101", at, path)

    def schema(self) -> Schema:
        named = words(NAMES, f"^{WORD}{REST}*([.]{WORD}{REST}*)*:{WORD}{REST}*$")
        one: Schema = {**ref(self.section.name), "minProperties": 1, "maxProperties": 1}
        items: Schema = {"type": "array", "items": {"anyOf": [*named["anyOf"], one]}}
        return {"anyOf": [*named["anyOf"], items, ref(self.section.name), {"enum": [False, None]}]}
