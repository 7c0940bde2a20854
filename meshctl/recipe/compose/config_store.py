"""The config files that a recipe can include. A file is found by its name, read once, and cached.

search folders   conf/ next to the recipe, the recipe's own folder, then the shipped conf/; the first match
                 wins
config           one file, named by its path in a search folder without the suffix: `base`, `layout/fsdp`
config group     a folder of configs; its files are the options of the group
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic
from meshctl.recipe.compose.folders import (
    SUFFIXES,
    NoFile,
    contents,
    files,
    find_configs,
    list_groups,
    list_options,
    real,
)
from meshctl.recipe.compose.yaml_reader import MAX_BYTES, Text, read
from meshctl.recipe.compose.yaml_tree import BROKEN, Node
from meshctl.text.english import nearest

PRIMARY = "__recipe__"
"""The config name of the recipe itself, whatever its file name is. A config in the search folders that has
the recipe's file name is another config."""
UNREADABLE = {"MC001", "MC002", "MC003", "MC004", "MC010"}
"""Diagnostics of a file that has no tree to check."""


@dataclass(frozen=True)
class Config:
    """The content of one config file."""

    tree: Node | None = None
    """The mapping without the defaults list; None if the file cannot be read."""
    defaults: Node | None = None
    """The defaults list, not checked yet."""
    header: str = ""
    """The first lines of the file, which may contain Hydra's `# @package` directive."""


@dataclass
class ConfigStore:
    """Finds and reads the files of one recipe."""

    recipe: Path
    cwd: Path
    folders: Sequence[Path]
    """The search folders, in search order."""
    held: Mapping[str, bytes] = field(default_factory=dict)
    """Real path -> bytes that are used in place of the file."""

    def __post_init__(self) -> None:
        unique = {real(folder): folder for folder in reversed(self.folders)}
        self.folders = list(reversed(unique.values()))
        self._files: dict[str, list[Path]] = {}
        self._options: dict[str, list[str]] = {}
        self._texts: dict[Path, Text] = {}
        self._configs: dict[str, Config] = {}

    # Names

    def file(self, name: str) -> Path | None:
        return self.recipe if name == PRIMARY else next(iter(self.files(name)), None)

    def files(self, name: str) -> list[Path]:
        """Returns every file of a config name. The first one is used and hides the others."""
        if name not in self._files:
            self._files[name] = find_configs(self.folders, name)
        return self._files[name]

    def is_group(self, name: str) -> bool:
        return name != "" and bool(self.options(name))

    def options(self, group: str) -> list[str]:
        """Returns the names of a group's configs. The configs of group "" are at the top of the search
        folders."""
        if group not in self._options:
            self._options[group] = list_options(self.folders, group)
        return self._options[group]

    def groups(self) -> list[str]:
        return list_groups(self.folders)

    def display_name(self, file: Path) -> str:
        """Returns a file's path as shown to the user: relative if the file is below the working directory."""
        absolute = self.cwd / file
        return str(absolute.relative_to(self.cwd)) if absolute.is_relative_to(self.cwd) else str(file)

    # Reading

    def config(self, name: str) -> Config:
        """Returns a config; an empty one if the file does not exist or cannot be read."""
        if name not in self._configs:
            file = self.file(name)
            self._configs[name] = Config() if file is None else self._config(file)
        return self._configs[name]

    def _config(self, file: Path) -> Config:
        if file not in self._texts:
            self._texts[file] = _as_mapping(self._read(file))
        text = self._texts[file]
        header = "\n".join(text.lines[:8])
        if text.tree is None or any(found.code in UNREADABLE for found in text.found):
            return Config(header=header)
        items = dict(text.tree.items())
        return Config(replace(text.tree, value=items), items.pop("defaults", None), header)

    @property
    def found(self) -> list[Diagnostic]:
        """The diagnostics of every file that was read."""
        return [diagnostic for text in self._texts.values() for diagnostic in text.found]

    @property
    def sources(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(display name, lines) of every file that was read, in reading order."""
        return tuple((text.name, text.lines) for text in self._texts.values() if text.lines)

    def _read(self, file: Path) -> Text:
        name, held = self.display_name(file), self.held.get(real(file))
        help = ""
        try:
            return read(contents(file, MAX_BYTES) if held is None else held, name)
        except NoFile as kind:
            message = f"`{name}` is {kind}, not a file"
            help = "to read a recipe from standard input, use `-` as its name"
        except FileNotFoundError:
            message = f"recipe `{name}` does not exist"
            if not Path(name).is_absolute():
                help = f"the name is relative to the working directory, `{self.cwd}`"
            neighbours = {path.stem: path for path in files(file.parent, *SUFFIXES)}
            if near := nearest(file.stem, neighbours):
                help = f"did you mean `{self.display_name(neighbours[near])}`?"
        except OSError as error:
            message = f"cannot read `{name}`: {(error.strerror or 'it cannot be read').lower()}"
        return Text(name, found=[Diagnostic("MC001", message, help=help)])


def _as_mapping(text: Text) -> Text:
    """Returns the text with a mapping as its tree. An empty file counts as an empty mapping; another value is
    reported."""
    tree = text.tree
    if tree is None or tree.is_mapping or tree.value is BROKEN:
        return text
    if tree.value is None:
        return replace(text, tree=Node({}, tree.span))
    wrong = Diagnostic(
        "MC004", f"`{text.name}` must be a mapping", tree.span, help="write `key: value` lines"
    )
    return replace(text, found=[*text.found, wrong])
