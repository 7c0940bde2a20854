"""Resolves defaults lists with Hydra: the configs to merge, their order, and their packages.

Hydra reads configs only from `DefaultsLists`. There is no plugin scan and no search path that a recipe can
set, and nothing that a recipe names is imported. Hydra is loaded only if a recipe includes a config. All uses
of Hydra's private names are in this file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshctl.diagnostics import Span
from meshctl.recipe.compose.config_store import PRIMARY
from meshctl.recipe.compose.defaults_lists import MAX_INCLUDES, DefaultsLists
from meshctl.recipe.compose.overrides import Override, hydra_errors
from meshctl.recipe.compose.yaml_reader import MAX_DEPTH

COUNT_FROM = 100
"""After Hydra has loaded this many files, at some milliseconds each, all includes are counted. They are not
counted earlier, because that also reads files that another option replaces."""


class _TooManyIncludes(Exception):
    pass


@dataclass(frozen=True)
class DefaultsEntry:
    """One config of a composed recipe, and its package."""

    config: str
    """The config's name in the `ConfigStore`."""
    package: str = ""
    """The dotted key path below which its keys are merged; empty for the top."""
    parent: str | None = None
    """The config that includes it; None for the first one."""

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.package.split(".")) if self.package else ()

    @property
    def is_part_of_group(self) -> bool:
        """Whether it is included by another config of the same group."""
        if self.parent in (None, PRIMARY):
            return False
        return posixpath.dirname(str(self.parent)) == posixpath.dirname(self.config)


def resolve(lists: DefaultsLists, name: str, choices: Sequence[Override], file: str) -> list[DefaultsEntry]:
    """Returns the configs that config `name` includes, directly or indirectly, in merge order.

    A choice of a group that no defaults list contains is reported and ignored. `file` is the file to name in
    errors that Hydra reports without a location.
    """
    if not choices and name == PRIMARY and _includes_nothing(lists):
        return [DefaultsEntry(PRIMARY)]
    choices = list(choices)
    while True:
        try:
            entries = _resolved_by_hydra(lists, name, choices)
            if any(len(entry.path) > MAX_DEPTH for entry in entries):
                message = (
                    f"a file is included below more than {MAX_DEPTH} levels of keys, the limit for a recipe"
                )
                lists.report("MC208", message, _defaults_span(lists, name, file))
            return [entry for entry in entries if len(entry.path) <= MAX_DEPTH]
        except RecursionError:
            message = "the defaults lists include one another without end"
            lists.report("MC205", message, Span(file, 1, 1))
            return []
        except _TooManyIncludes:
            message = f"the defaults lists include more than {MAX_INCLUDES} files, the limit for a recipe"
            lists.report("MC208", message, _defaults_span(lists, name, file))
            return []
        except hydra_errors() as error:
            refused = next((one for one in choices if f"'{one.target}'" in str(error)), None)
            if refused is None:
                first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
                message = f"the defaults list cannot be composed: {first_line}"
                lists.report("MC208", message, _defaults_span(lists, name, file))
                return []
            _report_refused(lists, refused)
            choices.remove(refused)


def _includes_nothing(lists: DefaultsLists) -> bool:
    """Whether the recipe includes no config and has no package, so that Hydra is not needed."""
    return lists.of(PRIMARY) in ([], ["_self_"]) and "@package" not in lists.store.config(PRIMARY).header


def _defaults_span(lists: DefaultsLists, name: str, file: str) -> Span:
    entries = lists.store.config(name).defaults
    return (entries.key or entries.span) if entries else Span(file, 1, 1)


def _report_refused(lists: DefaultsLists, choice: Override) -> None:
    code, help = "MC203", f"to add it, write +{choice.target}={choice.value_text}"
    if choice.is_deletion:
        code, help = "MC209", ""
    lists.report(code, f"`{choice.target}` is not in a defaults list", choice.key_span, help)


def _resolved_by_hydra(lists: DefaultsLists, name: str, choices: Sequence[Override]) -> list[DefaultsEntry]:
    """Resolves the defaults lists with Hydra. Raises Hydra's exceptions."""
    from hydra import version
    from hydra._internal.defaults_list import create_defaults_list

    version.setbase("1.3")
    repository, parsed = _repository_class()(lists, name), [one.parsed for one in choices]
    found = create_defaults_list(repository, name, parsed, prepend_hydra=False, skip_missing=False)
    return [DefaultsEntry(str(one.config_path), one.package or "", one.parent) for one in found.defaults]


@cache
def _repository_class() -> Any:
    """Returns a class of Hydra config repositories that have `DefaultsLists` as their only source."""
    from hydra._internal.config_repository import ConfigRepository
    from hydra.core.object_type import ObjectType
    from hydra.plugins.config_source import ConfigResult, ConfigSource
    from omegaconf import OmegaConf

    class Source(ConfigSource):
        def __init__(self, lists: DefaultsLists, root: str) -> None:
            self.lists, self.provider, self.path = lists, "meshctl", ""
            self.root, self.loads = root, 0

        @staticmethod
        def scheme() -> str:
            return "meshctl"

        def available(self) -> bool:
            return True

        def is_config(self, config_path: str) -> bool:
            return self.lists.is_config(config_path)

        def is_group(self, config_path: str) -> bool:
            return self.lists.store.is_group(config_path)

        def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
            return [] if results_filter == ObjectType.GROUP else self.lists.store.options(config_path)

        def load_config(self, config_path: str) -> ConfigResult:
            self.loads += 1
            is_many = self.loads == COUNT_FROM and self.lists.count(self.root) > MAX_INCLUDES
            if is_many or self.loads > 2 * MAX_INCLUDES:  # Hydra loads each include twice
                raise _TooManyIncludes
            config = OmegaConf.create({"defaults": self.lists.of(config_path)})
            header = self._get_header_dict(self.lists.store.config(config_path).header)
            return ConfigResult(provider=self.provider, path=self.path, config=config, header=header)

    class Repository(ConfigRepository):
        def __init__(self, lists: DefaultsLists, root: str) -> None:
            self.sources = [Source(lists, root)]

    return Repository
