"""Follows the defaults lists of a recipe: which configs it includes, in which order, and at which packages.

    defaults: [base, paint@vars.x: red, _self_]    ->    base, paint/red at `vars.x`, the recipe

The rules are Hydra's. Lists are followed from their end, because an entry `override GROUP: OPTION` also
changes the choices before it. Each mistake is reported at its entry, which is then left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose import interpolation
from meshctl.recipe.compose.config_store import PRIMARY, Config
from meshctl.recipe.compose.defaults_lists import SELF, DefaultsLists, Entry
from meshctl.recipe.compose.folders import real
from meshctl.recipe.compose.overrides import Override, is_engine, is_layout
from meshctl.recipe.compose.yaml_reader import MAX_DEPTH
from meshctl.recipe.compose.yaml_tree import MISSING, of_plain

MAX_INCLUDES = 500
"""Maximum number of includes of a recipe. A config counts each time that it is included."""
COMMENTS = r"(?:\s*#\s*@.*\n)*?"
"""The lines before the package of a config, in which Hydra allows further headers."""
GLOBAL = "_global_"
"""The part of a package that stands for the top of the recipe."""


@dataclass(frozen=True)
class Include:
    """One config of a composed recipe, and its package."""

    config: str
    """The config's name in the `ConfigStore`."""
    package: str = ""
    """The dotted key path below which its keys are merged; empty for the top."""
    above: Include | None = None
    """The config that includes it; None for the first one."""
    file: Config = Config()

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.package.split(".")) if self.package else ()

    @property
    def choices(self) -> Iterator[tuple[str, Span]]:
        """Yields (`group@package`, span) for each option that its defaults list chooses."""
        entries = self.file.defaults
        for item in entries.value if entries is not None and entries.is_list else ():
            yield from ((key.split(" ")[-1], option.key or option.span) for key, option in item.items())

    @property
    def is_part_of_group(self) -> bool:
        """True if it is included by another config of the same group."""
        if self.above is None or self.above.config == PRIMARY:
            return False
        return posixpath.dirname(self.above.config) == posixpath.dirname(self.config)

    @property
    def chain(self) -> tuple[str, ...]:
        """This config, the config that includes it, and so on."""
        return (self.config, *(self.above.chain if self.above else ()))

    def package_of(self, entry: Entry, header: str | None = None) -> str:
        """Returns the package of an entry of this config's list. `header` is the package that the included
        file states."""
        package = entry.group(entry.name.lstrip("/")).replace("/", ".") if header is None else header
        if entry.package is not None:
            package = "" if entry.package == "_here_" else entry.package
            if "_group_" in package:
                group = entry.group(entry.path(self.config)).replace("/", ".")
                package = f"{GLOBAL}.{package.replace('_group_', group)}"
        _, is_global, rest = ".".join(filter(None, (self.package, package))).rpartition(GLOBAL)
        return rest[1:] if is_global else rest

    def key_of(self, entry: Entry) -> str:
        """Returns the name by which overrides refer to a choice: `group@package`, or `group`."""
        group, package = entry.path(self.config), self.package_of(entry)
        return group if package == group.replace("/", ".") else f"{group}@{package or GLOBAL}"


TOP = Include("")
"""Stands for the command line, whose entries are in no config."""


@dataclass(frozen=True)
class Included:
    """The configs of a composed recipe."""

    configs: tuple[Include, ...] = ()
    """The recipe and the configs that it includes, directly or indirectly, in merge order."""
    replacements: tuple[tuple[Override, tuple[Include, ...]], ...] = ()
    """The overrides that replace a layout or the engine, each with the configs of the new one."""


def include(lists: DefaultsLists, choices: Sequence[Override]) -> Included:
    """Follows the defaults lists of the recipe. `choices` are the overrides that choose options; one that
    does not apply is reported. One of a layout, or of the engine, replaces it, whether or not a defaults list
    chooses one."""
    replacing = [
        one
        for one in choices
        if not one.is_deletion
        and (is_layout(one.parsed.package) or is_engine(one.parsed.package or one.group))
    ]
    walk = _Walk(lists, frozenset(TOP.key_of(_entry_of(one)) for one in replacing))
    added = [entry for one in choices if one not in replacing and (entry := walk.add(one))]
    package = (walk.header(PRIMARY) or "").removeprefix(GLOBAL).removeprefix(".")
    configs = walk.follow(Include(PRIMARY, package, file=lists.store.config(PRIMARY)), added)
    walk.report_unused()
    new = tuple((one, tuple(_Walk(lists).enter(_entry_of(one), TOP))) for one in replacing)
    return Included(tuple(configs), new)


