"""Checks every entry of a defaults list, and every config that an override chooses.

Hydra stops at the first wrong entry and does not report its line. Each entry is therefore checked before
Hydra reads the list. A wrong entry is reported and removed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.config_store import PRIMARY, ConfigStore
from meshctl.recipe.compose.folders import NOT_GROUPS, SUFFIXES, find_special, is_dir, real
from meshctl.recipe.compose.overrides import LAYOUT, Override, is_layout
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node
from meshctl.recipe.fields import RECIPE
from meshctl.recipe.fixes import PLAIN, renamed
from meshctl.recipe.scalars import rewritten
from meshctl.text.english import did_you_mean, nearest

SHARED = "move what both files need into a third file"
MAX_INCLUDES = 500
"""Maximum number of includes of a recipe. A config counts each time that it is included."""
CHOICE = "__choice__"
"""The name of a synthetic config whose only default is one layout from the command line."""


@dataclass
class DefaultsLists:
    """The defaults lists of a recipe's configs, without the wrong entries, which are reported in `found`."""

    store: ConfigStore
    chosen: Collection[str] = ()
    """The `group@package` of every option that the command line chooses."""
    found: list[Diagnostic] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._checked: dict[str, list[Any]] = {}
        self._includes: dict[str, set[str]] = {}
        self._counts: dict[str, int] = {}

    def of(self, name: str) -> list[Any]:
        """Returns the valid entries of a config's defaults list, as plain data for Hydra."""
        if name not in self._checked:
            entries = self.store.config(name).defaults
            self._checked[name] = list(self._valid_entries(name, entries)) if entries else []
        return self._checked[name]

    def count(self, name: str) -> int:
        """Returns the number of configs that a config includes, directly or indirectly. Counting stops above
        `MAX_INCLUDES`. Each config is read once."""
        if name not in self._counts:
            count = 0
            for included in self._included(name):
                count += 1 + self.count(included)
                if count > MAX_INCLUDES:
                    break
            self._counts[name] = count
        return self._counts[name]

    def _included(self, name: str) -> Iterator[str]:
        """Yields the configs that a defaults list includes, except entries with an interpolation."""
        for entry in self.of(name):
            if isinstance(entry, str):
                yield from [] if entry == "_self_" else [_full_name(name, entry.partition("@")[0])]
            else:
                ((key, options),) = entry.items()
                group = _full_name(name, key.split(" ")[-1].partition("@")[0])
                named = options if isinstance(options, list) else [options]
                yield from (f"{group}/{option}" for option in named if isinstance(option, str))

    def set_choice(self, override: Override) -> None:
        """Sets the defaults list of the config `CHOICE` to one layout of the command line."""
        target = f"{override.group}@{override.parsed.package}"
        self._checked[CHOICE] = [{target: override.parsed.value()}]

    def is_config(self, name: str) -> bool:
        return name in (PRIMARY, CHOICE) or self.store.file(name) is not None

    def report(
        self, code: str, message: str, span: Span, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        severity = "warning" if code == "MC210" else "error"
        self.found.append(Diagnostic(code, message, span, (), help, severity, fixes))  # type: ignore[arg-type]

    # Entries

    def _valid_entries(self, name: str, entries: Node) -> Iterator[Any]:
        if not entries.is_list:
            self._report_no_list(entries)
            return
        has_self = False
        for entry in entries.value:
            if entry.value == "_self_" and has_self:
                help = "remove one: `_self_` is the position of this file among those that it includes"
                self.report("MC208", "`_self_` is in this list twice", entry.span, help)
                continue
            has_self = has_self or entry.value == "_self_"
            if isinstance(entry.value, str):
                yield from self._valid_include(name, entry)
            elif entry.is_mapping and len(entry.value) == 1:
                ((key, option),) = entry.items()
                yield from self._valid_choice(name, key, option)
            elif entry.value is not BROKEN:
                message = "an entry of `defaults` must be a name or one `GROUP: OPTION`"
                self.report("MC208", message, entry.span)
        if not any(entry.value == "_self_" for entry in entries.value):
            yield "_self_"

    def _report_no_list(self, entries: Node) -> None:
        is_name = isinstance(entries.value, str) and PLAIN.fullmatch(entries.value)
        fixes = rewritten(entries, f"[{entries.value}]") if is_name else ()
        help = "write `- base` below it, one entry a line"
        self.report("MC208", "`defaults` must be a list", entries.span, help, fixes)

    def _valid_include(self, name: str, entry: Node) -> Iterator[str]:
        """Yields an include such as `base`, `./grpo` or `/common/cluster@_global_` if its config exists."""
        text = str(entry.value)
        if text == "_self_" or "${" in text:
            yield from [text] if self._is_known_early(text, entry.span) else []
            return
        path, at, package = text.partition("@")
        if path.startswith("."):
            path, at, package = posixpath.normpath(path), "@", package or "_global_"
        for suffix in SUFFIXES:
            path = path.removesuffix(suffix)
        full = _full_name(name, path)
        if not self._exists(full, entry.span):
            others = [option for option in self.store.options("") if option != self.store.recipe.stem]
            fixes = renamed(entry.span, text, others) if text == full else ()
            message = f"config `{path}` does not exist"
            self.report("MC201", message, entry.span, self._searched(full), fixes)
        elif self._includes_itself(name, full):
            self.report("MC205", f"`{path}` includes this file again", entry.span, SHARED)
        else:
            yield f"{path}{at}{package}"

    def _valid_choice(self, name: str, key: str, option: Node) -> Iterator[Mapping[str, Any]]:
        """Yields `layout@components.actor.parallel: hsdp` if the group and the option exist; `override` or
        `optional` can precede the group."""
        *words, target = key.split(" ")
        group, _, package = target.partition("@")
        span = option.key or option.span
        full = _full_name(name, group)
        if group.strip("/").split("/")[0] == "hydra":
            self.report("MC216", "a recipe cannot configure Hydra itself", span, "remove this entry")
        elif not package and full == LAYOUT:
            help = f"write {LAYOUT}@components.NAME.parallel"
            self.report("MC208", "a layout must name the component that it is for", span, help)
        elif package and (meant := _package_meant(package, full == LAYOUT)) != package:
            edits = (Fix(span, key, key.replace(package, meant)),)
            message, help = f"`{package}` is not in the recipe", f"did you mean `{meant}`?"
            self.report("MC203", message, span, help, edits)
        elif not self.store.is_group(full) and "optional" not in words:
            groups = self.store.groups()
            fixes = renamed(span, group, groups, after=target[len(group) :]) if key == target else ()
            message = f"config group `{group}` does not exist"
            self.report("MC202", message, span, did_you_mean(group, groups), fixes)
        elif option.value == MISSING and target not in self.chosen:
            options = did_you_mean("", self.store.options(full))
            help = f"write `{target}=OPTION` on the command line; {options}"
            self.report("MC211", f"no option of `{group}` was chosen", option.span, help)
        elif option.value is None:
            yield {key: None}
        elif not (is_layout(package) and target in self.chosen):
            yield from self._valid_options(name, key, full, option)

    def _valid_options(self, name: str, key: str, group: str, option: Node) -> Iterator[Mapping[str, Any]]:
        """Yields an entry with the given option, or with the existing ones of a list of options."""
        is_optional = "optional" in key.split(" ")[:-1]
        valid = []
        for node in option.value if option.is_list else [option]:
            text = node.written or str(node.value)
            if self._is_option(name, group, text, node.span, is_optional):
                valid.append(text)
        if valid:
            yield {key: valid if option.is_list else valid[0]}

    def _is_option(self, name: str, group: str, option: str, span: Span, is_optional: bool = False) -> bool:
        if "${" in option:
            return self._is_known_early(option, span)
        if option in (MISSING, ""):
            return True
        if not self._exists(f"{group}/{option}", span):
            if not is_optional:
                options = self.store.options(group)
                help, fixes = did_you_mean(option, options), renamed(span, option, options)
                if find_special(self.store.folders, f"{group}/{option}"):
                    help = self._searched(f"{group}/{option}")
                self.report("MC201", f"`{option}` is not a {group}", span, help, fixes)
            return False
        if self._includes_itself(name, f"{group}/{option}"):
            self.report("MC205", f"`{option}` includes this file again", span, SHARED)
            return False
        return True

    def _is_known_early(self, text: str, span: Span) -> bool:
        """Whether the interpolations of an entry refer only to other entries of defaults lists. The recipe's
        values are not composed yet when a defaults list is read."""
        late = next((key for key in RECIPE.keys if re.search(_reference(key), text)), "")
        if late:
            message = (
                f"`{late}` is not known yet: an entry of a defaults list can refer to other entries only"
            )
            self.report("MC208", message, span, "name the option, or choose it on the command line")
        return not late

    def _exists(self, name: str, span: Span) -> bool:
        """Whether a config exists. Warns if it hides another one."""
        paths = [f"`{self.store.display_name(path)}`" for path in self.store.files(name)]
        if len(paths) > 1:
            message = f"`{name}` is {paths[0]}, which hides {', '.join(paths[1:])}"
            self.report("MC210", message, span, "give the file beside the recipe another name")
        return bool(paths)

    def _searched(self, name: str) -> str:
        """Returns the help for a config that does not exist."""
        group, _, short = name.rpartition("/")
        if special := find_special(self.store.folders, name):
            path, kind = special
            return f"`{self.store.display_name(path)}` is {kind}, not a file"
        if meant := nearest(short, self.store.options(group)):
            return f"did you mean `{posixpath.join(group, meant)}`?"
        folders = [f"`{self.store.display_name(folder)}`" for folder in self.store.folders if is_dir(folder)]
        return f"looked in {', '.join(folders)}"

    def _includes_itself(self, name: str, included: str) -> bool:
        """Whether `included` includes `name`, directly or indirectly. If not, records that `name` includes
        it."""
        file = self.store.file(included)
        if file is not None and real(file) == real(self.store.recipe):
            included = PRIMARY
        reached, open = set(), [included]
        while open:
            here = open.pop()
            if here == name:
                return True
            if here not in reached:
                reached.add(here)
                open += self._includes.get(here, ())
        self._includes.setdefault(name, set()).add(included)
        return False

    # Overrides

    def sort(self, overrides: Iterable[Override]) -> tuple[list[Override], list[Override]]:
        """Returns (overrides that choose an existing option, overrides that set a value). Reports all
        others."""
        choices, values = list[Override](), list[Override]()
        for override in overrides:
            if self._is_choice(override):
                choices += [override] if self._has_options(override) else []
            else:
                values += [override] if self._sets_value(override) else []
        return choices, values

    def _is_choice(self, override: Override) -> bool:
        """Whether an override chooses options of a config group, instead of setting a value."""
        if not self.store.is_group(override.group):
            return False
        if override.is_deletion:
            return override.group not in RECIPE.keys or override.parsed.package is not None
        value = override.parsed.value()
        if override.group in RECIPE.keys and override.parsed.package is None:
            return isinstance(value, str) or (
                isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
            )
        return not isinstance(value, dict)

    def _has_options(self, override: Override) -> bool:
        """Whether all options that an override chooses exist. Reports missing ones."""
        if override.is_deletion:
            return True
        value, group = override.parsed.value(), override.group
        options = value if isinstance(value, list) else [value]
        package = override.parsed.package or ""
        if (meant := _package_meant(package, group == LAYOUT)) != package:
            written = f"{group}@{meant}={override.value_text}"
            message, help = f"`{package}` is not in the recipe", f"did you mean `{written}`?"
            fixes = (Fix(override.key_span, f"{group}@{package}", f"{group}@{meant}"),)
            self.report("MC203", message, override.key_span, help, fixes)
            return False
        if group == LAYOUT and override.parsed.package is None:
            help = f"write {LAYOUT}@components.NAME.parallel={override.value_text}"
            self.report("MC208", "a layout must name the component that it is for", override.key_span, help)
            return False
        if MISSING in options or "" in options:
            help = did_you_mean("", self.store.options(group))
            self.report("MC211", f"no option of `{group}` was chosen", override.value_span, help)
            return False
        named = [str(option) for option in options if option is not None]
        return all(self._is_option(CHOICE, group, option, override.value_span) for option in named)

    def _sets_value(self, override: Override) -> bool:
        """Whether an override that chooses no option is a valid assignment of a value. Reports it
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


def _full_name(name: str, path: str) -> str:
    """Returns the full name of the config or group to which `path` refers in the defaults list of config
    `name`."""
    base = "" if name in (PRIMARY, CHOICE) else posixpath.dirname(name)
    return posixpath.normpath(path.lstrip("/") if path.startswith("/") else posixpath.join(base, path))


def _reference(key: str) -> str:
    """Returns a pattern for interpolations that refer to a value below a top-level key of recipes."""
    before_value = r"(?!@)" if key in NOT_GROUPS else r"(?=\.)"
    return rf"\$\{{ *{key}\b{before_value}"


def _package_meant(package: str, is_layout: bool) -> str:
    """Returns the package that was probably meant by one whose first part is not a key of recipes; the same
    package if there is no clear answer."""
    first, dot, rest = package.partition(".")
    if first and not first.startswith("_") and first not in RECIPE.keys:
        first = nearest(first, RECIPE.keys) or first
    name, _, last = rest.rpartition(".")
    if is_layout and first == "components" and name and nearest(last, ["parallel"]):
        rest = f"{name}.parallel"
    return f"{first}{dot}{rest}"
