"""The models, tokenizers and libraries that the components of a plan need on a node, read from their classes
as text.

Classes declare these needs: `EXTRA` is the extra that installs their libraries. In classes with the extra
`hf`, `MODEL` and `TOKENIZER` state which arguments name a folder or a model of the Hugging Face hub.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshctl.engines.engine import CannotStart
from meshctl.engines.node.interpreter import groups_of
from meshctl.hub_cache import (
    MODEL_FILES,
    TOKENIZER_FILES,
    hub_cache,
    is_hub_name,
    is_offline,
    local_folder,
    missing_weights,
)
from meshctl.package import SHIPPED_TOKENIZERS, install_command, missing_libraries
from meshctl.plan.model import Component, Plan
from meshctl.recipe.code.classes import Class
from meshctl.recipe.code.declarations import Declarations, KeyPath
from meshctl.recipe.code.extras import extras_of as extras_of_component
from meshctl.recipe.code.group_code import group_code
from meshctl.text.env_refs import Unset, filled

HF = "hf"
"""The extra whose classes name models of the hub."""


@dataclass(frozen=True)
class Download:
    """A model or tokenizer of the hub that is not in the cache of this node."""

    name: str
    component: str
    has_weights: bool
    """Whether its weights are needed, and not only the tokenizer."""

    @property
    def what(self) -> str:
        return f"{'model' if self.has_weights else 'tokenizer'} `{self.name}` of `{self.component}`"


def extras_of(plan: Plan, path: Sequence[str], groups: Collection[str]) -> tuple[str, ...]:
    """Returns the extras that components of these groups need."""
    return tuple(sorted({extra for _, one in _declared(plan, path, groups) for extra in one.extra}))


def check_libraries(plan: Plan, path: Sequence[str]) -> None:
    """Raises `CannotStart` if libraries of a component are not installed for the launcher's interpreter,
    where its group uses it. `path` lists the folders of the recipe's code."""
    for component, declared in _declared(plan, path, groups_of(plan, path)):
        for extra in declared.extra:
            if missing := missing_libraries(extra):
                lacking = f"{component.name} needs {', '.join(missing)}, which {_are(missing)} not installed"
                raise CannotStart(f"{lacking}: {install_command(extra)}")


def _are(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"


def downloads(
    plan: Plan, path: Sequence[str], environ: Mapping[str, str], groups: Collection[str] | None = None
) -> tuple[Download, ...]:
    """Returns the models and tokenizers that must be downloaded before the workers of `groups` start.
    `groups` is None for all groups. Raises `CannotStart` if one of them can be neither found nor
    downloaded."""
    found: dict[str, Download] = {}
    for component, declared in _declared(plan, path, groups):
        if HF not in declared.extra:
            continue
        for place, files in (
            (declared.model[:1], MODEL_FILES),
            ((declared.tokenizer.name,), TOKENIZER_FILES),
        ):
            name = _argument(component, place[0], environ) if place else ""
            one = _download_of(component.name, name, files, [*path, *sys.path], environ) if name else None
            if one and not (one.name in found and found[one.name].has_weights):
                found[one.name] = one
    if found and is_offline(environ):
        one = next(iter(found.values()))
        raise CannotStart(
            f"{one.what} is not in the cache of the hub, {hub_cache(environ)}, and HF_HUB_OFFLINE forbids to "
            f"download it: unset HF_HUB_OFFLINE, or run `hf download {one.name}` where the hub can be reached"
        )
    return tuple(found.values())


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


def _argument(component: Component, path: KeyPath, environ: Mapping[str, str]) -> str:
    """Returns the text of an argument; empty for another value, or if it refers to an unset variable."""
    value: object = {"args": component.args}
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    try:
        return filled(value, environ) if isinstance(value, str) else ""
    except Unset:
        return ""


def _download_of(
    component: str, name: str, files: Sequence[str], folders: Sequence[str], environ: Mapping[str, str]
) -> Download | None:
    """Returns the download of a name; None if it is a folder of this machine or in the cache. Raises
    `CannotStart` for a folder without a model or tokenizer, and for a name that the hub cannot have."""
    one = Download(name, component, has_weights=files is MODEL_FILES)
    if name in SHIPPED_TOKENIZERS and not one.has_weights:
        return None
    local = local_folder(name, folders, {}, files)
    cached = local_folder(name, (), environ, files)
    if local or (cached and not (one.has_weights and missing_weights(cached))):
        return None
    if any(Path(folder, name).is_dir() for folder in folders):
        raise CannotStart(f"{one.what}: the folder has none of {', '.join(files)}")
    if not is_hub_name(name):
        raise CannotStart(f"{one.what} does not exist: neither in {folders[0]} nor in the working directory")
    return one
