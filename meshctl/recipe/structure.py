"""Moves misplaced keys of a recipe to the right place, before the recipe is read.

    sizes: {tp_sise: 2}                    a key that is misspelt or from another system
    steps: 3 beside `run:`                 a key of another section
    sampler: ... inside `actor: ...`       a group, a component or a stage in the wrong place
    groups: [train: {...}]                 a list instead of a mapping, or keys that are not indented

Each of these mistakes is reported once, and the tree is corrected as the report proposes. The reader and the
rules work on the corrected tree, so that one mistake does not lead to further reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Fix, Span
from meshctl.recipe.compose.yaml_scalars import scalar
from meshctl.recipe.compose.yaml_tree import KeyPath, Node, can_hold, merge, put
from meshctl.recipe.engine_fields import ENGINE
from meshctl.recipe.field_types import Arguments, Environment, Text, Texts, Type, Word
from meshctl.recipe.fields import INNER, NOT_IN_BLOCK, RECIPE, STAGE
from meshctl.recipe.fixes import keys_meant
from meshctl.recipe.foreign_words import FOREIGN
from meshctl.recipe.key_paths import stage_section
from meshctl.recipe.misplaced import (
    INVISIBLE,
    NAMED,
    Location,
    help_without_alternative,
    invisible_character,
    is_mapping_only,
    kind_of,
    location_of,
)
from meshctl.recipe.section_types import (
    FreeMapping,
    Inputs,
    Named,
    Nested,
    PlainData,
    Retired,
    Script,
    Section,
)
from meshctl.recipe.spacing import Spacing
from meshctl.recipe.suggestions import called, nearest_key
from meshctl.text.english import abbreviated, listed

MAPPINGS = (Nested, Named, PlainData, FreeMapping, Environment)
"""Types whose values can be mappings."""


@dataclass(frozen=True)
class Structure:
    """The corrected tree of a recipe, and the mistakes that were found."""

    tree: Node
    found: tuple[Diagnostic, ...]
    wrong: frozenset[KeyPath]
    """Key paths of unknown keys, and of the keys that may have been meant by them."""


def correct(root: Node) -> Structure:
    """Returns the corrected tree of a recipe, and diagnostics about the mistakes."""
    spacing = Spacing(scalar)
    root = spacing.separate(root)
    walk = _Walk(root, spacing)
    tree = walk.section(root, (), RECIPE)
    for path, node in walk.moves:
        there, top = tree.at(path), tree.get(path[0])
        if len(path) > 1 and top is not None and top.value is None:
            tree = put(tree, path[:1], replace(top, value={}))
        if can_hold(tree, path):
            tree = put(tree, path, node if there is None else merge(there, node))
    return Structure(tree, (*spacing.found, *walk.found), frozenset(walk.wrong))


@dataclass
class _Walk:
    root: Node
    spacing: Spacing
    found: list[Diagnostic] = field(default_factory=list)
    wrong: set[KeyPath] = field(default_factory=set)
    misplaced: set[KeyPath] = field(default_factory=set)
    """Key paths of mappings that were found in a wrong place. Groups, components and stages inside them, and
    keys that belong beside them, are not reported."""
    empty: set[str] = field(default_factory=set)
    """Names of groups, components or stages without a value, whose keys are not indented below them."""
    moves: list[tuple[KeyPath, Node]] = field(default_factory=list)
    """(right key path, value) of each misplaced value."""

    def report(
        self,
        code: str,
        message: str,
        span: Span,
        help: str = "",
        fixes: tuple[Fix, ...] = (),
        missing: bool = False,
    ) -> None:
        self.found.append(Diagnostic(code, message, span, (), help, fixes=fixes, missing=missing))

    # Sections

    def section(self, node: Node, path: KeyPath, section: Section) -> Node:
        """Returns a section with corrected keys."""
        node = self.without_list(node, path, section)
        if not node.is_mapping:
            return node
        node = self.with_whole_numbers(node, section)
        meant = keys_meant(node, section.keys)
        items: dict[str, Node] = {}
        children: dict[str, dict[str, Node]] = {}
        above = ""
        for key, item in node.items():
            here = (*path, key)
            is_own = key in section.by_key and not _is_named_item(item, section.by_key[key].type)
            above = _empty_above(item, node, section) or ("" if is_own else above)
            if is_own and not (above and _is_foreign(item, section.by_key[key].type)):
                items[key] = self.value(item, here, section.by_key[key].type)
            elif above:
                children.setdefault(above, {})[key] = item
            else:
                self.unknown(key, item, path, section, node, meant, items)
        for key, some in children.items():
            here = (*path, key)
            items[key] = self.value(self.adopted(node.value[key], here, some), here, section.by_key[key].type)
        return replace(node, value=self.with_required(items, path, section))

    def without_list(self, node: Node, path: KeyPath, section: Section) -> Node:
        """Returns the mapping that a list of single keys was meant to be, and reports it."""
        items = dict(_entries(node)) if node.is_list and path else {}
        if not items or not items.keys() <= section.by_key.keys():
            return node
        message = f"`{path[-1]}` must be a mapping, not a list"
        first = next(iter(items))
        help = f"write `{first}:` without the `-`, and the others likewise"
        self.report("MC102", message, node.span, help)
        return replace(node, value=items)

    def with_whole_numbers(self, node: Node, section: Section) -> Node:
        """Returns a mapping in which `samples: 1,024` is one number. YAML reads `024` as a key."""
        items, parts = dict[str, Node](), dict[str, tuple[str, Span]]()
        for key, item in node.items():
            last = next(reversed(items), "")
            value = items[last].value if last else None
            if isinstance(value, int) and item.value is None and re.fullmatch(r"\d{3}", key):
                parts.setdefault(last, (key, item.key or item.span))
                items[last] = replace(items[last], value=int(f"{value}{key}"))
            else:
                items[key] = item
        for name, (part, span) in parts.items():
            help = f"write {items[name].value}, without separators"
            self.report("MC101", f"{section.title} has no key `{part}`", span, help)
        return replace(node, value=items) if parts else node

    def adopted(self, parent: Node, path: KeyPath, items: dict[str, Node]) -> Node:
        """Returns `parent`, which has no value, with the keys `items`, which follow it without indentation.
        Reports the mistake."""
        self.misplaced |= {(*path, name) for name, item in items.items() if item.is_mapping}
        message = f"`{path[-1]}` must be a mapping, but it has no value"
        self.report("MC102", message, parent.span, "indent the keys below it")
        return replace(parent, value=items)

    def with_required(self, items: dict[str, Node], path: KeyPath, section: Section) -> dict[str, Node]:
        """Returns the items, with required keys that are one level too deep moved up."""
        for required in section.fields:
            if not required.required or required.key in items:
                continue
            for key, child in items.items():
                inner = child.get(required.key) if child.is_mapping else None
                if inner is None or inner.is_mapping or not isinstance(section.by_key[key].type, MAPPINGS):
                    continue
                message = f"`{required.key}` is a key of {section.title}, not of its `{key}`"
                place = ".".join(path)
                help = f"it goes under `{place}`, beside `{key}`"
                self.report("MC101", message, inner.key or inner.span, help)
                rest = {name: item for name, item in child.items() if name != required.key}
                items = {**items, key: replace(child, value=rest), required.key: inner}
                break
        return items

    def value(self, node: Node, path: KeyPath, type_: Type) -> Node:
        if isinstance(type_, MAPPINGS) and not (isinstance(type_, Nested) and type_.shorthand):
            node = self.spacing.mapping(node) or node
        match type_:
            case Texts() | Arguments():
                return self.spacing.items(node) or node
            case Named():
                return self.named(node, path, type_.section)
            case Nested() | Script():
                if is_mapping_only(type_) and isinstance(node.value, (str, int, float)):
                    self.wrong.add(path)  # the reader reports it, so references into it are not reported
                return self.section(node, path, type_.section)
            case Inputs() if node.is_mapping and node.get("from") is None:
                items = {key: self.section(item, (*path, key), type_.section) for key, item in node.items()}
                return replace(node, value=items)
        return node

    # Unknown keys

    def unknown(
        self,
        key: str,
        item: Node,
        path: KeyPath,
        section: Section,
        node: Node,
        meant: Mapping[str, tuple[Fix, ...]],
        items: dict[str, Node],
    ) -> None:
        """Reports a key that is unknown in a section, and moves its value to the right place if that is
        known."""
        self.wrong.add((*path, key))
        if self.is_refused(key, item, path, section, node):
            return
        odd = invisible_character(key)
        key = INVISIBLE.sub("", key).strip() if odd else key
        near, location = self.meaning(key, item, path, section, bool(meant.get(key)))
        help = odd or self.help_for(key, item, path, section, node, near, location)
        message = f"{section.title} has no key `{abbreviated(key)}`"
        fixes = meant.get(key, ()) if near else ()
        if near and isinstance(section.by_key[near].type, (Text, Word)) and not isinstance(item.value, str):
            fixes = ()  # the word has another meaning in the other system
        if not (path in self.misplaced and location and _is_sibling(location, path)):
            self.report("MC101", message, item.key or item.span, help, fixes)
        if location:
            self.move(item, location)
        elif near and node.get(near) is not None and not path and item.is_mapping:  # from an included file
            self.moves.append(((near,), self.value(item, (near,), section.by_key[near].type)))
        elif near and near not in items and node.get(near) is None:
            if fixes:
                items[near] = self.value(item, (*path, near), section.by_key[near].type)
            else:
                self.wrong.add((*path, near))

    def is_refused(self, key: str, item: Node, path: KeyPath, section: Section, node: Node) -> bool:
        """Returns whether a key is retired, or one that a stage of a block cannot have. Reports it."""
        span = item.key or item.span
        for old in section.retired:
            if key == old.key:
                self.found.append(_retired(old, item))
                return True
        if section is not INNER or not (node.get("sync") or key in NOT_IN_BLOCK):
            return False
        why = NOT_IN_BLOCK.get(key)
        if why and not (key == "stages" and node.get("repeat")):
            self.report("MC571", f"a stage of a block has no `{key}`: {why}", span)
        return True

    def meaning(
        self, key: str, item: Node, path: KeyPath, section: Section, is_misspelt: bool
    ) -> tuple[str, Location | None]:
        """Returns (key of the section that was probably meant, place to which the key belongs). At most one
        of them is known. `is_misspelt` is true if the key is an unambiguous misspelling."""
        known = section.keys
        word = "" if kind_of(item) else called(key, known)
        location = None if word or key in FOREIGN else location_of(key, section, path, item, self.root)
        if location and (location.is_named_item or not is_misspelt):
            return "", location
        if key in FOREIGN:
            return word, None
        return key if key in known else nearest_key(key, known), None

    def move(self, item: Node, location: Location) -> None:
        """Records that a value belongs to another place, or that it may belong to several."""
        path = location.path
        if location.is_named_item:
            self.misplaced.add(path)
            self.moves.append((path, self.named_item(path, item, NAMED[path[0]])))
        elif path and self.root.at(path) is None:
            self.moves.append((path, item))
        elif not path:
            self.wrong |= {place for place in location.candidates if self.root.at(place) is None}

    def help_for(
        self,
        key: str,
        item: Node,
        path: KeyPath,
        section: Section,
        node: Node,
        near: str,
        location: Location | None,
    ) -> str:
        """Returns the help for an unknown key. `near` is the key that was probably meant. `location` is the
        place to which the key belongs, if there is one."""
        file = item.key.file if item.key else item.span.file
        if not path and f"/{key}/" in f"/{file}":
            return f"to set values of the recipe, write `# @package _global_` in the first line of `{file}`"
        if location and location.help:
            return location.help
        if section is ENGINE and isinstance(item.value, str) and item.value in section.by_key:
            return f"write `engine: {item.value}`"
        if near and not location:
            return f"did you mean `{near}`?"
        known = section.keys
        listing = f"its {'key is' if len(known) == 1 else 'keys are'} {listed(known)}"
        is_recipe = section is RECIPE and any(self.root.get(top) for top in NAMED)
        listing = "values that are used several times go under `vars`" if is_recipe else listing
        return help_without_alternative(section, key) or listing

    # Groups, components and stages

    def named(self, node: Node, path: KeyPath, section: Section) -> Node:
        """Returns the groups, components or stages, each with corrected keys."""
        if node.is_list and (items := dict(_entries(node))):
            message = f"`{path[-1]}` must be a mapping, not a list"
            first = next(iter(items))
            help = f"write `{first}:` without the `-`, and the others likewise"
            self.report("MC102", message, node.span, help)
            node = replace(node, value=items)
        if not node.is_mapping:
            return node
        found: dict[str, Node] = {}
        self.empty = set()
        for written, item in node.items():
            name, other = self.visible(written, item), kind_of(item)
            if other not in ("", path[0]):
                self.misplaced.add((other, name))
                self.moves.append(((other, name), self.named_item((other, name), item, NAMED[other])))
                message = f"`{name}` is {NAMED[other].title}, not {section.title}"
                self.report("MC101", message, item.key or item.span, f"it goes under `{other}`")
            elif _is_section_of_recipe(name, item) and self.root.get(name) is None:
                message = f"`{name}` is a key of a recipe, not {section.title}"
                help = "it goes at the top of the recipe: indent it less"
                self.report("MC101", message, item.key or item.span, help)
                self.moves.append(((name,), self.value(item, (name,), RECIPE.by_key[name].type)))
            elif _is_stray(name, item, section):
                self.stray(name, item, path, section, found)
            else:
                found[name] = item
        return replace(
            node, value={name: self.named_item((*path, name), item, section) for name, item in found.items()}
        )

    def visible(self, name: str, item: Node) -> str:
        """Returns a name without invisible characters, and reports these."""
        if help := invisible_character(name):
            self.report(
                "MC106", f"`{abbreviated(name).strip()}` is not a valid name", item.key or item.span, help
            )
        return INVISIBLE.sub("", name).strip() if help else name

    def stray(self, key: str, item: Node, path: KeyPath, section: Section, found: dict[str, Node]) -> None:
        """Moves a key that is in the place of a name into the group, component or stage that lacks it."""
        last = next(reversed(found), "")
        if last in self.empty:
            found[last] = replace(found[last], value={**found[last].value, key: item})
            return
        if last and found[last].value is None:
            self.empty.add(last)
            found[last] = self.adopted(found[last], (*path, last), {key: item})
            return
        lacking = [name for name, other in found.items() if other.is_mapping and other.get(key) is None]
        owner = last if last in lacking else ""
        if len(lacking) == 1:
            owner = lacking[0]
        place = f"`{'.'.join((*path, owner))}`" if owner else section.title
        message = f"`{key}` is a key of {section.title}, not a name"
        self.report(
            "MC101", message, item.key or item.span, f"it goes under {place}: indent it as the keys there"
        )
        if owner:
            items = _with_neighbours(key, item, section)
            found[owner] = replace(found[owner], value={**found[owner].value, **items})
        if len(lacking) > 1:
            self.wrong |= {(*path, name, key) for name in lacking}

    def named_item(self, path: KeyPath, item: Node, section: Section) -> Node:
        return self.section(item, path, stage_section(item) if section is STAGE else section)


def _with_neighbours(key: str, item: Node, section: Section) -> dict[str, Node]:
    """Returns a misplaced key and the keys that follow it in its section, which YAML reads as keys of its
    value, because they are indented more."""
    type_ = section.by_key[key].type
    if not item.is_mapping or not isinstance(type_, Nested):
        return {key: item}
    others = section.by_key.keys() - type_.section.by_key.keys()
    rest = {inner: node for inner, node in item.items() if inner not in others}
    return {
        key: replace(item, value=rest),
        **{inner: node for inner, node in item.items() if inner in others},
    }


def _is_foreign(item: Node, type_: Type) -> bool:
    """Returns whether a mapping begins with a key that a section of this type does not have."""
    first = next((key for key, _ in item.items()), "")
    return isinstance(type_, Nested) and first != "" and first not in type_.section.by_key


def _is_sibling(location: Location, path: KeyPath) -> bool:
    """Returns whether a key that was found in the mapping at `path` belongs beside it."""
    return location.is_named_item or (location.path != () and location.path[:-1] == path[:-1])


def _is_stray(key: str, item: Node, section: Section) -> bool:
    """Returns whether a key in the place of a name is a key of the section."""
    if key not in section.by_key or item.value is None or kind_of(item):
        return False
    type_, keys = section.by_key[key].type, [inner for inner, _ in item.items()]
    of_section = [inner for inner in keys if inner in section.by_key]
    is_of_value = isinstance(type_, Nested) and keys[:1] and keys[0] in type_.section.by_key
    if isinstance(type_, PlainData):
        is_of_value = not any(section.by_key[inner].required for inner in of_section)
    return bool(is_of_value or not of_section or (of_section[0] != keys[0] and len(of_section) == 1))


def _is_section_of_recipe(name: str, item: Node) -> bool:
    """Returns whether a group, component or stage is in fact a section of the recipe, such as `run`."""
    field = RECIPE.by_key.get(name)
    keys = {key for key, _ in item.items()}
    return field is not None and isinstance(field.type, Nested) and keys <= field.type.section.by_key.keys()


def _empty_above(item: Node, node: Node, section: Section) -> str:
    """Returns the key of an empty mapping directly above a key and in the same column; empty if there is
    none."""
    span = item.key
    if span is None:
        return ""
    known = [(other.key, key) for key in section.keys if (other := node.get(key)) and other.key]
    above = [(other, key) for other, key in known if (other.file, other.column) == (span.file, span.column)]
    _, key = max(((other, key) for other, key in above if other.line < span.line), default=(span, ""))
    is_empty = key != "" and node.value[key].value is None and isinstance(section.by_key[key].type, MAPPINGS)
    return key if is_empty else ""


def _is_named_item(item: Node, type_: Type) -> bool:
    """Returns whether an item is itself a group, component or stage whose name equals a key, such as a group
    named `run`. `type_` is the type of that key."""
    if not isinstance(type_, Nested) or not kind_of(item):
        return False
    return not any(key in type_.section.by_key for key, _ in item.items())


def _entries(node: Node) -> Iterator[tuple[str, Node]]:
    """Yields the names and values of a list of mappings: `- train: {...}`, `- name: train`."""
    for entry in node.value:
        items = dict(entry.items())
        if len(items) == 1:
            yield from items.items()
        elif items:
            first, value = next(iter(items.items()))
            rest = {key: item for key, item in items.items() if key != first}
            if value.value is None:
                yield first, replace(entry, value=rest, key=value.key)
            elif first == "name" and isinstance(value.value, str):
                yield value.value, replace(entry, value=rest, key=value.span)


def _retired(old: Retired, item: Node) -> Diagnostic:
    """Returns the diagnostic for a key of an earlier version: a warning where its value had no effect."""
    span = item.key or item.span
    if item.value != old.idle:
        return Diagnostic("MC108", f"`{old.key}` is no longer a key", span, help=old.help)
    line = f"{' ' * (span.column - 1)}{old.key}: {item.written}"
    fixes = (Fix(replace(span, column=1, width=len(line)), line, ""),)
    help = f"remove it: {old.help}"
    return Diagnostic("MC109", f"`{old.key}` is no longer a key", span, (), help, "warning", fixes)
