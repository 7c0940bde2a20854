"""What Hydra makes of defaults lists: which files, in which order, mounted where. Loaded only where a recipe
has one.

A shelf is all that Hydra sees: no plugin scan, no search path that a recipe can set, nothing is imported that
a recipe names. This is the home of Hydra's private names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hydra import version
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from meshctl.recipe.compose.defaults_entry import Mounted

if TYPE_CHECKING:
    from meshctl.recipe.compose.config_store import Shelf

Options = list[str]


def listed(shelf: Shelf, name: str, choices: Sequence[Override]) -> list[Mounted]:
    """The files of the defaults lists that begin at `name`; raises what Hydra raises."""
    version.setbase("1.3")
    found = create_defaults_list(
        Repository(shelf), name, list(choices), prepend_hydra=False, skip_missing=False
    ).defaults
    return [Mounted(str(one.config_path), one.package or "", one.parent) for one in found]


class Repository(ConfigRepository):
    """Hydra's view of a shelf: given its one source, it looks for no others."""

    def __init__(self, shelf: Shelf) -> None:
        self.sources = [Source(shelf)]


class Source(ConfigSource):
    """What Hydra asks of a source of configs; it is told the defaults lists and nothing else."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.provider, self.path = shelf, "meshctl", ""

    @staticmethod
    def scheme() -> str:
        return "meshctl"

    def available(self) -> bool:
        return True

    def is_config(self, config_path: str) -> bool:
        return self.shelf.is_config(config_path)

    def is_group(self, config_path: str) -> bool:
        return self.shelf.is_group(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> Options:
        return [] if results_filter == ObjectType.GROUP else self.shelf.options(config_path)

    def load_config(self, config_path: str) -> ConfigResult:
        header = self._get_header_dict(self.shelf.head(config_path))
        config = OmegaConf.create({"defaults": self.shelf.defaults_of(config_path)})
        return ConfigResult(provider=self.provider, path=self.path, header=header, config=config)
