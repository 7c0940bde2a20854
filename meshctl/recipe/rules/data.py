"""MC443 to MC449 and MC460: the data and tokenizers that arguments of components name: files, the columns of
the first row, chat templates, and the tokens, which are compared with the vocabulary of a model.

A component with a tokenizer of its own, such as a sampler, makes new tokens, so the tokenizers of its inputs
are compared with its own model only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.files import (
    FirstRow,
    Found,
    files_nearby,
    find,
    first_row,
    token_count,
    tokenizer,
)
from meshctl.recipe.compose.folders import is_file
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.model import Component
from meshctl.recipe.rules.facts import Facts, named_by, texts_listed_by
from meshctl.text.english import listed, nearest

PATH, SPLIT, FIELDS, KEEP = (("args", name) for name in ("path", "split", "fields", "keep"))
TOKENS = ("args", "tokens")
MODEL, TOKENIZER, CHAT_TEMPLATE = (("args", name) for name in ("model", "tokenizer", "chat_template"))


def data_are_usable(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """The data of each source exist, and their first row has the columns that it reads."""
    name, suffixes = component.name, facts.declares(component.name).shipped.suffixes
    for node in _paths(facts, name) if suffixes else ():
        split = named_by(facts, name, SPLIT) if facts.node("components", name, *SPLIT) else "train"
        words = split if isinstance(split, str) else str(split.value) if split else ""
        found = find(node.value, facts.code.path, suffixes, words)
        near = nearest(node.value, files_nearby(node.value, facts.code.path, suffixes))
        meant = f"did you mean `{near}`?" if near else ""
        if found.is_remote:
            message = f"{found.wrong}, so its columns are not checked"
            help = "it must be a dataset of the hub"
            yield Diagnostic("MC449", message, node.span, help=meant or help, severity="note")
        elif found.wrong:
            help = f"searched in {listed(facts.code.own)} and the installed packages"
            yield Diagnostic("MC446", found.wrong, node.span, help=found.help or meant or help)
        elif one := _of_row(facts, name, node, found):
            yield one


def _paths(facts: Facts, component: str) -> Iterator[Node]:
    """Yields the paths of a source's data: one, each of a list, or each key of a mixture."""
    node = facts.argument(component, PATH)
    if node is not None and node.is_mapping:
        yield from (Node(key, value.key or value.span) for key, value in node.items())
    else:
        listed = node.value if node is not None and node.is_list else [node]
        yield from (one for one in listed if one is not None and isinstance(one.value, str) and one.value)


def _of_row(facts: Facts, component: str, node: Node, found: Found) -> Diagnostic | None:
    """Returns a diagnostic about the first row of the first file that is not empty."""
    rows = (first_row(file) for file in found.files)
    row = next((row for row in rows if not row.is_empty), FirstRow(is_empty=bool(found.files)))
    if row.is_empty:
        return Diagnostic("MC447", f"`{node.value}` has no rows", node.span)
    if row.wrong:
        return Diagnostic("MC447", row.wrong, node.span, help="a row is a line with one JSON object")
    if row.columns is None:
        return None
    kept, names = texts_listed_by(facts, component, KEEP) or (), facts.argument(component, FIELDS)
    renamed = {key: one.value for key, one in names.items()} if names is not None and names.is_mapping else {}
    declared = facts.declares(component).shipped.forms
    forms = [[str(renamed.get(column, column)) for column in form] for form in declared]
    lacking = [[column for column in form if column not in row.columns] for form in forms]
    others = forms[1:] if all(lacking) else []
    missing = [
        *(lacking[0] if forms and all(lacking) else ()),
        *(one for one in kept if one not in row.columns),
    ]
    if not missing:
        return None
    message = f"the first row of `{node.value}` has no {listed(missing, 'or')}"
    help = f"its columns are {listed(row.columns)}" if row.columns else "the row is empty"
    help += "".join(f"; a row may have {listed(form)} instead" for form in others)
    help += f"; for another one: fields: {{{missing[0]}: COLUMN}}"
    return Diagnostic("MC448", message, node.span, help=help)


