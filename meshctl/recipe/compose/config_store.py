"""The files that a recipe may name: found, read once each, and their defaults lists looked at entry by entry.

    folders    conf/ beside the recipe, the recipe's own folder, then the one that meshctl ships; the first
               that has a name wins
    ./grpo     a neighbouring recipe, mounted as a whole

Hydra decides which files are merged, in which order, mounted where (`listing.py`). It stops at the first
thing that is wrong, so every entry is checked before Hydra sees it, and a wrong one is said and left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.defaults_entry import Mounted
from meshctl.recipe.compose.folders import NoFile, contents, files, is_dir, is_file, real, subfolders
from meshctl.recipe.compose.overrides import Given, is_layout
from meshctl.recipe.compose.yaml_reader import MAX_BYTES, Text, read
from meshctl.recipe.compose.yaml_tree import BROKEN, MISSING, Node
from meshctl.recipe.fixes import PLAIN, renamed, rewritten
from meshctl.recipe.model import TOP
from meshctl.text.english import did_you_mean, nearest

PRIMARY = "__recipe__"
"""The recipe's name for Hydra, whatever its file is called: a stored config of the same name is another one.
"""
CHOICE = "__choice__"
"""A made-up config whose only default is one layout from the command line."""
LAYOUT = "layout"
"""The config group of layouts."""
SUFFIXES = (".yaml", ".yml")
UNREADABLE = {"MC001", "MC002", "MC003", "MC004", "MC010"}
"""After these there is no recipe to check."""


@dataclass
class Shelf:
    """All files that a recipe may name, read once each, and everything wrong that was found in them."""

    recipe: Path
    cwd: Path
    folders: Iterable[Path]
    found: list[Diagnostic] = field(default_factory=list)
    chosen: frozenset[str] = frozenset()
    """What the command line chooses an option for, as `group@package`."""
    held: Mapping[str, bytes] = field(default_factory=dict)
    """What is read in place of files, by their real paths."""

    def __post_init__(self) -> None:
        unique = {real(folder): folder for folder in reversed(list(self.folders))}
        self.folders = list(reversed(unique.values()))
        self._texts: dict[Path, Text] = {}
        self._lists: dict[str, list[Any]] = {CHOICE: []}
        self._includes: dict[str, set[str]] = {}

    # Files

    def file(self, name: str) -> Path | None:
        return self.recipe if name == PRIMARY else next(self.candidates(name), None)

    def candidates(self, name: str) -> Iterator[Path]:
        """Every file of this name, the one that wins first."""
        for folder in self.folders:
            for suffix in SUFFIXES:
                path = folder / f"{name}{suffix}"
                if is_file(path):
                    yield path
                    break

    def text(self, name: str) -> Text | None:
        file = self.file(name)
        if file is None:
            return None
        if file not in self._texts:
            self._texts[file] = text = self._read(file)
            if text.tree is not None and not text.tree.is_mapping and text.tree.value is not BROKEN:
                text.found.append(
                    Diagnostic("MC004", f"`{text.name}` must be a mapping of keys", text.tree.span)
                )
            if text.tree is not None and text.tree.value is None:
                text.tree, text.found = Node({}, text.tree.span), text.found[:-1]
            self.found += text.found
        return self._texts[file]

    def readable(self, name: str) -> bool:
        text = self.text(name)
        return text is not None and not any(diagnostic.code in UNREADABLE for diagnostic in text.found)

    def _read(self, file: Path) -> Text:
        shown, held = self.shown(file), self.held.get(real(file))
        try:
            return read(contents(file, MAX_BYTES) if held is None else held, shown)
        except NoFile as kind:
            help = "to read a recipe from a pipe, say `-` in place of its name"
            return Text(shown, found=[Diagnostic("MC001", f"`{shown}` is {kind} and no file", help=help)])
        except FileNotFoundError:
            near = nearest(file.name, [path.name for path in files(file.parent, *SUFFIXES)])
            help = f"did you mean `{self.shown(file.with_name(near))}`?" if near else ""
            return Text(shown, found=[Diagnostic("MC001", f"there is no recipe `{shown}`", help=help)])
        except OSError as error:
            reason = (error.strerror or "it cannot be read").lower()
            return Text(shown, found=[Diagnostic("MC001", f"cannot read `{shown}`: {reason}")])

    def shown(self, file: Path) -> str:
        """As the user would name it."""
        absolute = self.cwd / file
        return str(absolute.relative_to(self.cwd)) if absolute.is_relative_to(self.cwd) else str(file)

    def sources(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return tuple((text.name, text.lines) for text in self._texts.values() if text.lines)

    def is_config(self, name: str) -> bool:
        return name in (PRIMARY, CHOICE) or self.file(name) is not None

    def is_group(self, name: str) -> bool:
        """A folder with configs in it; a folder that happens to be called like a key of recipes is none."""
        if not name or name.split("/")[0] in TOP:
            return False
        return any(files(folder / name, *SUFFIXES) for folder in self.folders)

    def options(self, group: str) -> list[str]:
        return sorted({path.stem for folder in self.folders for path in files(folder / group, *SUFFIXES)})

    def groups(self) -> list[str]:
        found = {name for folder in self.folders for name in subfolders(folder)}
        return sorted(name for name in found if self.is_group(name))

    def defaults_of(self, name: str) -> list[Any]:
        """A file's own defaults list, without the entries that are wrong."""
        if name not in self._lists:
            text = self.text(name)
            entries = text.tree.get("defaults") if text and text.tree and self.readable(name) else None
            self._lists[name] = list(self._entries(name, entries)) if entries else []
        return self._lists[name]

    def head(self, name: str) -> str:
        """The first lines of a file, where `# @package` may stand."""
        text = None if name == CHOICE else self.text(name)
        return "\n".join(text.lines[:8]) if text else ""

    # Defaults lists: each entry is looked at before Hydra does, which stops at the first that is wrong

    def say(
        self, code: str, message: str, span: Span, *seconds: Span, help: str = "", fixes: tuple[Fix, ...] = ()
    ) -> None:
        self.found.append(
            Diagnostic(code, message, span, seconds, help, "warning" if code == "MC210" else "error", fixes)
        )

    def _entries(self, name: str, entries: Node) -> Iterator[Any]:
        if not entries.is_list:
            fixes = (
                rewritten(entries, f"[{entries.value}]")
                if isinstance(entries.value, str) and PLAIN.fullmatch(entries.value)
                else ()
            )
            self.say(
                "MC208",
                "`defaults` must be a list",
                entries.span,
                help="write `- base` below it, one entry a line",
                fixes=fixes,
            )
            return
        has_self = False
        for entry in entries.value:
            if isinstance(entry.value, str):
                has_self = has_self or entry.value == "_self_"
                yield from self._include(name, entry)
            elif entry.is_mapping and len(entry.value) == 1:
                (key, option), *_ = entry.items()
                yield from self._choice(name, key, option)
            elif entry.value is not BROKEN:
                self.say("MC208", "an entry of `defaults` is a name, or one `group: option`", entry.span)
        if not has_self:
            yield "_self_"

    def _include(self, name: str, entry: Node) -> Iterator[str]:
        """`base`, `./grpo`, `/common/cluster@_global_`."""
        text = str(entry.value)
        if text == "_self_" or "${" in text:
            yield from [text] if self._known_early(text, entry.span) else []
            return
        path, at, package = text.partition("@")
        if path.startswith("."):
            path, at, package = posixpath.normpath(path), "@", package or "_global_"
        for suffix in SUFFIXES:
            path = path.removesuffix(suffix)
        full = self._from(name, path)
        if not self._exists(full, entry.span):
            fixes = (
                renamed(entry.span, text, [name for name in self.options("") if name != self.recipe.stem])
                if text == full
                else ()
            )
            self.say(
                "MC201", f"there is no config `{path}`", entry.span, help=self._places(full), fixes=fixes
            )
        elif self._circle(name, full):
            self.say("MC205", f"`{path}` includes this file again", entry.span)
        else:
            yield f"{path}{at}{package}"

    def _choice(self, name: str, key: str, option: Node) -> Iterator[Mapping[str, Any]]:
        """`layout@components.actor.parallel: hsdp`, with `override` or `optional` before it."""
        *words, target = key.split(" ")
        group, _, package = target.partition("@")
        where = option.key or option.span
        full = self._from(name, group)
        if group.strip("/").split("/")[0] == "hydra":
            self.say("MC216", "a recipe does not configure Hydra itself", where, help="remove this entry")
        elif not package and full == LAYOUT:
            self.say(
                "MC208",
                "a layout is mounted in a component",
                where,
                help=f"say whose: {LAYOUT}@components.NAME.parallel",
            )
        elif not self.is_group(full) and "optional" not in words:
            fixes = renamed(where, group, self.groups(), after=target[len(group) :]) if key == target else ()
            self.say(
                "MC202",
                f"there is no config group `{group}`",
                where,
                help=did_you_mean(group, self.groups()),
                fixes=fixes,
            )
        elif option.value == MISSING and target not in self.chosen:
            help = f"say `{target}=OPTION` on the command line; {did_you_mean('', self.options(full))}"
            self.say("MC211", f"no option of `{group}` was chosen", option.span, help=help)
        elif option.value is None:
            yield {key: None}
        elif not (is_layout(package) and target in self.chosen):
            names = option.value if option.is_list else [option]
            texts = [node.written or str(node.value) for node in names]
            optional = "optional" in words
            right = [
                text
                for node, text in zip(names, texts, strict=True)
                if self._option(name, full, text, node.span, optional)
            ]
            if right:
                yield {key: right if option.is_list else right[0]}

    def _option(self, name: str, group: str, option: str, span: Span, optional: bool) -> bool:
        if "${" in option:
            return self._known_early(option, span)
        if option == MISSING:
            return True
        if not self._exists(f"{group}/{option}", span):
            if not optional:
                options = self.options(group)
                help, fixes = did_you_mean(option, options), renamed(span, option, options)
                self.say("MC201", f"`{option}` is not a {group}", span, help=help, fixes=fixes)
            return False
        if self._circle(name, f"{group}/{option}"):
            self.say("MC205", f"`{option}` includes this file again", span)
            return False
        return True

    def _known_early(self, text: str, span: Span) -> bool:
        """Whether what an entry refers to is known when the defaults list is read: other entries are, the
        recipe's values are not."""
        late = next((key for key in TOP if re.search(rf"\$\{{ *{key}\b(?!@)", text)), "")
        if late:
            help = "name the option, or choose it on the command line"
            self.say(
                "MC208",
                f"a defaults list is read before `{late}`: it can refer to its other entries only",
                span,
                help=help,
            )
        return not late

    def _from(self, name: str, path: str) -> str:
        """The full name of what a file names."""
        base = "" if name in (PRIMARY, CHOICE) else posixpath.dirname(name)
        return posixpath.normpath(path.lstrip("/") if path.startswith("/") else posixpath.join(base, path))

    def _exists(self, name: str, span: Span) -> bool:
        """Whether there is such a file; a warning where it hides another."""
        named = list(self.candidates(name))
        if len(named) > 1:
            others = ", ".join(f"`{self.shown(path)}`" for path in named[1:])
            self.say("MC210", f"`{name}` is `{self.shown(named[0])}`, which hides {others}", span)
        return bool(named)

    def _places(self, name: str) -> str:
        """Help for a missing include."""
        group, _, short = name.rpartition("/")
        if meant := nearest(short, self.options(group)):
            return f"did you mean `{posixpath.join(group, meant)}`?"
        return (
            f"looked in {', '.join(f'`{self.shown(folder)}`' for folder in self.folders if is_dir(folder))}"
        )

    def _circle(self, name: str, included: str) -> bool:
        """Whether `included` leads back to `name`; if not, it is written down."""
        file = self.file(included)
        if file is not None and real(file) == real(self.recipe):
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

    def has_options(self, given: Given) -> bool:
        """Whether what a command line chooses is there."""
        if given.parsed.is_delete():
            return True
        value = given.parsed.value()
        options = value if isinstance(value, list) else [value]
        group = given.parsed.key_or_group
        if group == LAYOUT and given.parsed.package is None:
            help = f"say whose: {LAYOUT}@components.NAME.parallel={given.value_text}"
            self.say("MC208", "a layout is mounted in a component", given.key, help=help)
            return False
        if MISSING in options:
            self.say(
                "MC211",
                f"no option of `{group}` was chosen",
                given.value,
                help=did_you_mean("", self.options(group)),
            )
            return False
        return all(
            value is None or self._option(CHOICE, group, str(option), given.value, False)
            for option in options
        )

    # What Hydra makes of them

    def defaults(self, name: str, given: Sequence[Given], blame: str) -> list[Mounted]:
        """What Hydra makes of the defaults lists that begin at `name`."""
        if not given and name == PRIMARY and self._is_alone():
            return [Mounted(PRIMARY)]
        from meshctl.recipe.compose.foreign import FOREIGN
        from meshctl.recipe.compose.hydra_defaults import listed

        choices = list(given)
        while True:
            try:
                return listed(self, name, [one.parsed for one in choices])
            except RecursionError:
                self.say("MC205", "the defaults lists include one another without end", Span(blame, 1, 1))
                return []
            except FOREIGN as error:
                wrong = next((one for one in choices if f"'{one.bare}'" in str(error)), None)
                if wrong is None:
                    self.say(
                        "MC208",
                        f"the defaults list cannot be composed: {_first_line(error)}",
                        self._blame(name, blame),
                    )
                    return []
                self._refused(wrong)
                choices.remove(wrong)

    def _is_alone(self) -> bool:
        """Whether the recipe includes nothing and is mounted as it stands, so that Hydra need not be asked,
        nor loaded."""
        return self.defaults_of(PRIMARY) in ([], ["_self_"]) and "@package" not in self.head(PRIMARY)

    def _blame(self, name: str, file: str) -> Span:
        text = None if name == CHOICE else self.text(name)
        entries = text.tree.get("defaults") if text and text.tree else None
        return (entries.key or entries.span) if entries else Span(file, 1, 1)

    def _refused(self, given: Given) -> None:
        """A choice for which the defaults lists have no place."""
        bare = given.bare
        if given.parsed.is_delete():
            self.say("MC209", f"no defaults list names `{bare}`", given.key)
        else:
            self.say(
                "MC203",
                f"no defaults list names `{bare}`",
                given.key,
                help=f"to add it, say +{bare}={given.value_text}",
            )

    def layouts(self, given: Given) -> Iterator[Node]:
        """The files of a layout that the command line chose."""
        self._lists[CHOICE] = [{f"{given.parsed.key_or_group}@{given.parsed.package}": given.parsed.value()}]
        for default in self.defaults(CHOICE, [], given.file):
            if default.config_path != CHOICE and (tree := self.tree(default)):
                yield tree

    def tree(self, default: Mounted) -> Node | None:
        """What a file holds beside its defaults list."""
        text = self.text(str(default.config_path))
        if text is None or text.tree is None or not text.tree.is_mapping:
            return None
        return replace(text.tree, value={key: item for key, item in text.tree.items() if key != "defaults"})


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
