"""The models, tokenizers, datasets and libraries that the components of a plan need on a node, read from
their classes as text.

Classes declare these needs: `EXTRA` is the extra that installs their libraries, and `MODEL` the argument that
names a model. Ready-made classes also have facts about their tokenizers and data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from meshctl.dataclass import dataclass
from meshctl.engines.engine import CannotStart
from meshctl.engines.node.worker_env import groups_of, server_python
from meshctl.hub_cache import (
    MODEL_FILES,
    TOKENIZER_FILES,
    dataset_offline_variable,
    datasets_cache,
    has_dataset,
    hub_cache,
    is_hub_name,
    local_folder,
    missing_weights,
    offline_variable,
)
from meshctl.package import SHIPPED_TOKENIZERS, install_command, missing_libraries, outdated_libraries
from meshctl.plan.model import Component, Plan
from meshctl.recipe.code.classes import Class, group_code
from meshctl.recipe.code.declarations import Declarations, KeyPath
from meshctl.recipe.code.files import find
from meshctl.recipe.code.tables import extras_of as extras_of_component
from meshctl.text.env_refs import Unset, filled

FILES = {"model": MODEL_FILES, "tokenizer": TOKENIZER_FILES}
"""Kind of a download -> the files of which a local folder has one."""
DATA = ("args", "path")


@dataclass(frozen=True)
class Download:
    """A model, tokenizer or dataset of the hub that is not in the cache of this node."""

    name: str
    component: str
    kind: Literal["model", "tokenizer", "dataset"]
    """A model includes its tokenizer."""
    python: str = sys.executable
    """The interpreter of the component's group. It has the library that downloads."""

    @property
    def what(self) -> str:
        return f"{self.kind} `{self.name}` of `{self.component}`"

    def cache(self, environ: Mapping[str, str]) -> str:
        """Returns the words for the cache in which it is missing."""
        if self.kind == "dataset":
            return f"the cache of datasets, {datasets_cache(environ)}"
        return f"the cache of the hub, {hub_cache(environ)}"

    @property
    def command(self) -> str:
        """The command that downloads it without a run."""
        if self.kind == "dataset":
            return f"python -c \"import datasets; datasets.load_dataset('{self.name}')\""
        return f"hf download {self.name}"


def extras_of(plan: Plan, path: Sequence[str], groups: Collection[str]) -> tuple[str, ...]:
    """Returns the extras that components of these groups need."""
    return tuple(sorted({extra for _, one in _declared(plan, path, groups) for extra in one.extra}))


def check_libraries(plan: Plan, path: Sequence[str]) -> None:
    """Raises `CannotStart` if libraries of a component are not installed for the launcher's interpreter, or
    are too old, where its group uses it. `path` lists the folders of the recipe's code."""
    for component, declared in _declared(plan, path, groups_of(plan, path)):
        for extra in declared.extra:
            missing = missing_libraries(extra)
            lacking = f", which {'is' if len(missing) == 1 else 'are'} not installed" if missing else ""
            if wanted := missing or outdated_libraries(extra):
                needs = f"{component.name} needs {', '.join(wanted)}{lacking}"
                raise CannotStart(f"{needs}: {install_command(extra)}")


def downloads(
    plan: Plan, path: Sequence[str], environ: Mapping[str, str], groups: Collection[str] | None = None
) -> tuple[Download, ...]:
    """Returns the models, tokenizers and datasets that must be downloaded before the workers of `groups`
    start. `groups` is None for all groups. Raises `CannotStart` if one of them can be neither found nor
    downloaded."""
    folders = (*path, *sys.path)
    found: dict[tuple[str, bool], Download] = {}
    for component, declared in _declared(plan, path, groups):
        python = server_python(plan.group(component.group), path)
        for one in _named(component, declared, environ, python):
            is_dataset = one.kind == "dataset"
            if (
                is_dataset
            ):  # files or a folder of this machine, which the source reports if it cannot read them
                is_remote = find(one.name, folders, declared.shipped.suffixes).is_remote
                is_here = not is_remote or has_dataset(one.name, environ)
            else:
                is_here = _is_here(one, folders, environ)
            earlier = found.get((one.name, is_dataset))
            if not is_here and (earlier is None or earlier.kind != "model"):
                found[one.name, is_dataset] = one
    for one in found.values():
        find_variable = dataset_offline_variable if one.kind == "dataset" else offline_variable
        if variable := find_variable(environ):
            raise CannotStart(
                f"{one.what} is not in {one.cache(environ)}, and {variable} forbids to download it: unset "
                f"{variable}, or run `{one.command}` where the hub can be reached"
            )
    return tuple(found.values())


def _named(
    component: Component, declared: Declarations, environ: Mapping[str, str], python: str
) -> Iterator[Download]:
    """Yields the names of a component's model, tokenizer and data. They may be folders."""
    arguments: tuple[tuple[Literal["model", "tokenizer", "dataset"], KeyPath], ...] = (
        *(("model", place) for place in declared.model[:1]),
        ("tokenizer", ("args", "tokenizer") if declared.shipped.has_tokenizer else ()),
        ("dataset", DATA if declared.shipped.downloads_data else ()),
    )
    for kind, argument in arguments:
        for name in _argument(component, argument, environ) if argument else ():
            yield Download(name, component.name, kind, python)


def _declared(
    plan: Plan, path: Sequence[str], groups: Collection[str] | None = None
) -> Iterator[tuple[Component, Declarations]]:
    """Yields each component of `groups` with the declarations of its class, where that can be read. Their
    extras include those of the functions that arguments name."""
    pythons = {group.name: group.python for group in plan.groups}
    code = group_code(pythons, tuple(path), sys.path, os.environ)
    for component in plan.components:
        if groups is not None and component.group not in groups:
            continue
        found = code.find(component.group, component.target)
        if isinstance(found, Class) and found.is_component:
            extras = extras_of_component(code.of(component.group), found.declares, component.args)
            yield component, replace(found.declares, extra=extras)


def _argument(component: Component, path: KeyPath, environ: Mapping[str, str]) -> Iterator[str]:
    """Yields the text of an argument, and of data the texts of a list or the keys of a mapping, without those
    that refer to an unset variable."""
    value: object = {"args": component.args}
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    for text in value if path == DATA and isinstance(value, (list, Mapping)) else [value]:
        with suppress(Unset):
            if isinstance(text, str) and (name := filled(text, environ)):
                yield name


def _is_here(one: Download, folders: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Returns whether a model or tokenizer is a folder of this machine or in the cache. Raises `CannotStart`
    for a folder without a model or tokenizer, and for a name that the hub cannot have."""
    if one.name in SHIPPED_TOKENIZERS and one.kind == "tokenizer":
        return True
    files = FILES[one.kind]
    local = local_folder(one.name, folders, {}, files)
    cached = local_folder(one.name, (), environ, files)
    if local or (cached and not (one.kind == "model" and missing_weights(cached))):
        return True
    if any(Path(folder, one.name).is_dir() for folder in folders):
        raise CannotStart(f"{one.what}: the folder has none of {', '.join(files)}")
    if not is_hub_name(one.name):
        raise CannotStart(f"{one.what} does not exist: neither in {folders[0]} nor in the working directory")
    return False
