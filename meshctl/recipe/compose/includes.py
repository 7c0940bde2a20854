"""Follows the defaults lists of a recipe: which configs it includes, in which order, and at which packages.

    defaults: [base, paint@vars.x: red, _self_]    ->    base, paint/red at `vars.x`, the recipe

The rules are Hydra's. Lists are followed from their end, because an entry `override GROUP: OPTION` also
changes the choices before it. Each mistake is reported at its entry, which is then left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose import interpolation, yaml_scalars
from meshctl.recipe.compose.config_store import PRIMARY
from meshctl.recipe.compose.defaults_lists import SELF, DefaultsLists, Entry
from meshctl.recipe.compose.folders import real
from meshctl.recipe.compose.overrides import Override
from meshctl.recipe.compose.yaml_reader import MAX_DEPTH
from meshctl.recipe.compose.yaml_tree import MISSING, of_plain

MAX_INCLUDES = 500
"""Maximum number of includes of a recipe. A config counts each time that it is included."""
GLOBAL = "_global_"
"""The part of a package that stands for the top of the recipe."""


@dataclass(frozen=True)
class Include:
    """One config of a composed recipe, and its package."""

    config: str
    """The config's name in the `ConfigStore`."""
    group: str = ""
    """The folder to which the names in its defaults list are relative."""
    package: str = ""
    """The dotted key path below which its keys are merged; empty for the top."""
    above: Include | None = None
    """The config that includes it; None for the first one."""

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.package.split(".")) if self.package else ()

    @property
    def is_part_of_group(self) -> bool:
        """Whether it is included by another config of the same group."""
        if self.above is None or self.above.config == PRIMARY:
            return False
        return posixpath.dirname(self.above.config) == posixpath.dirname(self.config)

    def chain(self) -> Iterator[Include]:
        """Yields this config, the config that includes it, and so on."""
        here: Include | None = self
        while here is not None:
            yield here
            here = here.above

    def package_of(self, entry: Entry, header: str | None = None) -> str:
        """Returns the package of an entry of this config's list. `header` is the package that the included
        file states."""
        group = entry.name.lstrip("/") if entry.is_group else posixpath.dirname(entry.name.lstrip("/"))
        package = group.replace("/", ".") if header is None else header
        if entry.package is not None:
            package = "" if entry.package == "_here_" else entry.package
            if "_group_" in package:
                full = entry.path(self.group) if entry.is_group else posixpath.dirname(entry.path(self.group))
                package = f"{GLOBAL}.{package.replace('_group_', full.replace('/', '.'))}"
        _, is_global, rest = ".".join(filter(None, (self.package, package))).rpartition(GLOBAL)
        return rest[1:] if is_global else rest

    def key_of(self, entry: Entry) -> str:
        """Returns the name by which overrides refer to a choice: `group@package`, or `group`."""
        group, package = entry.path(self.group), self.package_of(entry)
        return group if package == group.replace("/", ".") else f"{group}@{package or GLOBAL}"


class _TooManyIncludes(Exception):
    pass


def includes_of(
    lists: DefaultsLists, choices: Iterable[Override], layouts: Iterable[Override]
) -> list[Include]:
    """Returns the recipe and the configs that it includes, directly or indirectly, in merge order.

    `choices` are the overrides that choose options. One that does not apply is reported. `layouts` are the
    overrides that replace a layout, which is then not included.
    """
    walk = _Walk(lists, frozenset(Include("").key_of(_entry_of(one)) for one in layouts))
    added = [entry for one in choices if (entry := walk.add(one))]
    package = walk.header(PRIMARY) or ""
    root = Include(PRIMARY, package=package.rpartition(GLOBAL)[2][1:])
    found = walk.limited(lambda: walk.follow(root, added))
    walk.report_unused()
    return found


def includes_of_choice(lists: DefaultsLists, override: Override) -> list[Include]:
    """Returns the config that an override chooses, and the configs that it includes, in merge order."""
    walk = _Walk(lists)
    return walk.limited(lambda: walk.enter(_entry_of(override), Include("")))


def _entry_of(override: Override) -> Entry:
    value = override.parsed.value()
    options = tuple(map(str, value if isinstance(value, list) else [value]))
    group, package = f"/{override.group}", override.parsed.package
    is_list = isinstance(value, list)
    return Entry(group, override.value_span, package, options, is_list=is_list, override=override)


