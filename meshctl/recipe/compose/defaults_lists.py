"""Reads defaults lists: checks every entry of a config's list, and every config that an override chooses.

A wrong entry is reported at its place and left out. `includes.py` follows the others.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.config_store import ConfigStore
from meshctl.recipe.compose.folders import SUFFIXES, is_dir
from meshctl.recipe.compose.overrides import LAYOUT, Override
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node
from meshctl.recipe.fields import RECIPE
from meshctl.recipe.fixes import renamed
from meshctl.text.english import did_you_mean, nearest


@dataclass(frozen=True)
class Entry:
    """One entry of a defaults list: `base`, or `layout@components.actor.parallel: fsdp`."""

    name: str
    """The config, or the config group, as written: relative to the folder of the list, or absolute."""
    span: Span
    package: str | None = None
    options: tuple[str, ...] | None = None
    """The chosen options of the config group; None for a config."""
    is_list: bool = False
    """True if the options are written as a list."""
    is_optional: bool = False
    is_override: bool = False
    """True if the entry changes the option that another entry chooses."""
    override: Override | None = None
    """The override of the command line that adds the entry; None for an entry of a file."""

    @property
    def is_group(self) -> bool:
        return self.options is not None

    @property
    def is_interpolated(self) -> bool:
        if self.options is None:
            return "${" in self.name
        return not self.is_list and any("${" in option for option in self.options)

    def path(self, config: str) -> str:
        """Returns the full name of the config or group, for an entry in the list of `config`. Names are
        relative to the folder of the file, or begin with `/`."""
        if self.name.startswith("/"):
            return posixpath.normpath(self.name.lstrip("/"))
        return posixpath.normpath(posixpath.join(posixpath.dirname(config), self.name))

    def group(self, path: str) -> str:
        """Returns the config group in a path of this entry."""
        return path if self.is_group else posixpath.dirname(path)


SELF = "_self_"
"""The entry that stands for the file with the list itself."""


@dataclass
class DefaultsLists:
    """The defaults lists of a recipe's configs, without the wrong entries, which are reported in `found`."""

    store: ConfigStore
    found: list[Diagnostic] = field(default_factory=list)
    _entries: dict[str, list[Entry]] = field(default_factory=dict)

    def entries(self, config: str) -> list[Entry]:
        """Returns the valid entries of a config's defaults list."""
        if config not in self._entries:
            written = self.store.config(config).defaults
            self._entries[config] = list(self._valid_entries(written, config)) if written else []
        return self._entries[config]

    def report(
        self, code: str, message: str, span: Span, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        severity = "warning" if code == "MC210" else "error"
        self.found.append(Diagnostic(code, message, span, (), help, severity, fixes))  # type: ignore[arg-type]

    # Entries

    def _valid_entries(self, written: Node, config: str) -> Iterator[Entry]:
        if not written.is_list:
            help = "write `- base` below it, one entry a line"
            self.report("MC208", "`defaults` must be a list", written.span, help)
            return
        itself = [entry for entry in written.value if entry.value == SELF]
        for entry in itself[1:]:
            help = "remove one: `_self_` is the position of this file among those that it includes"
            self.report("MC208", "`_self_` is in this list twice", entry.span, help)
        for entry in written.value:
            if entry.value == SELF:
                yield from [Entry(SELF, entry.span)] if entry is itself[0] else []
            elif isinstance(entry.value, str):
                yield from self._valid_include(entry, config)
            elif entry.is_mapping and len(entry.value) == 1:
                ((key, option),) = entry.items()
                yield from self._valid_choice(key, option, config)
            elif entry.value is not BROKEN:
                message = "an entry of `defaults` must be a name or one `GROUP: OPTION`"
                self.report("MC208", message, entry.span)
        if not itself:
            yield Entry(SELF, written.span)

    def _valid_include(self, entry: Node, config: str) -> Iterator[Entry]:
        """Yields an include such as `base`, `./grpo` or `/common/cluster@_global_` if its config exists."""
        path, at, package = str(entry.value).partition("@")
        if "${" not in path:
            if path.startswith("."):
                path, at, package = posixpath.normpath(path), "@", package or "_global_"
            for suffix in SUFFIXES:
                path = path.removesuffix(suffix)
        include = Entry(path, entry.span, package if at else None)
        if include.is_interpolated or self.has_config(include, config):
            yield include

    def has_config(self, entry: Entry, config: str) -> bool:
        """Returns whether the config of an include exists. Reports it otherwise."""
        path, full = entry.name, entry.path(config)
        if self._exists(full, entry.span):
            return True
        others = [option for option in self.store.options("") if option != self.store.recipe.stem]
        is_plain = path == full and entry.package is None
        group, _, short = full.rpartition("/")
        if meant := nearest(short, self.store.options(group)):
            help = f"did you mean `{posixpath.join(group, meant)}`?"
        else:
            there = [folder for folder in self.store.folders if is_dir(folder)]
            help = f"looked in {', '.join(f'`{self.store.display_name(folder)}`' for folder in there)}"
        fixes = renamed(entry.span, path, others) if is_plain else ()
        self.report("MC201", f"config `{path}` does not exist", entry.span, help, fixes)
        return False

    def _valid_choice(self, key: str, option: Node, config: str) -> Iterator[Entry]:
        """Yields `layout@components.actor.parallel: hsdp` if the group and the option exist. `override` or
        `optional` can precede the group; an optional one may be missing."""
        *words, target = key.split(" ")
        group, at, package = target.partition("@")
        nodes = option.value if option.is_list else [option] if option.value is not None else []
        entry = Entry(
            group,
            option.span,
            package if at else None,
            tuple(node.written or str(node.value) for node in nodes),
            is_list=option.is_list,
            is_optional="optional" in words,
            is_override="override" in words,
        )
        span, full = option.key or option.span, entry.path(config)
        if group.strip("/").split("/")[0] == "hydra":
            self.report("MC216", "a recipe cannot configure Hydra itself", span, "remove this entry")
        elif not self._is_placed(full, package, span, package) or entry.options is None:
            return
        elif not self.store.is_group(full) and not entry.is_optional:
            groups = self.store.groups()
            fixes = renamed(span, group, groups, after=target[len(group) :]) if key == target else ()
            message = f"config group `{group}` does not exist"
            self.report("MC202", message, span, did_you_mean(group, groups), fixes)
        else:
            valid = [
                text
                for text, node in zip(entry.options, nodes, strict=True)
                if text in ("", MISSING)
                or "${" in text
                or self.has_option(full, text, node.span, entry.is_optional)
            ]
            if valid or not nodes:
                yield replace(entry, options=tuple(valid))

    def _is_placed(self, group: str, package: str, span: Span, word: str, value: str = "") -> bool:
        """Returns whether the package of a choice is in a recipe. Reports it otherwise."""
        if not package and group == LAYOUT:
            help = f"write {LAYOUT}@components.NAME.parallel{value}"
            self.report("MC208", "a layout must name the component that it is for", span, help)
            return False
        first = package.partition(".")[0]
        # Users may choose the keys of their files, so other packages are refused only if they are misspelt.
        if not first or first[0] == "_" or first in RECIPE.keys or not nearest(first, RECIPE.keys):
            return True
        self.report("MC203", f"`{package}` is not in the recipe", span, did_you_mean(word, RECIPE.keys))
        return False

    def has_option(self, group: str, option: str, span: Span, is_optional: bool = False) -> bool:
        """Returns whether an option of a config group exists, or is optional. Reports it otherwise."""
        if self._exists(f"{group}/{option}", span) or is_optional:
            return True
        options = self.store.options(group)
        help, fixes = did_you_mean(option, options), renamed(span, option, options)
        self.report(
            "MC201", f"`{option}` is not {'an' if group[0] in 'aeiou' else 'a'} {group}", span, help, fixes
        )
        return False

    def report_no_option(self, group: str, span: Span, help: str = "") -> None:
        """Reports a choice without an option: `???`."""
        help += did_you_mean("", self.store.options(group))
        self.report("MC211", f"no option of `{group}` was chosen", span, help)

    def _exists(self, name: str, span: Span) -> bool:
        """Returns whether a config exists. Warns if it hides another one."""
        paths = [f"`{self.store.display_name(path)}`" for path in self.store.files(name)]
        if len(paths) > 1:
            message = f"`{name}` is {paths[0]}, which hides {', '.join(paths[1:])}"
            self.report("MC210", message, span, "give the file beside the recipe another name")
        return bool(paths)

    # Overrides

    def sort(self, overrides: Iterable[Override]) -> tuple[list[Override], list[Override]]:
        """Returns (overrides that choose an existing option, overrides that set a value). Reports all
        others."""
        choices, values = list[Override](), list[Override]()
        for override in overrides:
            is_choice = self._is_choice(override)
            if self._has_options(override) if is_choice else self._sets_value(override):
                (choices if is_choice else values).append(override)
        return choices, values

    def _is_choice(self, override: Override) -> bool:
        """Returns whether an override chooses options of a config group, instead of setting a value."""
        is_key = override.group in RECIPE.keys and override.parsed.package is None
        if not self.store.is_group(override.group) or override.is_deletion:
            return self.store.is_group(override.group) and not is_key
        value = override.parsed.value()
        items = value if isinstance(value, list) and value else [value]
        return all(isinstance(item, str) for item in items) if is_key else not isinstance(value, dict)

    def _has_options(self, override: Override) -> bool:
        """Returns whether all options that an override chooses exist. Reports missing ones."""
        if override.is_deletion:
            return True
        value, group, package = override.parsed.value(), override.group, override.parsed.package or ""
        options = value if isinstance(value, list) else [value]
        first, text = package.partition(".")[0], f"={override.value_text}"
        if not self._is_placed(group, package, override.key_span, first, text):
            return False
        if any(option in (MISSING, "", None) for option in options):
            self.report_no_option(group, override.value_span)
            return False
        names = [str(option) for option in options if "${" not in str(option)]
        return all(self.has_option(group, name, override.value_span) for name in names)

    def _sets_value(self, override: Override) -> bool:
        """Returns whether an override that chooses no option is a valid assignment of a value. Reports it
        otherwise."""
        name, package = override.group, override.parsed.package
        if package is None and "/" not in name:
            return True
        if self.store.is_group(name):
            help = f"to set values, name their key: {package or 'KEY'}={override.value_text}"
            message = f"an option of `{name}` must be a name, not a mapping"
            self.report("MC206", message, override.value_span, help)
            return False
        groups = self.store.groups()
        fixes = renamed(override.key_span, name, groups, after=override.target[len(name) :])
        message, help = f"config group `{name}` does not exist", did_you_mean(name, groups)
        if package is None and name.split("/")[0] in RECIPE.keys:
            help = f"to set a value, write {name.replace('/', '.')}={override.value_text}"
        self.report("MC202", message, override.key_span, help, fixes)
        return False