def tokenizers_are_usable(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """Each tokenizer exists, and has a chat template where chats are rendered."""
    name, shipped = component.name, facts.declares(component.name).shipped
    if not shipped.has_tokenizer:
        return
    is_left_out = shipped.has_models_tokenizer and _is_empty(facts, name, TOKENIZER)
    node = named_by(facts, name, MODEL if is_left_out else TOKENIZER)
    model, template = facts.argument(name, MODEL), named_by(facts, name, CHAT_TEMPLATE)
    if node is not None:
        found = tokenizer(node.value, facts.code.path, facts.hub)
        needs_template = shipped.renders_chats and _is_empty(facts, name, CHAT_TEMPLATE)
        has_file = any(template and is_file(Path(folder, template.value)) for folder in facts.code.path)
        if shipped.renders_chats and template is not None and not has_file:
            message = f"chat template `{template.value}` does not exist"
            help = f"searched in {listed(facts.code.own)}"
            yield Diagnostic("MC444", message, template.span, help=help)
        elif found.is_remote:
            help = f"the launch downloads it; to check it before: hf download {node.value}"
            yield Diagnostic("MC445", found.wrong, node.span, help=help, severity="note")
        elif found.wrong:
            help = "write `byte`, the folder of a tokenizer, or the name of one on the hub"
            yield Diagnostic("MC444", found.wrong, node.span, help=help)
        elif needs_template and not found.has_template:
            message = f"tokenizer `{node.value}` has no chat template"
            help = "name a file with one in `chat_template`, or use the tokenizer of a model trained on chats"
            yield Diagnostic("MC443", message, node.span, help=help)
    elif is_left_out and model and model.is_mapping and facts.is_valid("components", name, "args"):
        message = f"`{name}` has no tokenizer: its model is a mapping of config values"
        help = "add `tokenizer` to its args: `byte`, a folder, or a name of the hub"
        yield Diagnostic("MC444", message, model.key or model.span, help=help)


def _is_empty(facts: Facts, component: str, path: KeyPath) -> bool:
    """Returns whether the recipe does not set an argument. Its value may be unknown until the launch."""
    node = facts.node("components", component, *path)
    return node is None or not node.value


def tokens_are_in_vocabulary(facts: Facts) -> Iterator[Diagnostic]:
    """A model has an embedding for each token of the tokenizers of its inputs."""
    counts: dict[str, int] = {}
    for name, model in facts.models.items():
        vocabulary = model.get("vocab_size")
        receiving = (name, *_sources(facts, name)) if vocabulary else ()
        for node in filter(None, (_named(facts, one) for one in receiving)):
            if node.value not in counts:
                folder = tokenizer(node.value, facts.code.path, facts.hub).folder
                counts[node.value] = token_count(folder) if folder else 0
            count = counts[node.value]
            if count > vocabulary:
                has = f"the vocabulary of the model of `{name}` has only {vocabulary}"
                message = f"tokenizer `{node.value}` has {count} tokens, but {has}"
                new = f"a new model needs a `vocab_size` of at least {count}"
                help = f"name the tokenizer of the model; {new}"
                yield Diagnostic("MC460", message, node.span, model.stated("vocab_size"), help)


def added_tokens_are_equal(facts: Facts) -> Iterator[Diagnostic]:
    """A model adds the same tokens as the sources and samplers of its inputs, so that they have equal ids."""
    for name in facts.models:
        own = texts_listed_by(facts, name, TOKENS) if facts.declares(name).shipped.has_tokenizer else None
        for source in _sources(facts, name) if own is not None else ():
            other = texts_listed_by(facts, source, TOKENS)
            if other is not None and other != own:
                both = ((other, source), (own, name))
                adds = [f"{listed(one) if one else 'none'} to `{each}`" for one, each in both]
                message = f"`tokens` adds {' and '.join(adds)}, so that they have other ids"
                place = next(each for one, each in both if one)
                span = facts.value("components", place, *TOKENS)
                yield Diagnostic(
                    "MC460", message, span, help="write the same list in both, in the same order"
                )


def _sources(facts: Facts, component: str) -> Iterator[str]:
    """Yields the components whose tokens another component receives, and that name a tokenizer."""
    seen, waiting = {component}, [component]
    while waiting:
        for source in _inputs(facts, waiting.pop()):
            if source in seen or source not in facts.recipe.components:
                continue
            seen.add(source)
            if _named(facts, source):
                yield source
            else:
                waiting.append(source)


def _named(facts: Facts, component: str) -> Node | None:
    has_tokenizer = facts.declares(component).shipped.has_tokenizer
    return named_by(facts, component, TOKENIZER) if has_tokenizer else None


def _inputs(facts: Facts, component: str) -> Iterator[str]:
    pipeline = facts.recipe.pipeline
    for stage in pipeline.values():
        if stage.component == component and stage.kind == "call":
            yield from (pipeline[taken].component for taken in stage.takes if taken in pipeline)