@dataclass
class _Walk:
    lists: DefaultsLists
    left_out: frozenset[str] = frozenset()
    """The keys of choices that are not followed."""
    replaced: dict[str, Entry] = field(default_factory=dict)
    """Key of a choice -> the entry or override that changes it. The command line takes precedence."""
    deleted: dict[str, Override] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    """The keys of `replaced` and `deleted` that were found in a list."""
    known: dict[str, Entry] = field(default_factory=dict)
    """Key of a choice -> the entry that makes it."""
    count: int = 0

    # Overrides of the command line

    def add(self, override: Override) -> Entry | None:
        """Takes an override into account. Returns the entry that `+group=option` adds to the recipe's
        list."""
        if override.is_deletion:
            self.deleted[override.target] = override
        elif override.parsed.is_force_add():
            help = f"write +{override.target}={override.value_text}"
            self.lists.report("MC208", "`++` cannot choose an option", override.key_span, help)
        elif override.parsed.is_add():
            return _entry_of(override)
        else:
            self.replaced[override.target] = _entry_of(override)
        return None

    def report_unused(self) -> None:
        for key, override in self.deleted.items():
            if key not in self.used:
                self.lists.report("MC209", f"`{key}` is not in a defaults list", override.key_span)
        for key, entry in self.replaced.items():
            if key not in self.used and entry.override:
                help = f"to add it, write +{key}={entry.override.value_text}"
                self.lists.report(
                    "MC203", f"`{key}` is not in a defaults list", entry.override.key_span, help
                )
            elif key not in self.used:
                self.lists.report(
                    "MC208", f"no defaults list chooses `{key}`, so nothing is overridden", entry.span
                )

    # Configs

    def limited(self, walk: Callable[[], list[Include]]) -> list[Include]:
        """Returns the result of a walk; nothing if it includes too many files."""
        try:
            return walk()
        except _TooManyIncludes:
            written = self.lists.store.config(PRIMARY).defaults
            name = self.lists.store.display_name(self.lists.store.recipe)
            span = (written.key or written.span) if written else Span(name, 1, 1)
            message = f"the defaults lists include more than {MAX_INCLUDES} files, the limit for a recipe"
            self.lists.report("MC208", message, span)
            return []

    def follow(self, config: Include, added: Sequence[Entry] = (), is_late: bool = False) -> list[Include]:
        """Returns a config and the configs that it includes. `added` are further entries of its list.
        `is_late` says that it was chosen by an interpolation, after all other choices."""
        written = self.lists.entries(config.config, config.group) or [Entry(SELF, Span("", 1, 1))]
        entries = [one for one in written if not one.is_group or config.key_of(one) not in self.left_out]
        self.find_overrides(config, entries, is_late)
        parts: list[list[Include]] = []
        interpolated: list[tuple[list[Include], Entry]] = []
        for entry in reversed([*entries, *added]):
            part: list[Include] = []
            parts.append(part)
            if entry.name == SELF:
                part.append(config)
            elif not entry.is_override:
                entry = self.with_overrides(entry, config)
                if entry.is_interpolated:
                    interpolated.append((part, entry))
                else:
                    part += self.enter(entry, config, is_late)
        for part, entry in interpolated:
            if resolved := self.resolved(entry, config):
                part += self.enter(resolved, config, is_late=True)
        return [one for part in reversed(parts) for one in part]

    def enter(self, entry: Entry, config: Include, is_late: bool = False) -> list[Include]:
        """Returns the configs of one entry of a config's list, and those that they include."""
        path = entry.path(config.group)
        if entry.options is None:
            return self.included(entry, path, posixpath.dirname(path), config, is_late)
        if entry.is_list:
            names = [f"{path}/{option}" for option in reversed(entry.options)]
            found = [self.included(entry, name, posixpath.dirname(name), config, is_late) for name in names]
            return [one for some in reversed(found) for one in some]
        option = next(iter(entry.options), None)
        if self.is_deleted(config.key_of(entry), option) or not self.is_only_choice(entry, config):
            return []
        if option in (MISSING, ""):
            self.lists.report_no_option(path, config.key_of(entry), entry.span)
            return []
        name = f"{path}/{option}"
        return [] if option is None else self.included(entry, name, path, config, is_late)

    def included(self, entry: Entry, name: str, group: str, above: Include, is_late: bool) -> list[Include]:
        """Returns the config `name`, which an entry of the config `above` includes, and all that it
        includes."""
        self.count += 1
        if self.count > MAX_INCLUDES:
            raise _TooManyIncludes
        store, written = self.lists.store, entry.options[0] if entry.options else entry.name
        file = store.file(name)
        if file is None:  # optional
            return []
        config = Include(name, group, above.package_of(entry, self.header(name)), above)
        chain = [one.config for one in above.chain()]
        if real(file) in (real(one) for config in chain if (one := store.file(config))):
            help = "move what both files need into a third file"
            self.lists.report("MC205", f"`{written}` includes this file again", entry.span, help)
        elif len(config.path) > MAX_DEPTH or len(chain) > MAX_DEPTH:
            levels = f"{MAX_DEPTH} levels of {'keys' if len(config.path) > MAX_DEPTH else 'includes'}"
            message = f"a file is included below more than {levels}, the limit for a recipe"
            self.lists.report("MC208", message, entry.span)
        else:
            return self.follow(config, is_late=is_late)
        return []

    def header(self, config: str) -> str | None:
        """Returns the package in the first lines of a config, `# @package PACKAGE`; None if there is none.
        Such a package begins at the top of the recipe."""
        file = self.lists.store.file(config)
        for number, line in enumerate(self.lists.store.config(config).header.splitlines(), 1):
            if line.strip() and not re.match(r"\s*#\s*@", line):
                break
            key, *values = line.lstrip("# \t").split() or [""]
            if key == "@package" and len(values) == 1:
                return values[0] if values[0].split(".")[0] == GLOBAL else f"{GLOBAL}.{values[0]}"
            if key and file is not None:
                span = Span(self.lists.store.display_name(file), number, 1, len(line))
                self.lists.report(
                    "MC208", "this line is not a valid header", span, "write # @package PACKAGE"
                )
        return None

    # Choices

    def find_overrides(self, config: Include, entries: Sequence[Entry], is_late: bool) -> None:
        """Records the entries of a list that change the choices of others."""
        has_overrides = False
        for entry in entries:
            if entry.is_override and is_late:
                message = "a file that an interpolation chooses cannot override other choices"
                self.lists.report("MC208", message, entry.span)
            elif entry.is_override:
                self.replaced.setdefault(config.key_of(entry), entry)
            elif has_overrides and entry.name != SELF:
                message = "entries with `override` must be the last ones of a defaults list"
                self.lists.report("MC208", message, entry.span)
            has_overrides = has_overrides or entry.is_override

    def with_overrides(self, entry: Entry, config: Include) -> Entry:
        """Returns an entry with the option that an override chooses."""
        key = config.key_of(entry) if entry.is_group else ""
        other = self.replaced.get(key)
        if other is None:
            return entry
        self.used.add(key)
        return replace(entry, options=other.options, is_list=other.is_list, span=other.span)

    def is_deleted(self, key: str, option: str | None) -> bool:
        if key not in self.deleted:
            return False
        expected = self.deleted[key].parsed.value()
        if expected not in (None, option):
            return False
        self.used.add(key)
        return True

    def is_only_choice(self, entry: Entry, config: Include) -> bool:
        """Whether no other entry chooses an option of the same group for the same package. Reports it
        otherwise. Hydra accepts that for equal options whose files have a defaults list."""
        key = config.key_of(entry)
        other = self.known.setdefault(key, entry)
        option = next(iter(entry.options or ()), None)
        file = self.lists.store.config(f"{entry.path(config.group)}/{option}")
        is_repeated = entry.options == other.options and (option is None or file.defaults is not None)
        if other is entry or is_repeated:
            return True
        added = entry.override or other.override
        if added is None:
            message = f"`{key}` is chosen twice; to change a choice, write `override {key}: {option}`"
            found = Diagnostic("MC208", message, entry.span, (other.span.with_word("first chosen here"),))
        else:
            here = (entry if other.override else other).span.with_word("here")
            help = f"`{key}={added.value_text}` replaces it"
            plus = Fix(Span(added.file, 1, added.text.index("+") + 1), "+", "")
            message = f"`{key}` already exists"
            found = Diagnostic("MC204", message, added.key_span, (here,), help, fixes=(plus,))
        self.lists.found.append(found)
        return False

    def resolved(self, entry: Entry, config: Include) -> Entry | None:
        """Returns an entry with its interpolations resolved; None if that is not possible. They refer to
        other choices by their keys."""
        text = entry.options[0] if entry.options else entry.name
        chosen = {key: next(iter(one.options or ()), None) for key, one in self.known.items()}
        values = of_plain({**chosen, "": text}, entry.span)
        tree, found = interpolation.resolve(values, decode=yaml_scalars.scalar)
        node = tree.get("")
        if found or node is None or not isinstance(node.value, str):
            reason, help = (found[0].message, found[0].help) if found else ("it is not a name", "")
            message = f"this interpolation does not choose an option: {reason}"
            self.lists.report("MC208", message, entry.span, help)
            return None
        if entry.is_group:
            group = entry.path(config.group)
            has_option = self.lists.has_option(group, node.value, entry.span, entry.is_optional)
            return replace(entry, options=(node.value,)) if has_option else None
        include = replace(entry, name=node.value)
        return include if self.lists.has_config(include, config.group) else None
