"""MC460: compares the tokens of tokenizers with the vocabulary of the model that computes on them.

The tokenizer is that of the component itself, and of each component whose tokens reach it through the
pipeline. A component with a tokenizer of its own, such as a sampler, makes new tokens, so the tokenizers of
its inputs are compared with its own model only.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.tokenizers import token_count, tokenizer
from meshctl.recipe.compose.yaml_tree import Node
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.rules.named_arguments import named_by, once


def tokens_are_in_vocabulary(facts: Facts) -> Iterator[Diagnostic]:
    """A model has an embedding for each token of the tokenizers of its inputs. Each tokenizer is reported
    once for a model."""
    return once(_found(facts))


def _found(facts: Facts) -> Iterator[Diagnostic]:
    counts: dict[str, int] = {}
    for name, model in facts.models.items():
        vocabulary = model.get("vocab_size")
        for node in _tokenizers(facts, name) if vocabulary else ():
            if node.value not in counts:
                counts[node.value] = _token_count(facts, node.value)
            count = counts[node.value]
            if count > vocabulary:
                has = f"the vocabulary of the model of `{name}` has only {vocabulary}"
                message = f"tokenizer `{node.value}` has {count} tokens, but {has}"
                help = (
                    f"name the tokenizer of the model; a new model needs a `vocab_size` of at least {count}"
                )
                yield Diagnostic("MC460", message, node.span, model.stated("vocab_size"), help)


def _token_count(facts: Facts, name: str) -> int:
    """Returns the number of tokens of a tokenizer; 0 if it is unknown."""
    folder = tokenizer(name, facts.code.path, facts.hub).folder
    return token_count(folder) if folder else 0


def _tokenizers(facts: Facts, component: str) -> Iterator[Node]:
    """Yields the names of the tokenizers whose tokens a component receives, each at its place."""
    if own := _named(facts, component):
        yield own
    seen, waiting = {component}, [component]
    while waiting:
        for source in _inputs(facts, waiting.pop()):
            if source in seen or source not in facts.recipe.components:
                continue
            seen.add(source)
            if named := _named(facts, source):
                yield named
            else:
                waiting.append(source)


def _named(facts: Facts, component: str) -> Node | None:
    return named_by(facts, component, facts.declares(component).tokenizer.name)


def _inputs(facts: Facts, component: str) -> Iterator[str]:
    """Yields the components whose values the stages of a component take."""
    pipeline = facts.recipe.pipeline
    for stage in pipeline.values():
        if stage.component == component and stage.kind == "call":
            yield from (pipeline[taken].component for taken in stage.takes if taken in pipeline)


RULES = (tokens_are_in_vocabulary,)
