"""MC443 to MC445: checks the tokenizers that arguments of components name.

A class declares `TOKENIZER = "args.tokenizer"`, or a mapping: with `chat_template` if it renders chats, and
with `model` if it uses the tokenizer of its model where no tokenizer is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.tokenizers import Tokenizer, tokenizer
from meshctl.recipe.compose.folders import is_file
from meshctl.recipe.compose.yaml_tree import KeyPath, Node
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.named_arguments import named_by, once
from meshctl.text.english import listed


def tokenizers_are_usable(facts: Facts) -> Iterator[Diagnostic]:
    """Each tokenizer exists, and has a chat template where chats are rendered. Each one is reported once."""
    return once(one for name in facts.recipe.components if (one := _of_component(facts, name)))


def _of_component(facts: Facts, component: str) -> Diagnostic | None:
    declared = facts.declares(component).tokenizer
    is_left_out = _is_empty(facts, component, declared.name)
    node = named_by(facts, component, declared.model if is_left_out else declared.name)
    if node is None:
        return _without_name(facts, component) if is_left_out else None
    found = tokenizer(node.value, facts.code.path, facts.hub)
    needs_template = bool(declared.chat_template) and _is_empty(facts, component, declared.chat_template)
    template = named_by(facts, component, declared.chat_template)
    return _of_file(facts, template) or _of_tokenizer(node, found, needs_template)


def _without_name(facts: Facts, component: str) -> Diagnostic | None:
    """Returns a diagnostic if neither the tokenizer nor the model has a name."""
    declared = facts.declares(component).tokenizer
    model = facts.argument(component, declared.model)
    if model is None or not model.is_mapping or not facts.is_valid("components", component, "args"):
        return None
    message = f"`{component}` has no tokenizer: its model is a mapping of config values"
    help = f"add `{'.'.join(declared.name[1:])}` to its args: `byte`, a folder, or a name of the hub"
    return Diagnostic("MC444", message, model.key or model.span, help=help)


def _is_empty(facts: Facts, component: str, path: KeyPath) -> bool:
    """Returns whether the recipe does not set an argument. Its value may be unknown until the launch."""
    node = facts.node("components", component, *path)
    return node is None or not node.value


def _of_file(facts: Facts, template: Node | None) -> Diagnostic | None:
    """Returns a diagnostic if the file of a chat template does not exist."""
    if template is None or any(is_file(Path(folder, template.value)) for folder in facts.code.path):
        return None
    message = f"chat template `{template.value}` does not exist"
    return Diagnostic("MC444", message, template.span, help=f"searched in {listed(facts.code.own)}")


def _of_tokenizer(node: Node, found: Tokenizer, needs_template: bool) -> Diagnostic | None:
    if found.is_remote:
        help = f"the launch downloads it; to check it before: hf download {node.value}"
        return Diagnostic("MC445", found.wrong, node.span, help=help, severity="note")
    if found.wrong:
        help = "write `byte`, the folder of a tokenizer, or the name of one on the hub"
        return Diagnostic("MC444", found.wrong, node.span, help=help)
    if needs_template and not found.has_template:
        message = f"tokenizer `{node.value}` has no chat template"
        help = "name a file with one in `chat_template`, or use the tokenizer of a model trained on chats"
        return Diagnostic("MC443", message, node.span, help=help)
    return None


RULES = (tokenizers_are_usable,)