def _entry_of(override: Override) -> Entry:
    value, package = override.parsed.value(), override.parsed.package
    options = tuple(map(str, value if isinstance(value, list) else [value]))
    return Entry(
        f"/{override.group}",
        override.value_span,
        package,
        () if override.is_deletion else options,
        is_list=isinstance(value, list),
        override=override,
    )


@dataclass
class _Walk:
    lists: DefaultsLists
    left_out: frozenset[str] = frozenset()
    """The keys of choices that are not followed."""
    replaced: dict[str, Entry] = field(default_factory=dict)
    """Key of a choice -> the entry or override that changes or deletes it. The command line takes
    precedence."""
    used: set[str] = field(default_factory=set)
    """The keys of `replaced` that were found in a list."""
    known: dict[str, Entry] = field(default_factory=dict)
    """Key of a choice -> the entry that makes it."""
    count: int = 0

    # Overrides of the command line

    def add(self, override: Override) -> Entry | None:
        """Takes an override into account. Returns the entry that `+group=option` adds to the recipe's
        list."""
        entry, old = _entry_of(override), self.replaced.get(override.target)
        if override.parsed.is_force_add():
            help = f"write +{override.target}={override.value_text}"
            self.lists.report("MC208", "`++` cannot choose an option", override.key_span, help)
        elif override.parsed.is_add():
            return entry
        elif old is None or old.options:
            self.replaced[override.target] = entry
        return None

    def report_unused(self) -> None:
        """Reports overrides of choices that no defaults list makes."""
        unused = {key: one for key, one in self.replaced.items() if key not in self.used}
        for key, entry in unused.items() if self.count <= MAX_INCLUDES else ():
            code, span, help = "MC208", entry.span, ""
            if (override := entry.override) is not None:
                code, span = "MC209" if override.is_deletion else "MC203", override.key_span
                help = "" if override.is_deletion else f"to add it, write +{key}={override.value_text}"
            self.lists.report(code, f"`{key}` is not in a defaults list", span, help)

    # Configs

    def follow(self, config: Include, added: Sequence[Entry] = ()) -> list[Include]:
        """Returns a config and the configs that it includes. `added` are further entries of its list."""
        written = self.lists.entries(config.config) or [Entry(SELF, Span("", 1, 1))]
        entries = [one for one in written if not one.is_group or config.key_of(one) not in self.left_out]
        has_overrides = False
        for entry in entries:
            if entry.is_override:
                self.replaced.setdefault(config.key_of(entry), entry)
            elif has_overrides and entry.name != SELF:
                message = "entries with `override` must be the last ones of a defaults list"
                self.lists.report("MC208", message, entry.span)
            has_overrides = has_overrides or entry.is_override
        parts: list[list[Include]] = []
        interpolated: list[tuple[list[Include], Entry]] = []
        for entry in reversed([*entries, *added]):
            part: list[Include] = []
            parts.append(part)
            if entry.name == SELF:
                part.append(config)
            elif not entry.is_override:
                entry = self.with_override(entry, config)
                if entry.is_interpolated:
                    interpolated.append((part, entry))
                else:
                    part += self.enter(entry, config)
        for part, entry in interpolated:  # they refer to the other choices
            if resolved := self.resolved(entry, config):
                part += self.enter(resolved, config)
        return [one for part in reversed(parts) for one in part]

    def enter(self, entry: Entry, config: Include) -> list[Include]:
        """Returns the configs of one entry of a config's list, and those that they include."""
        path = entry.path(config.config)
        if entry.options is None:
            return self.included(entry, path, config)
        if not entry.is_list and not self.is_only_choice(entry, config):
            return []
        if MISSING in entry.options or "" in entry.options:
            written = f"write `{config.key_of(entry)}=OPTION` on the command line; "
            self.lists.report_no_option(path, entry.span, written)
            return []
        parts = [self.included(entry, f"{path}/{option}", config) for option in reversed(entry.options)]
        return [one for part in reversed(parts) for one in part]

    def included(self, entry: Entry, name: str, above: Include) -> list[Include]:
        """Returns the config `name`, which an entry of the config `above` includes, and all that it
        includes."""
        file = self.lists.store.file(name)
        self.count += 1
        if file is None or self.count > MAX_INCLUDES + 1:  # optional, or reported
            return []
        package = above.package_of(entry, self.header(name))
        config = Include(name, package, above, self.lists.store.config(name))
        limit = ""
        if self.count > MAX_INCLUDES:
            limit = f"the defaults lists include more than {MAX_INCLUDES} files"
        elif len(config.path) > MAX_DEPTH or len(config.chain) > MAX_DEPTH:
            limit = f"a file is included below more than {MAX_DEPTH} levels"
        if limit:
            self.lists.report("MC208", f"{limit}, the limit for a recipe", entry.span)
        elif real(file) in (real(one) for other in above.chain if (one := self.lists.store.file(other))):
            written = name if entry.options is None else posixpath.basename(name)
            help = "move what both files need into a third file"
            self.lists.report("MC205", f"`{written}` includes this file again", entry.span, help)
        else:
            return self.follow(config)
        return []

    def header(self, config: str) -> str | None:
        """Returns the package in the first lines of a config, `# @package PACKAGE`; None if there is none.
        Such a package begins at the top of the recipe."""
        header = self.lists.store.config(config).header
        found = re.match(rf"{COMMENTS}\s*#+\s*@package\s+(\S+)\s*(\n|$)", header)
        if found is None:
            return None
        return found[1] if found[1].partition(".")[0] == GLOBAL else f"{GLOBAL}.{found[1]}"

    # Choices

    def with_override(self, entry: Entry, config: Include) -> Entry:
        """Returns an entry with the option that an override chooses; without options if it is deleted."""
        key = config.key_of(entry) if entry.is_group else ""
        other = self.replaced.get(key)
        if other is None:
            return entry
        if other.override and other.override.is_deletion:
            expected = other.override.parsed.value()
            if expected is not None and (str(expected),) != entry.options:
                return entry
        self.used.add(key)
        return replace(entry, options=other.options, is_list=other.is_list, span=other.span)

    def is_only_choice(self, entry: Entry, config: Include) -> bool:
        """Returns whether no other entry chooses an option of the same group for the same package. Reports it
        otherwise. As in Hydra, options may be equal if their file has a defaults list."""
        key, option = config.key_of(entry), next(iter(entry.options or ()), None)
        other = self.known.setdefault(key, entry)
        name = f"{entry.path(config.config)}/{option}"
        is_leaf = self.lists.store.file(name) is not None and not self.lists.store.config(name).defaults
        if other is entry or (entry.options == other.options and not is_leaf):
            return True
        change = f"override {key}: {option}"
        if added := entry.override or other.override:
            change = f"{key}={added.value_text}"
        first, second = (other, entry) if other.override else (entry, other)
        seconds, help = (second.span.with_word("also chosen here"),), f"to change a choice, write `{change}`"
        self.lists.found.append(Diagnostic("MC208", f"`{key}` is chosen twice", first.span, seconds, help))
        return False

    def resolved(self, entry: Entry, config: Include) -> Entry | None:
        """Returns an entry with its interpolations resolved; None if that is not possible. They refer to
        other choices by their keys."""
        text = entry.options[0] if entry.options else entry.name
        chosen = {key: next(iter(one.options or ()), None) for key, one in self.known.items()}
        tree, found = interpolation.resolve(of_plain({**chosen, "": text}, entry.span))
        node = tree.get("")
        if found or node is None or not isinstance(node.value, str):
            reason, help = (found[0].message, found[0].help) if found else ("it is not a name", "")
            message = f"this interpolation does not choose an option: {reason}"
            self.lists.report("MC208", message, entry.span, help)
            return None
        if entry.is_group:
            group = entry.path(config.config)
            has_option = self.lists.has_option(group, node.value, entry.span, entry.is_optional)
            return replace(entry, options=(node.value,)) if has_option else None
        include = replace(entry, name=node.value)
        return include if self.lists.has_config(include, config.config) else None
