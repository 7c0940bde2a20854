"""The keys, names and values of a recipe, for shell completion. The recipe is composed as by `validate`, and
not checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Span
from meshctl.recipe.compose.composition import compose
from meshctl.recipe.compose.folders import SUFFIXES, config_folders, files, is_dir, list_groups
from meshctl.recipe.compose.yaml_tree import Node


@dataclass(frozen=True)
class Outline:
    root: Node = Node({}, Span("", 1, 1))
    home: Path = Path()
    """The recipe's folder."""
    folders: tuple[Path, ...] = ()
    """The folders that contain config groups."""
    chosen: tuple[str, ...] = ()
    """The choices of the defaults lists, as `group@package`."""

    def names(self, *path: str) -> list[str]:
        """Returns the keys of the mapping at a path."""
        node = self.root.at(path)
        return [key for key, _ in node.items()] if node is not None else []

    def stages(self) -> list[str]:
        """Returns the names of all stages; a stage of a block is BLOCK.STAGE."""
        found: list[str] = []
        for name in self.names("pipeline"):
            inner = self.names("pipeline", name, "stages")
            found += [f"{name}.{stage}" for stage in inner] if inner else [name]
        return found

    def text(self, *path: str) -> str:
        """Returns the text of a value in the file; empty for a mapping, a list and a missing value."""
        node = self.root.at(path)
        return node.written if node is not None else ""

    def groups(self) -> list[str]:
        return list_groups(self.folders)

    def options(self, group: str) -> Iterator[tuple[str, str]]:
        """Yields (option, description) for each file of a config group. The description is the file's first
        line if that is a comment."""
        found = {
            file.stem: file for folder in self.folders[::-1] for file in files(folder / group, *SUFFIXES)
        }
        for name, file in found.items():
            if not file.is_file():
                continue  # to open a pipe would wait for its writer
            first = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
            yield name, first[1:].strip() if first.startswith("#") else ""


def outline(recipe: Path) -> Outline:
    """Returns the outline of a recipe, or of the recipe of a run directory."""
    file = recipe / "recipe.yaml" if is_dir(recipe) else recipe
    folders = tuple(dict.fromkeys(config_folders(file.parent, ())))
    composed = compose(file, [], Path.cwd(), folders)
    return Outline(composed.tree, file.parent, folders, composed.chosen)
